"""Server-sent events: bytes in, the data of whole events out.

Only data counts here: the names of events stand in the data too, in every format we read. Lines end in a
line feed, with or without a carriage return in front.
"""

from __future__ import annotations

from hobnob.models.failures import CallFailed, excerpt

MAX_EVENT_BYTES = 16 * 1024 * 1024
MAX_STREAM_BYTES = 128 * 1024 * 1024
_OTHER_FIELDS = (b"event:", b"id:", b"retry:", b":")


class Events:
    """Takes a stream apart. Raises CallFailed when it is larger than anything we want to hold."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._open: list[bytes] = []  # the pieces of the line that has not ended yet
        self._open_bytes = 0
        self._data: list[bytes] = []  # the lines of the event that has not ended yet
        self._data_bytes = 0
        self._total_bytes = 0
        self._any = False
        self._stray = ""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that ended in this chunk."""
        self._total_bytes += len(chunk)
        # A chunk without a line end is only kept: joining each time would take quadratic time.
        if b"\n" not in chunk:
            self._open.append(chunk)
            self._open_bytes += len(chunk)
            self._check_size()
            return []
        if self._open:
            chunk = b"".join([*self._open, chunk])
        *lines, rest = chunk.split(b"\n")
        self._open, self._open_bytes = ([rest], len(rest)) if rest else ([], 0)
        events = self._take(lines)
        self._check_size()
        return events

    def end(self) -> list[bytes]:
        """What is left when the stream is over: some servers leave the last blank line out."""
        events = self._take([b"".join(self._open), b""])
        self._open = []
        if not self._any and self._stray:
            raise CallFailed("garbled", f"answered with something that is no event stream: {self._stray}")
        return events

    def _take(self, lines: list[bytes]) -> list[bytes]:
        events = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
                self._data_bytes += len(line)
            elif not line or line == b"\r":
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
                    self._data_bytes = 0
            elif not self._stray and not line.startswith(_OTHER_FIELDS):
                self._stray = excerpt(line)
        if events:
            self._any = True
        return events

    def _check_size(self) -> None:
        if (
            self._open_bytes + self._data_bytes > self._max_event_bytes
            or self._total_bytes > MAX_STREAM_BYTES
        ):
            raise CallFailed("garbled", "sent more than fits into one answer")
