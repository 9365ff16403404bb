"""The output of a program: its head and tail are kept, and a flood is read at a limited rate."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

HEAD_BYTES, TAIL_BYTES = 16_000, 48_000

_READ_BYTES = 65_536
_FLOOD_BYTES = 1_000_000  # total after which reads are throttled
_FLOOD_PAUSE_S = 0.01


class Output:
    """The head and the tail of a program's output; the bytes in between are only counted."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        if rest := data[room:] if room > 0 else data:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
            while self._tail_bytes - len(self._tail[0]) >= TAIL_BYTES:
                self._tail_bytes -= len(self._tail.popleft())

    def text(self, since: int = 0) -> str:
        """The output after the first `since` bytes, as far as it is kept."""
        tail = b"".join(self._tail)[-TAIL_BYTES:]
        tail_start = self.total - len(tail)
        head = bytes(self._head[since:])
        tail = tail[max(0, since - tail_start) :]
        lost = max(0, tail_start - max(since, len(self._head)))
        text = head.decode("utf-8", "replace")
        if lost:
            text += f"\n[… {lost:,} bytes left out …]\n"
        return text + tail.decode("utf-8", "replace")


@contextmanager
def reading(pipe: IO[bytes], output: Output) -> Iterator[Callable[[], None]]:
    """Read a pipe into `output` as data arrives. Yields a function that reads what is left in it."""
    loop = asyncio.get_running_loop()
    fd = pipe.fileno()
    os.set_blocking(fd, False)
    resume: asyncio.TimerHandle | None = None

    def read_once() -> bool:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        output.add(data)
        return bool(data)

    def on_readable() -> None:
        nonlocal resume
        if not read_once():
            loop.remove_reader(fd)
        elif output.total > _FLOOD_BYTES:
            loop.remove_reader(fd)
            resume = loop.call_later(_FLOOD_PAUSE_S, loop.add_reader, fd, on_readable)

    def read_rest() -> None:
        for _ in range(32):  # as much as a pipe can hold: an escaped process may go on writing
            if not read_once():
                break

    loop.add_reader(fd, on_readable)
    try:
        yield read_rest
    finally:
        if resume is not None:
            resume.cancel()
        loop.remove_reader(fd)
        pipe.close()
