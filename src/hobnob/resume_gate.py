"""`ResumeGate`: resume turns that ran at a crash a little apart, so that the cause crashes alone.

A turn that ran at two crashes in a row without committing a step is ended as failed. If all were resumed at
once, every turn that happened to run beside the cause would end with it.
"""

from __future__ import annotations

import asyncio


class ResumeGate:
    """One turn passes at a time: the next when it has committed a step or ended, or some time later."""

    def __init__(self, apart_s: float = 1.0) -> None:
        self._apart_s = apart_s
        self._waiting: set[str] = set()
        self._current: str | None = None
        self._opens = asyncio.Event()
        self._gate = asyncio.Lock()
        self._closed = False

    def add(self, turn_id: str) -> None:
        """Make a turn wait at the gate."""
        self._waiting.add(turn_id)

    async def wait(self, turn_id: str) -> None:
        """Return when the turn may be resumed; at once for a turn that was not added."""
        if turn_id not in self._waiting:
            return
        self._waiting.discard(turn_id)
        async with self._gate:
            if self._current is not None and not self._closed:
                await _set_within(self._opens, self._apart_s)
            self._current = turn_id
            self._opens.clear()

    def progressed(self, turn_id: str) -> None:
        """A turn has committed a step or ended: the next one may be resumed."""
        if turn_id == self._current:
            self._opens.set()

    def close(self) -> None:
        """Let every turn pass: the gateway stops, and none of them is resumed."""
        self._closed = True
        self._opens.set()


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
