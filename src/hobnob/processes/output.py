"""What a program says: its beginning and its end are kept, and a flood is taken in at a measured pace."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HEAD_BYTES, TAIL_BYTES = 16_000, 48_000

_READ_BYTES = 65_536
_FLOOD_BYTES = 1_000_000  # after which output is taken in at a measured pace
_FLOOD_PAUSE_S = 0.01


class Output:
    """The beginning and the end of what a program said; what is in between is counted."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._in_tail = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        if rest := data[room:] if room > 0 else data:
            self._tail.append(rest)
            self._in_tail += len(rest)
            while self._in_tail - len(self._tail[0]) >= TAIL_BYTES:
                self._in_tail -= len(self._tail.popleft())

    def text(self, since: int = 0) -> str:
        """What was said after the first `since` bytes, as far as it is kept."""
        tail = b"".join(self._tail)[-TAIL_BYTES:]
        tail_at = self.total - len(tail)
        head = bytes(self._head[since:])
        tail = tail[max(0, since - tail_at) :]
        lost = max(0, tail_at - max(since, len(self._head)))
        said = head.decode("utf-8", "replace")
        if lost:
            said += f"\n[… {lost:,} bytes left out …]\n"
        return said + tail.decode("utf-8", "replace")


@contextmanager
def reading(fd: int, output: Output) -> Iterator[Callable[[], None]]:
    """Take in what comes, gently when there is much of it. Gives a function that takes in what is left."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    again: asyncio.TimerHandle | None = None

    def take() -> bool:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        output.add(data)
        return bool(data)

    def readable() -> None:
        nonlocal again
        if not take():
            loop.remove_reader(fd)
        elif output.total > _FLOOD_BYTES:
            loop.remove_reader(fd)
            again = loop.call_later(_FLOOD_PAUSE_S, loop.add_reader, fd, readable)

    def rest() -> None:
        for _ in range(32):  # what a pipe holds at most; somebody may go on writing
            if not take():
                break

    loop.add_reader(fd, readable)
    try:
        yield rest
    finally:
        if again is not None:
            again.cancel()
        loop.remove_reader(fd)
        os.close(fd)
