"""Methods on exchanges: what agents sent to each other."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from hobnob.api.rpc import Call, Payload, method
from hobnob.errors import BadInput, NotFound
from hobnob.sessions.exchange_log import TIMELINE_MAX
from hobnob.sessions.presentation import encode_cursor
from hobnob.types import now_ms

_ID = re.compile(r"[0-9a-f-]{1,36}")
_TIME_DIGITS = 12  # of an id: its creation time in milliseconds
_CLOCK_SLACK_MS = 60_000  # between the time in an id and the time stored beside it
_MAX_NAMED = 5


@method("exchanges.list", scope="operator.read")
async def exchanges_list(
    call: Call, limit: Annotated[int, Field(ge=1, le=200)] = 50, cursor: str | None = None
) -> Payload:
    """Exchanges between sessions the caller may read, newest first."""
    return await call.services.sessions.queries.exchanges(call.operator, limit=limit, cursor=cursor)


@method("exchanges.get", scope="operator.read")
async def exchanges_get(call: Call, id: str) -> Payload:
    """One exchange, step by step. A unique prefix of its id is enough."""
    prefix = id.strip().lower()
    found = await _ids_with_prefix(call, prefix) if _ID.fullmatch(prefix) else []
    if not found:
        raise NotFound(f"There is no exchange with the id {id.strip()!r}.")
    if len(found) > 1 and prefix not in found:
        listed = ", ".join(found[:_MAX_NAMED]) + (", …" if len(found) > _MAX_NAMED else "")
        raise BadInput(f"Several exchanges start with {prefix}: {listed}.", fix="Give more of the id.")
    exchange_id = prefix if prefix in found else found[0]
    return await call.services.sessions.queries.exchange(call.operator, exchange_id)


@method("exchanges.timeline", scope="operator.read")
async def exchanges_timeline(
    call: Call, limit: Annotated[int, Field(ge=1, le=TIMELINE_MAX)] = 50, cursor: str | None = None
) -> Payload:
    """Exchanges, newest first, with their steps, positions in the transcripts, and cost."""
    return await call.services.sessions.queries.timeline(call.operator, limit=limit, cursor=cursor)


@method("exchanges.traffic", scope="operator.read")
async def exchanges_traffic(call: Call, minutes: Annotated[int, Field(ge=1, le=7 * 24 * 60)] = 60) -> Payload:
    """Messages and cost per pair of sessions in the last minutes, and refused waits."""
    since_ms = now_ms() - minutes * 60_000
    return await call.services.sessions.queries.traffic(call.operator, since_ms)


async def _ids_with_prefix(call: Call, prefix: str) -> list[str]:
    """Ids start with their creation time, so only the exchanges of that time are read."""
    digits = prefix.replace("-", "")[:_TIME_DIGITS]
    first, last = (int(digits.ljust(_TIME_DIGITS, fill) or "0", 16) for fill in "0f")
    found: list[str] = []
    cursor: str | None = encode_cursor(last + _CLOCK_SLACK_MS, "")
    while cursor is not None and len(found) <= _MAX_NAMED:
        page = await call.services.sessions.queries.exchanges(call.operator, limit=200, cursor=cursor)
        found += [each["id"] for each in page["exchanges"] if each["id"].startswith(prefix)]
        past = page["exchanges"] and page["exchanges"][-1]["createdAt"] < first - _CLOCK_SLACK_MS
        cursor = None if past else page.get("nextCursor")
    return found
