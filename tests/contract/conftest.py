"""Every test in this folder runs on every store."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests import postgres

from hobnob.keys import parse
from hobnob.store import Store, open_store, sessions
from hobnob.types import Session

Opener = Callable[[], AbstractAsyncContextManager[Store]]


@pytest.fixture(params=["sqlite", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same store again and again."""
    url = postgres.new_database() if request.param == "postgres" else f"sqlite:///{tmp_path}/hobnob.db"
    return lambda: open_store(url)


@pytest.fixture
async def store(opener: Opener) -> AsyncIterator[Store]:
    async with opener() as store:
        yield store


@pytest.fixture
async def session(store: Store) -> Session:
    return await store.write(sessions.create, Session.of(parse("agent:a:main")))
