"""The log: one line per event, with the ids of turn and session. No message text, no secrets."""

from __future__ import annotations

import logging
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson

from hobnob.events import (
    Change,
    DeliveryChanged,
    ExchangeChanged,
    SessionChanged,
    SessionDeleted,
    TurnChanged,
)
from hobnob.types import Turn

_KEPT = 2_000  # log records kept in memory
_log = logging.getLogger("hobnob")
_ERROR_CHARS = 500  # of the reason of a failed turn in its log line


class Recent(logging.Handler):
    """The most recent lines, for clients that read the log of the gateway."""

    def __init__(self) -> None:
        super().__init__()
        self._records: deque[logging.LogRecord] = deque(maxlen=_KEPT)  # formatted when they are read
        self.last = 0  # the number of lines logged so far

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)
        self.last += 1

    def since(self, cursor: int | None, limit: int, max_bytes: int) -> tuple[list[str], int, bool]:
        """The lines after a cursor, oldest first, the next cursor, and whether older ones are lost.

        Without a cursor, the newest lines.
        """
        oldest = self.last - len(self._records)
        start = max(self.last - limit, oldest) if cursor is None else min(max(cursor, oldest), self.last)
        found: list[str] = []
        for record in islice(self._records, start - oldest, start - oldest + limit):
            line = self.format(record)
            max_bytes -= len(line) + 1
            if max_bytes < 0 and found:
                break
            found.append(line)
        return found, start + len(found), cursor is not None and cursor < oldest


recent = Recent()


class LineFormatter(logging.Formatter):
    """Renders a record with the fields of `_event` as one line."""

    def __init__(self, render: Callable[[dict[str, Any]], str], *, utc: bool) -> None:
        super().__init__()
        self._render = render
        self._utc = utc

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        shown = at if self._utc else at.astimezone()
        line = {
            "timestamp": shown.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **record.__dict__.get("fields", {}),
            "logger": record.name,
        }
        if record.exc_info:
            line["exc_info"] = record.exc_info
        return self._render(line)


def configure(*, as_json: bool, level: int = logging.INFO) -> None:
    """Log to stderr: as text, or one JSON object per line."""
    text = _terminal_renderer() if sys.stderr.isatty() else _logfmt
    stderr = logging.StreamHandler(sys.stderr)
    stderr.setFormatter(LineFormatter(_json if as_json else text, utc=as_json))
    recent.setFormatter(LineFormatter(_json, utc=as_json))
    root = logging.getLogger()
    root.handlers[:] = [stderr, recent]
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no line shows them
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _terminal_renderer() -> Callable[[dict[str, Any]], str]:
    import structlog  # only a terminal needs it

    renderer = structlog.dev.ConsoleRenderer(pad_event_to=0)
    return lambda line: str(renderer(None, "", line))


def _json(line: dict[str, Any]) -> str:
    return orjson.dumps(_with_traceback(line), default=str).decode()


def _logfmt(line: dict[str, Any]) -> str:
    return " ".join(f"{name}={_quoted(value)}" for name, value in _with_traceback(line).items())


def _quoted(value: object) -> str:
    text = "" if value is None else str(value)
    if " " in text or "=" in text or '"' in text:
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text.replace("\n", "\\n")


def _with_traceback(line: dict[str, Any]) -> dict[str, Any]:
    """The exception of a line as text."""
    if error := line.pop("exc_info", None):
        line["exception"] = "".join(traceback.format_exception(*error)).rstrip()
    return line


def _event(level: int, event: str, **fields: Any) -> None:
    """Log an event with its fields. Cheaper than `Logger.log`, which looks up the calling line."""
    if _log.isEnabledFor(level):
        _log.handle(_log.makeRecord(_log.name, level, __file__, 0, event, (), None, extra={"fields": fields}))


def log_changes(changes: Sequence[Change]) -> None:
    """Log what a commit changed. To be subscribed to the store."""
    if not _log.isEnabledFor(logging.INFO):
        return
    for change in changes:
        match change:
            case TurnChanged(turn) if turn.status == "ended":
                _turn_ended(turn)
            case TurnChanged(turn) if turn.status == "queued":
                _event(
                    logging.DEBUG, "turn accepted", run=turn.turn_id, session=turn.session_key, step=turn.step
                )
            case SessionChanged(session, reason) if reason != "patch":
                _event(logging.INFO, f"session {reason}", session=session.key)
            case SessionDeleted(key):
                _event(logging.INFO, "session delete", session=key)
            case ExchangeChanged(exchange) if exchange.state != "open":
                ids = {
                    "requester": exchange.requester_key,
                    "target": exchange.target_key,
                    "hop": exchange.hop,
                }
                _event(
                    logging.INFO,
                    "exchange ended",
                    exchange=exchange.exchange_id,
                    end=exchange.end_reason,
                    **ids,
                )
            case DeliveryChanged(delivery) if delivery.state not in ("pending", "sending"):
                ids = {"session": delivery.session_key, "channel": delivery.channel}
                _event(logging.INFO, f"delivery {delivery.state}", delivery=delivery.delivery_id, **ids)


def _turn_ended(turn: Turn) -> None:
    fields: dict[str, Any] = {"run": turn.turn_id, "session": turn.session_key, "step": turn.step}
    if turn.started_at_ms is not None and turn.ended_at_ms is not None:
        fields["ms"] = turn.ended_at_ms - turn.started_at_ms
    if turn.merged_into is not None:
        _event(logging.INFO, "turn merged", into=turn.merged_into, **fields)
    elif turn.outcome in ("ok", "no_output"):
        _event(logging.INFO, "turn ended", outcome=turn.outcome, **fields)
    else:
        _event(
            logging.WARNING,
            "turn ended",
            outcome=turn.outcome,
            error=(turn.error or "")[:_ERROR_CHARS],
            **fields,
        )
