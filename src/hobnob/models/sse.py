"""Parser for server-sent events: bytes in, the data of complete events out.

Other fields than `data` are ignored: all supported formats repeat the event name in the data. Lines end in
LF or CRLF.
"""

from __future__ import annotations

from hobnob.models.failures import CallFailed, not_a_stream

MAX_EVENT_BYTES = 16 * 1024 * 1024
MAX_STREAM_BYTES = 128 * 1024 * 1024
_STRAY_BYTES = 4096  # of a line that belongs to no event stream, kept for the log
_OTHER_FIELDS = (b"event:", b"id:", b"retry:", b":")


class EventParser:
    """Incremental parser. Raises CallFailed when an event or the stream exceeds its size limit."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._partial_line: list[bytes] = []  # the pieces of the incomplete line
        self._partial_line_bytes = 0
        self._event_lines: list[bytes] = []  # the lines of the incomplete event
        self._event_bytes = 0
        self._total_bytes = 0
        self._has_events = False
        self._stray_line = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that ended in this chunk."""
        self._total_bytes += len(chunk)
        # Chunks without a line end are collected: joining each time would take quadratic time.
        if b"\n" not in chunk:
            self._partial_line.append(chunk)
            self._partial_line_bytes += len(chunk)
            self._check_size()
            return []
        if self._partial_line:
            chunk = b"".join([*self._partial_line, chunk])
        *lines, rest = chunk.split(b"\n")
        self._partial_line, self._partial_line_bytes = ([rest], len(rest)) if rest else ([], 0)
        events = self._parse_lines(lines)
        self._check_size()
        return events

    def end(self) -> list[bytes]:
        """The rest at end of stream: some servers omit the last blank line."""
        events = self._parse_lines([b"".join(self._partial_line), b""])
        self._partial_line = []
        if not self._has_events and self._stray_line:
            raise not_a_stream(self._stray_line)
        return events

    def _parse_lines(self, lines: list[bytes]) -> list[bytes]:
        events = []
        data = self._event_lines
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
                self._event_bytes += len(line)
            elif not line or line == b"\r":
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
                    self._event_bytes = 0
            elif not self._stray_line and not line.startswith(_OTHER_FIELDS):
                self._stray_line = line[:_STRAY_BYTES]
        if events:
            self._has_events = True
        return events

    def _check_size(self) -> None:
        if (
            self._partial_line_bytes + self._event_bytes > self._max_event_bytes
            or self._total_bytes > MAX_STREAM_BYTES
        ):
            raise CallFailed("garbled", "sent an answer that exceeds the size limit")
