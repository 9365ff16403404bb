"""What the SQLite store survives: kills, full and forbidden disks, damage, other processes."""

import asyncio
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests import stores
from tests.waiting import LIMIT_S

import hobnob.store
from hobnob import statedir
from hobnob.errors import (
    SessionNotFound,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreInUse,
    StoreTooNew,
    StoreUnwritable,
)
from hobnob.keys import parse
from hobnob.store import Store, Tx, entries, open_store, purge_entries, sessions
from hobnob.store.engine import sqlite_file, statements
from hobnob.types import Entry, Session

PROGRAMS = Path(__file__).parent.parent / "programs"
MESSAGE = {"role": "user", "content": "hello"}


def url(db: Path) -> str:
    return f"sqlite:///{db}"


async def fill(store: Store, count: int) -> Session:
    session = await store.write(sessions.ensure, Session.of(parse("agent:a:main")))
    await asyncio.gather(*(store.write(entries.append, session.session_id, MESSAGE) for _ in range(count)))
    return session


@pytest.mark.promise("transcript.numbered_from_one")
@pytest.mark.parametrize("round_", range(5))
async def test_after_kill_9_everything_acknowledged_is_there_without_a_gap(db: Path, round_: int) -> None:
    program = subprocess.Popen(
        [sys.executable, PROGRAMS / "append_forever.py", url(db)], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    wanted = random.Random(round_).randint(1, 1500)
    lines = [program.stdout.readline() for _ in range(wanted)]
    program.send_signal(signal.SIGKILL)
    lines += program.stdout.read().splitlines()
    program.wait()
    program.stdout.close()
    acknowledged = defaultdict(set)
    for line in lines:
        if len(words := line.split()) == 2:  # the kill may have cut the last line
            acknowledged[words[0]].add(int(words[1]))
    async with open_store(url(db)) as store:
        for session_id, seqs in acknowledged.items():
            stored = [e.seq for e in await store.read(entries.history, session_id, limit=10**6)]
            assert stored == list(range(1, len(stored) + 1))
            assert seqs <= set(stored)
    if not stores.ON_POSTGRES:
        assert sqlite_file.integrity(db) == []


def on_a_small_disk(tmp_path: Path, program: str) -> Any:
    """What a program reports that ran on a disk of its own of a few megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=4m,mode=700 none "{disk}" && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a small disk")
    run = subprocess.run([*command, sys.executable, PROGRAMS / program, disk], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.sqlite_file
def test_a_full_disk_fails_with_its_name_and_loses_nothing(tmp_path: Path) -> None:
    report = on_a_small_disk(tmp_path, "fill_disk.py")
    assert set(report["refusals"]) == {"StoreFull"}
    assert len(report["after"]) == 5
    assert report["stored"] == list(range(1, len(report["stored"]) + 1))
    assert set(report["kept"]) <= set(report["stored"])


@pytest.mark.sqlite_file
def test_a_gateway_on_a_full_disk_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    report = on_a_small_disk(tmp_path, "fill_disk_of_gateway.py")
    assert report == {"refused": "store.full", "waiting": "running", "ended": "Done.", "after": "again"}


async def test_one_failing_verb_does_not_fail_its_neighbours(db: Path) -> None:
    def broken_sql(tx: Tx) -> None:
        tx.run("entry_append", 1, 7, None, None, "", 0)

    async with open_store(url(db)) as store:
        session = await fill(store, 0)
        results = await asyncio.gather(
            *(
                store.write(broken_sql)
                if i % 3 == 0
                else store.write(entries.append, session.session_id, MESSAGE)
                for i in range(30)
            ),
            return_exceptions=True,
        )
        assert [isinstance(r, Exception) for r in results] == [i % 3 == 0 for i in range(30)]
        assert await store.read(entries.last_seq, session.session_id) == 20


@pytest.mark.promise("transcript.numbered_from_one")
@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt])
async def test_a_verb_that_fails_after_writing_leaves_no_trace_and_no_gap(db: Path, raised: Any) -> None:
    async with open_store(url(db)) as store:
        session = await fill(store, 3)

        def half(tx: Tx) -> None:
            entries.append(tx, session.session_id, {"role": "user", "content": "never"})
            raise raised

        good = [store.write(entries.append, session.session_id, MESSAGE) for _ in range(4)]
        results = await asyncio.gather(
            good[0], store.write(half), *good[1:3], store.write(half), good[3], return_exceptions=True
        )
        seqs = [r.seq if isinstance(r, Entry) else None for r in results]
        assert seqs == [4, None, 5, 6, None, 7]
        found = await store.read(entries.history, session.session_id)
        assert [(e.seq, e.message) for e in found] == [(n, MESSAGE) for n in range(1, 8)]


@pytest.mark.sqlite_file
async def test_nothing_is_appended_to_a_transcript_deleted_in_the_same_group(db: Path) -> None:
    async with open_store(url(db)) as store:
        session = await fill(store, 2)
        results = await asyncio.gather(
            store.write(entries.append, session.session_id, MESSAGE),
            store.write(sessions.delete, session.key),
            store.write(entries.append, session.session_id, MESSAGE),
            return_exceptions=True,
        )
        assert isinstance(results[0], Entry)
        assert isinstance(results[2], SessionNotFound)


@pytest.mark.parametrize("raised", [StopIteration, asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_whatever_a_verb_raises_everybody_is_answered(db: Path, raised: Any) -> None:
    def bad(tx: Tx) -> None:
        raise raised

    async with open_store(url(db)) as store, asyncio.timeout(LIMIT_S):
        session = await fill(store, 0)
        good = store.write(entries.append, session.session_id, MESSAGE)
        results = await asyncio.gather(store.write(bad), good, store.write(bad), return_exceptions=True)
        assert [isinstance(r, Exception) for r in results] == [True, False, True]
        assert await store.read(entries.last_seq, session.session_id) == 1


async def test_a_watcher_that_fails_keeps_nobody_waiting(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails(changes: Any) -> None:
        raise ValueError("planned")

    async with open_store(url(db)) as store, asyncio.timeout(LIMIT_S):
        store.watch(fails)
        session = await fill(store, 3)
        assert await store.read(entries.last_seq, session.session_id) == 3
    assert "store watcher failed" in caplog.text


@pytest.mark.sqlite_file
async def test_what_waits_together_is_committed_together(db: Path) -> None:
    async with open_store(url(db)) as store:
        session = await fill(store, 0)
        groups: list[int] = []
        store.watch(lambda changes: groups.append(len(changes)))
        await asyncio.gather(*(store.write(entries.append, session.session_id, MESSAGE) for _ in range(200)))
        assert sum(groups) == 200
        assert len(groups) < 50


@pytest.mark.sqlite_file
async def test_every_commit_is_synced_to_the_disk(db: Path) -> None:
    async with open_store(url(db)) as store:
        (level,) = await store.write(lambda tx: tx._execute("pragma synchronous").fetchone())
        assert level == 2  # full


@pytest.mark.sqlite_file
async def test_a_deleted_session_leaves_no_words_in_the_index(db: Path) -> None:
    async with open_store(url(db)) as store:
        session = await fill(store, 2)
        while await store.write(entries.index):
            pass
        await store.write(sessions.delete, session.key)
        await purge_entries(store)
    with contextlib.closing(sqlite3.connect(db)) as connection:
        count = connection.execute("select count(*) from entry_words where entry_words match 'hello'")
        assert count.fetchone() == (0,)


@pytest.mark.sqlite_file
async def test_a_store_made_with_another_migration_is_refused(db: Path) -> None:
    async with open_store(url(db)):
        pass
    with contextlib.closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("update migrations set sha256 = 'another' where number = 1")
    with pytest.raises(StoreError, match="migration 1"):
        async with open_store(url(db)):
            pass


@pytest.mark.sqlite_file
async def test_a_store_of_the_first_version_is_brought_along_with_all_it_holds(db: Path) -> None:
    """Made as the first version did; its last entry was deleted, and its position must not come again."""
    db.parent.mkdir(exist_ok=True)
    name, text = next((name, text) for number, name, text in statements.migrations("sqlite") if number == 1)
    with contextlib.closing(sqlite3.connect(db)) as old:
        old.execute(f"pragma application_id = {sqlite_file.APPLICATION_ID}")
        old.executescript(text + statements.load()["migrations_table"])
        sha = hashlib.sha256(text.encode()).hexdigest()
        old.execute("insert into migrations values (1, ?, ?, 0)", (name, sha))
        for session_id in ("one", "two"):
            old.execute(
                "insert into transcripts values (?, ?, 'a', 0)", (session_id, f"agent:a:{session_id}")
            )
            for seq in (1, 2, 3):
                body = f'{{"role":"user","content":"{session_id} {seq}"}}'
                row = (session_id, seq, "user", body)
                old.execute(
                    "insert into entries (session_id, seq, role, body, created_at_ms) values (?, ?, ?, ?, 0)",
                    row,
                )
        old.execute("delete from entries where position = 6")
        old.commit()
    async with open_store(url(db)) as store:
        one = await store.read(entries.history, "one")
        assert [(e.session_id, e.seq, e.message["content"]) for e in one] == [
            ("one", n, f"one {n}") for n in (1, 2, 3)
        ]
        assert (await store.write(entries.append, "two", MESSAGE)).seq == 3
        placed = await store.read(lambda tx: tx.rows("entries_from_position", position=0, limit=9))
        assert [row[0] for row in placed if row[1] == "two"] == [4, 5, 7]


@pytest.mark.sqlite_file
async def test_a_database_of_somebody_else_is_not_taken_over(db: Path) -> None:
    db.parent.mkdir()
    with contextlib.closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("create table theirs (x)")
    with pytest.raises(StoreError, match="not a Hobnob store"):
        async with open_store(url(db)):
            pass
    with contextlib.closing(sqlite3.connect(db)) as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [("theirs",)]


@pytest.mark.sqlite_file
async def test_another_name_for_the_file_is_the_same_store(db: Path, tmp_path: Path) -> None:
    async with open_store(url(db)):
        (tmp_path / "alias.db").symlink_to(db)
        with pytest.raises(StoreInUse):
            async with open_store(url(tmp_path / "alias.db")):
                pass


async def test_asking_who_has_the_store_keeps_nobody_from_opening_it(db: Path) -> None:
    async with open_store(url(db)):
        pass
    asking = True

    def ask() -> None:
        while asking:
            sqlite_file.holder(db)

    asker = asyncio.create_task(asyncio.to_thread(ask))
    try:
        for _ in range(30):
            async with open_store(url(db)):
                pass
    finally:
        asking = False
        await asker
    assert hobnob.store.holder(url(db)) is None


async def test_an_error_comes_out_as_it_is(db: Path) -> None:
    with pytest.raises(SessionNotFound):
        async with open_store(url(db), transcripts=db.parent) as store:
            await store.read(sessions.get, "agent:nobody:main")


@pytest.mark.sqlite_file
async def test_a_second_process_is_refused_with_the_pid_of_the_first(db: Path) -> None:
    async with open_store(url(db)):
        code = (
            "import asyncio, sys\nfrom hobnob.store import open_store\n"
            "async def main():\n    async with open_store(sys.argv[1]): pass\nasyncio.run(main())"
        )
        run = subprocess.run([sys.executable, "-c", code, url(db)], capture_output=True, text=True)
        assert run.returncode != 0
        assert f"in use by process {os.getpid()}" in run.stderr
        with pytest.raises(StoreInUse) as refusal:
            async with open_store(url(db)):
                pass
        assert refusal.value.pid == os.getpid() == hobnob.store.holder(url(db))
    async with open_store(url(db)):
        pass
    assert hobnob.store.holder(url(db)) is None


@pytest.mark.sqlite_file
async def test_a_reader_from_outside_never_disturbs_the_store(db: Path) -> None:
    async with open_store(url(db)) as store:
        session = await fill(store, 10)
        log = db.with_name("hobnob.db-wal")
        before = log.stat().st_ino
        for _ in range(3):
            look = (
                "import sqlite3, sys\n"
                "print(sqlite3.connect(sys.argv[1]).execute('select count(*) from entries').fetchone()[0])"
            )
            run = subprocess.run([sys.executable, "-c", look, db], capture_output=True, text=True)
            assert run.stdout.strip() == str(await store.read(entries.last_seq, session.session_id))
            await fill(store, 5)
        assert log.stat().st_ino == before
        assert await store.read(entries.last_seq, session.session_id) == 25


@pytest.mark.sqlite_file
async def test_a_reader_that_stays_does_not_keep_the_store_from_writing(db: Path) -> None:
    async with open_store(url(db)) as store:
        session = await fill(store, 3)
        outside = sqlite3.connect(db)
        outside.execute("begin")
        assert outside.execute("select count(*) from entries").fetchone() == (3,)
        await fill(store, 50)
        assert outside.execute("select count(*) from entries").fetchone() == (3,)
        outside.close()
        assert await store.read(entries.last_seq, session.session_id) == 53


@pytest.mark.sqlite_file
async def test_a_backup_made_while_writing_is_a_whole_store(db: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    async with open_store(url(db)) as store:
        session = await fill(store, 200)
        writing = asyncio.create_task(fill(store, 500))
        await asyncio.to_thread(sqlite_file.backup, db, copy)
        await writing
    assert statedir.mode(copy) == 0o600
    assert sqlite_file.integrity(copy) == []
    async with open_store(url(copy)) as store:
        stored = [e.seq for e in await store.read(entries.history, session.session_id, limit=1000)]
        assert stored == list(range(1, len(stored) + 1))
        assert len(stored) >= 200


async def test_a_backup_never_replaces_a_file(db: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    async with open_store(url(db)):
        with pytest.raises(StoreUnwritable, match="exists"):
            sqlite_file.backup(db, target)
    assert target.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


@pytest.mark.sqlite_file
@pytest.mark.parametrize("damage", ["not a database", "a hole in the middle"])
async def test_a_damaged_database_is_refused_with_what_to_do(db: Path, damage: str) -> None:
    async with open_store(url(db)) as store:
        await fill(store, 300)
    data = bytearray(db.read_bytes())
    if damage == "not a database":
        data[:100] = b"x" * 100
    else:
        data[4096:] = b"\xff" * (len(data) - 4096)
    db.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="damaged") as refusal:
        async with open_store(url(db)) as store:
            await fill(store, 1)
    assert "backup" in str(refusal.value.fix)
    assert sqlite_file.integrity(db) != []


@pytest.mark.sqlite_file
async def test_a_database_of_a_newer_version_is_refused(db: Path) -> None:
    async with open_store(url(db)):
        pass
    with contextlib.closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("insert into migrations values (9999, '9999_future', 'x', 0)")
    with pytest.raises(StoreTooNew, match="9999"):
        async with open_store(url(db)):
            pass


@pytest.mark.sqlite_file
async def test_a_state_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreUnwritable) as refusal:
        async with open_store(f"sqlite:///{tmp_path}/file/hobnob.db"):
            pass
    assert "HOBNOB_HOME" in str(refusal.value.fix)


@pytest.mark.sqlite_file
def test_a_read_only_state_folder_is_refused() -> None:
    """As an ordinary user: root may write everywhere, so the child process gives its rights up."""
    code = """
import asyncio, os, sys
import hobnob.store
from hobnob.errors import StoreUnwritable
from hobnob.store import open_store

if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)

async def main():
    async with open_store(f"sqlite:///{sys.argv[1]}/hobnob.db"):
        print("opened")

try:
    asyncio.run(main())
except StoreUnwritable as refusal:
    print("refused:", refusal.message)
"""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        run = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
        Path(folder).chmod(0o755)
    assert run.stdout.startswith(f"refused: {folder}/hobnob.db.lock"), run.stdout + run.stderr


@pytest.mark.sqlite_file
async def test_files_are_private_whatever_the_umask(db: Path, umask: int) -> None:
    async with open_store(url(db), transcripts=db.parent) as store:
        await fill(store, 3)
    async with open_store(url(db), transcripts=db.parent) as store:
        await fill(store, 3)
        modes = {p: statedir.mode(p) for p in [db.parent, *db.parent.rglob("*")]}
    assert {p.suffix for p in modes} >= {".db", ".db-wal", ".db-shm", ".lock", ".jsonl"}
    assert {oct(m) for p, m in modes.items() if p.is_dir()} == {"0o700"}
    assert {oct(m) for p, m in modes.items() if p.is_file()} == {"0o600"}


async def test_a_closed_store_says_so(db: Path) -> None:
    async with open_store(url(db)) as store:
        pass
    with pytest.raises(StoreClosed):
        await store.write(sessions.find, "x")
    with pytest.raises(StoreClosed):
        await store.read(sessions.find, "x")


async def test_what_waits_when_the_store_closes_is_still_written(db: Path) -> None:
    async with open_store(url(db)) as store:
        session = await fill(store, 0)
        waiting = [
            asyncio.ensure_future(store.write(entries.append, session.session_id, MESSAGE)) for _ in range(20)
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    async with open_store(url(db)) as store:
        assert await store.read(entries.last_seq, session.session_id) == 20


@pytest.mark.sqlite_file
def test_the_sqlite_shell_reads_the_store_as_people_would(db: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("the sqlite3 shell is not installed")

    async def main() -> str:
        async with open_store(url(db)) as store:
            await fill(store, 4)
            shell = ["sqlite3", str(db), "select max(seq) from entries"]
            run = await asyncio.to_thread(subprocess.run, shell, capture_output=True, text=True)
            await fill(store, 1)
            return run.stdout

    assert asyncio.run(main()).strip() == "4"
