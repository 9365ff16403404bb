"""The log: one line per event, with the ids of turn and session. No message text, no secrets."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson
import structlog

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
_log = structlog.stdlib.get_logger("hobnob")
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


def configure(*, as_json: bool, level: int = logging.INFO) -> None:
    """Log to stderr: as text, or one JSON object per line."""
    common: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        _stamp(utc=as_json),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *common,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    text: Any = structlog.dev.ConsoleRenderer(pad_event_to=0)
    if not sys.stderr.isatty():
        text = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])
    json = structlog.processors.JSONRenderer(lambda event, **_: orjson.dumps(event, default=str).decode())

    def formatter(renderer: Any) -> logging.Formatter:
        drop = structlog.stdlib.ProcessorFormatter.remove_processors_meta
        formats_errors = isinstance(renderer, structlog.dev.ConsoleRenderer)
        errors = [] if formats_errors else [structlog.processors.format_exc_info]
        return structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common, processors=[drop, *errors, renderer]
        )

    stderr = logging.StreamHandler(sys.stderr)
    stderr.setFormatter(formatter(json if as_json else text))
    recent.setFormatter(formatter(json))
    root = logging.getLogger()
    root.handlers[:] = [stderr, recent]
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _stamp(*, utc: bool) -> structlog.typing.Processor:
    """Add the time at which a line was logged, with its zone."""

    def add_time(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        record = event.get("_record")  # of a line from `logging`, which may be formatted much later
        at = datetime.fromtimestamp(record.created if record else time.time(), UTC)
        shown = at if utc else at.astimezone()
        event["timestamp"] = shown.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return event

    return add_time


def log_changes(changes: Sequence[Change]) -> None:
    """Log what a commit changed. To be subscribed to the store."""
    if not logging.getLogger("hobnob").isEnabledFor(logging.INFO):
        return
    for change in changes:
        match change:
            case TurnChanged(turn) if turn.status == "ended":
                _turn_ended(turn)
            case TurnChanged(turn) if turn.status == "queued":
                _log.debug("turn accepted", run=turn.turn_id, session=turn.session_key, step=turn.step)
            case SessionChanged(session, reason) if reason != "patch":
                _log.info(f"session {reason}", session=session.key)
            case SessionDeleted(key):
                _log.info("session delete", session=key)
            case ExchangeChanged(exchange) if exchange.state != "open":
                ids = {
                    "requester": exchange.requester_key,
                    "target": exchange.target_key,
                    "hop": exchange.hop,
                }
                _log.info("exchange ended", exchange=exchange.exchange_id, end=exchange.end_reason, **ids)
            case DeliveryChanged(delivery) if delivery.state not in ("pending", "sending"):
                ids = {"session": delivery.session_key, "channel": delivery.channel}
                _log.info(f"delivery {delivery.state}", delivery=delivery.delivery_id, **ids)


def _turn_ended(turn: Turn) -> None:
    fields: dict[str, Any] = {"run": turn.turn_id, "session": turn.session_key, "step": turn.step}
    if turn.started_at_ms is not None and turn.ended_at_ms is not None:
        fields["ms"] = turn.ended_at_ms - turn.started_at_ms
    if turn.merged_into is not None:
        _log.info("turn merged", into=turn.merged_into, **fields)
    elif turn.outcome in ("ok", "no_output"):
        _log.info("turn ended", outcome=turn.outcome, **fields)
    else:
        _log.warning("turn ended", outcome=turn.outcome, error=(turn.error or "")[:_ERROR_CHARS], **fields)
