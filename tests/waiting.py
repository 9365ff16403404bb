"""Waiting in tests: for an event, with a limit that only keeps a broken test from hanging."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

LIMIT_S = 60  # a loaded machine may be ten times slower; no test depends on being quick


async def until(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
    """Poll a condition that nothing announces."""
    pause_s = 0.005
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.1)


class TimeLimit:
    """A time limit of the gateway that is over when the test says so. It is known by its length.

    Set the limit in question to `SECONDS`: nothing else takes that long.
    """

    SECONDS = 599

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._found: list[asyncio.Timeout] = []
        timeout = asyncio.timeout

        def recorded(delay: float | None) -> asyncio.Timeout:
            limit = timeout(delay)
            if delay == self.SECONDS:
                self._found.append(limit)
            return limit

        monkeypatch.setattr(asyncio, "timeout", recorded)

    @property
    def begun(self) -> bool:
        return bool(self._found)

    def expire(self) -> None:
        [limit] = self._found
        limit.reschedule(asyncio.get_running_loop().time())
