"""Memory does not grow with the number of sessions: what is kept for each has a bound."""

import asyncio
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S, until

from hobnob.keys import parse
from hobnob.processes.service import Program, open_processes
from hobnob.sandbox import ProcessSpec
from hobnob.store import Tx, entries, open_store, sessions
from hobnob.store.engine import sqlite_file
from hobnob.store.mirror import Mirror, path_of
from hobnob.types import Session


def talk(tx: Tx, count: int, first: int = 0) -> list[str]:
    """Sessions with a message each. Returns the ids of their transcripts."""
    ids = []
    for number in range(first, first + count):
        session = sessions.ensure(tx, Session.of(parse(f"agent:a:hook:{number}")))
        entries.append(tx, session.session_id, {"role": "user", "content": f"hello {number}"})
        ids.append(session.session_id)
    return ids


async def test_the_mirror_knows_a_bounded_number_of_files_and_still_follows_all(db: Path) -> None:
    async with open_store(f"sqlite:///{db}") as store, asyncio.TaskGroup() as group:
        mirror = Mirror(store, db.parent)
        following = group.create_task(mirror.run())
        ids = await store.write(talk, 1_500)
        last = path_of(db.parent, "a", ids[-1])
        await until(last.exists)
        await store.write(talk, 1)  # the first one again, which is no longer known
        mirror.stop()
        await following
        assert len(mirror._files) <= 1_000
    assert len(path_of(db.parent, "a", ids[0]).read_text().splitlines()) == 3


@pytest.mark.sqlite_file
async def test_the_page_caches_of_all_connections_are_small_together(db: Path) -> None:
    async with open_store(f"sqlite:///{db}"):
        kinds = [False, True, True, True]  # a writer, two reader threads and the event loop
        connections = [sqlite_file.connect(db, read_only=read_only) for read_only in kinds]
        sizes = [connection.execute("pragma cache_size").fetchone()[0] for connection in connections]
        for connection in connections:
            connection.close()
    assert max(sizes) < 0  # in kilobytes, not in pages
    assert -sum(sizes) <= 16 * 1024


async def test_ended_programs_of_many_sessions_are_forgotten(tmp_path: Path) -> None:
    async with open_processes(tmp_path) as processes:
        started = []
        for number in range(230):
            program = Program(f"agent:a:hook:{number}", "t", "true", 30)
            await processes.start(ProcessSpec(["/bin/true"], {}), program)
            started.append(program)
            async with asyncio.timeout(LIMIT_S):
                await program.ended.wait()
        kept = [program for program in started if processes.of(program.session_key)]
        assert started[-1] in kept
        assert len(kept) <= 201
