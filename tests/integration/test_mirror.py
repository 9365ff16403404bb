"""The transcript files: they follow the database, whatever happens to them or to us."""

import asyncio
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LIMIT_S

from hobnob.keys import parse
from hobnob.store import Store, entries, mirror, open_store, sessions
from hobnob.types import Session


def url(db: Path) -> str:
    return f"sqlite:///{db}"


async def say(store: Store, session: Session, *texts: str) -> None:
    for text in texts:
        await store.write(entries.append, session.session_id, {"role": "user", "content": text})


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def readable(path: Path) -> bool:
    """Whether the file is whole: it may just be being written."""
    try:
        return all(isinstance(line.get("seq"), int) or line["type"] == "session" for line in lines(path))
    except (json.JSONDecodeError, KeyError):
        return False


def said(path: Path) -> list[str]:
    header, *rest = lines(path) or [{}]
    if header.get("type") == "session":
        assert [line["seq"] for line in rest] == list(range(1, len(rest) + 1))
    return [line["message"]["content"] for line in rest]


@pytest.fixture
def session() -> Session:
    return Session.of(parse("agent:a:main"))


@pytest.fixture
def file(db: Path, session: Session) -> Path:
    return mirror.path_of(db.parent, "a", session.session_id)


async def start(store: Store, session: Session, *texts: str) -> None:
    await store.write(sessions.ensure, session)
    await say(store, session, *texts)


@pytest.mark.promise("transcript.files_are_plain")
async def test_a_transcript_is_a_file_with_one_message_a_line(db: Path, session: Session, file: Path) -> None:
    async with open_store(url(db), transcripts=db.parent) as store:
        await start(store, session, "one", "two")
    header, first, second = lines(file)
    assert (header["id"], header["sessionKey"]) == (session.session_id, session.key)
    assert first["message"] == {"role": "user", "content": "one"}
    assert (first["parentId"], second["parentId"]) == (None, first["id"])
    assert first["timestamp"].endswith("Z")


@pytest.mark.promise("transcript.files_follow")
async def test_the_file_follows_while_the_store_is_open(db: Path, session: Session, file: Path) -> None:
    async with open_store(url(db), transcripts=db.parent) as store:
        for number in range(3):
            await start(store, session, f"message {number}")
            async with asyncio.timeout(LIMIT_S):
                while not file.exists() or not readable(file) or len(lines(file)) < number + 2:
                    await asyncio.sleep(0.01)
    assert said(file) == ["message 0", "message 1", "message 2"]


@pytest.mark.promise("transcript.files_follow")
async def test_what_was_written_without_a_mirror_is_caught_up(db: Path, session: Session, file: Path) -> None:
    async with open_store(url(db), transcripts=db.parent) as store:
        await start(store, session, "one")
    async with open_store(url(db)) as store:
        await start(store, session, "two", "three")
    assert said(file) == ["one"]
    async with open_store(url(db), transcripts=db.parent):
        pass
    assert said(file) == ["one", "two", "three"]


@pytest.mark.promise("transcript.database_is_the_truth")
@pytest.mark.parametrize("append", [True, False])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "rubbish", "edited", "note", "odd", "behind"])
async def test_a_file_that_was_lost_or_damaged_is_written_anew(
    db: Path, session: Session, file: Path, damage: str, append: bool
) -> None:
    async with open_store(url(db), transcripts=db.parent) as store:
        await start(store, session, "one", "two")
    whole = file.read_text()
    match damage:
        case "missing":
            file.unlink()
        case "cut":
            file.write_text(whole[:-10])
        case "empty":
            file.write_text("")
        case "rubbish":
            file.write_text(whole + "\0\0\0\n")
        case "edited":
            file.write_text(whole.replace("two", "too"))
        case "note":
            file.write_text(whole + '{"note": "hi"}\n')
        case "odd":
            file.write_text(whole + '{"seq": "x"}\n')
        case "behind":
            file.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    async with open_store(url(db), transcripts=db.parent) as store:
        if append:
            await start(store, session, "three")
        expected = ["one", "two", "three"] if append else ["one", "two"]
        async with asyncio.timeout(LIMIT_S):
            while not file.exists() or not readable(file) or said(file) != expected:
                await asyncio.sleep(0.01)
    assert said(file) == expected


async def test_a_file_that_cannot_be_written_does_not_hold_up_the_others(
    db: Path, session: Session, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Session.of(parse("agent:a:cron:1"))
    file.parent.mkdir(parents=True)
    file.mkdir()
    async with open_store(url(db), transcripts=db.parent) as store:
        await start(store, session, "one")
        await start(store, other, "two")
    assert said(mirror.path_of(db.parent, "a", other.session_id)) == ["two"]
    assert session.session_id in caplog.text


@pytest.mark.promise("transcript.database_is_the_truth")
async def test_a_missing_file_comes_back_without_anybody_writing(
    db: Path, session: Session, file: Path
) -> None:
    async with open_store(url(db), transcripts=db.parent) as store:
        await start(store, session, "one")
    file.unlink()
    async with open_store(url(db), transcripts=db.parent), asyncio.timeout(LIMIT_S):
        while not file.exists():
            await asyncio.sleep(0.01)
    assert said(file) == ["one"]


@pytest.mark.sqlite_file
@pytest.mark.promise("transcript.database_is_the_truth")
async def test_a_file_ahead_of_a_restored_database_is_written_anew(
    db: Path, session: Session, file: Path
) -> None:
    async with open_store(url(db), transcripts=db.parent) as store:
        await start(store, session, "one", "gone", "gone too")
    connection = sqlite3.connect(db)
    connection.execute("delete from entries where seq > 1")
    connection.execute("update followers set position = 1")
    connection.commit()
    connection.close()
    async with open_store(url(db), transcripts=db.parent) as store:
        await start(store, session, "instead")
    assert said(file) == ["one", "instead"]


async def test_the_file_of_a_deleted_session_goes_even_after_a_crash(
    db: Path, session: Session, file: Path
) -> None:
    async with open_store(url(db), transcripts=db.parent) as store:
        await start(store, session, "one")
    async with open_store(url(db)) as store:  # nobody there to remove the file, as after a crash
        await store.write(sessions.delete, session.key)
    assert file.exists()
    async with open_store(url(db), transcripts=db.parent):
        pass
    assert not file.exists()


@pytest.mark.promise("transcript.files_are_plain")
async def test_a_long_transcript_is_rebuilt_in_order(db: Path, session: Session, file: Path) -> None:
    texts = [f"{number} " + "x" * 500 for number in range(1200)]
    async with open_store(url(db)) as store:
        await store.write(sessions.ensure, session)
        await asyncio.gather(*(say(store, session, text) for text in texts))
    async with open_store(url(db), transcripts=db.parent):
        pass
    assert said(file) == texts


async def test_trouble_with_the_files_does_not_trouble_the_store(
    db: Path, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(url(db)):
        pass
    db.parent.mkdir(exist_ok=True)
    (db.parent / "agents").write_text("in the way")
    async with open_store(url(db), transcripts=db.parent) as store:
        await start(store, session, "one")
        assert await store.read(entries.last_seq, session.session_id) == 1
    assert "transcript files not written" in caplog.text


async def test_a_mirror_that_loses_its_role_ends_what_it_writes_before_another_begins(
    db: Path, session: Session, file: Path
) -> None:
    busy, free = threading.Semaphore(0), threading.Event()

    def block(_tx: object) -> None:
        busy.release()
        free.wait(LIMIT_S)

    async with open_store(url(db)) as store, asyncio.TaskGroup() as group:
        await start(store, session, "one")
        blocking = [group.create_task(store.read(block)) for _ in range(8)]  # every reader of either store
        await asyncio.to_thread(busy.acquire)
        following = group.create_task(mirror.Mirror(store, db.parent).run())
        for _ in range(10):
            await asyncio.sleep(0)
        following.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not following.done()
        free.set()
        await asyncio.wait([following, *blocking])
        assert following.cancelled()
        assert said(file) == ["one"]
