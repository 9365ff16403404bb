"""Exchanges: who told whom what."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from hobnob.api.rpc import Call, Payload, method
from hobnob.errors import BadInput, NotFound
from hobnob.sessions.presentation import encode_cursor as place

_ID = re.compile(r"[0-9a-f-]{1,36}")
_TIME_DIGITS = 12  # of an id: the time it was made, in milliseconds
_SLACK_MS = 60_000  # between the making of an id and the time noted beside it
_NAMED = 5


@method("exchanges.list", scope="operator.read")
async def exchanges_list(
    call: Call, limit: Annotated[int, Field(ge=1, le=200)] = 50, cursor: str | None = None
) -> Payload:
    """Exchanges between sessions the caller may read, newest first."""
    return await call.services.sessions.exchanges(call.operator, limit=limit, cursor=cursor)


@method("exchanges.get", scope="operator.read")
async def exchanges_get(call: Call, id: str) -> Payload:
    """One exchange, step by step. The beginning of its id is enough when no other begins so."""
    wanted = id.strip().lower()
    found = await _beginning_with(call, wanted) if _ID.fullmatch(wanted) else []
    if not found:
        raise NotFound(f"There is no exchange {id.strip()}.")
    if len(found) > 1 and wanted not in found:
        listed = ", ".join(found[:_NAMED]) + (", …" if len(found) > _NAMED else "")
        raise BadInput(f"More than one exchange begins with {wanted}: {listed}.", fix="Give more of the id.")
    return await call.services.sessions.exchange(call.operator, wanted if wanted in found else found[0])


async def _beginning_with(call: Call, prefix: str) -> list[str]:
    """Ids begin with the time, so the list is read only where the prefix says it can be."""
    digits = prefix.replace("-", "")[:_TIME_DIGITS]
    first, last = (int(digits.ljust(_TIME_DIGITS, fill) or "0", 16) for fill in "0f")
    found: list[str] = []
    cursor: str | None = place(last + _SLACK_MS, "")
    while cursor is not None and len(found) <= _NAMED:
        page = await call.services.sessions.exchanges(call.operator, limit=200, cursor=cursor)
        found += [each["id"] for each in page["exchanges"] if each["id"].startswith(prefix)]
        past = page["exchanges"] and page["exchanges"][-1]["createdAt"] < first - _SLACK_MS
        cursor = None if past else page.get("nextCursor")
    return found
