"""The read-only view of a store that another process has open."""

import asyncio
from pathlib import Path

import pytest

from hobnob.errors import NotFound, StoreError
from hobnob.keys import parse
from hobnob.store import entries, open_reader, open_store, sessions
from hobnob.types import Session


async def test_a_reader_sees_each_commit_of_the_open_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hobnob.db"
    async with open_store(url) as store, open_reader(url) as reader:
        assert await reader.read(sessions.page) == []
        session = await store.write(sessions.create, Session.of(parse("main")))
        await store.write(entries.append, session.session_id, {"role": "user", "content": "hi"})
        assert await reader.read(sessions.find, session.key) is not None
        found = await asyncio.gather(
            *(reader.read(entries.after, session.session_id, 0, limit=9) for _ in range(20))
        )
        assert [[entry.message["content"] for entry in page] for page in found] == [["hi"]] * 20


async def test_a_reader_cannot_write(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hobnob.db"
    async with open_store(url) as store:
        await store.write(sessions.create, Session.of(parse("main")))
    async with open_reader(url) as reader:
        with pytest.raises(StoreError):
            await reader.read(sessions.archive, "agent:main:main")
        assert len(await reader.read(sessions.page)) == 1


@pytest.mark.sqlite_file
async def test_a_reader_does_not_create_a_store(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no store"):
        async with open_reader(f"sqlite:///{tmp_path}/none.db"):
            pass
    assert list(tmp_path.iterdir()) == []
