"""Hearing of what happens: which sessions change, and what is said in one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hobnob.api.presence import ClientConnection
from hobnob.api.rpc import Call, Payload, method
from hobnob.errors import BadInput


@method("sessions.subscribe", scope="operator.read")
async def sessions_subscribe(call: Call) -> Payload:
    """Hear which sessions and exchanges change (`sessions.changed`, `exchange.changed`)."""
    _listener(call).watch()
    return {"subscribed": True}


@method("sessions.unsubscribe", scope="operator.read")
async def sessions_unsubscribe(call: Call) -> Payload:
    _listener(call).watch(on=False)
    return {"subscribed": False}


@method("sessions.messages.subscribe", scope="operator.read")
async def messages_subscribe(
    call: Call,
    key: str,
    after: Annotated[int, Field(ge=0, lt=2**63)] | None = None,
    session_id: str | None = None,
    include_approvals: bool | None = None,
) -> Payload:
    """Hear all of a session. With `after`, the messages since that one come first, none lost, none twice.

    `sessionId` says of which transcript that message is: after a reset, the new one is told from its start.
    """
    session, last = await call.services.sessions.end_of(call.operator, key)
    if session_id not in (None, session.session_id):
        after = 0
    place = last if after is None else after
    _listener(call).read(session.key, session.session_id, place)
    return {"subscribed": True, "key": session.key, "sessionId": session.session_id, "after": place}


@method("sessions.messages.unsubscribe", scope="operator.read")
async def messages_unsubscribe(call: Call, key: str) -> Payload:
    session = await call.services.sessions.resolve(call.operator, key, verb="history")
    _listener(call).unfollow(session.key)
    return {"subscribed": False, "key": session.key}


def _listener(call: Call) -> ClientConnection:
    if call.listener is None:
        raise BadInput(
            "Nobody is there to be told: this needs a WebSocket.", fix="Over HTTP, follow=1 does it."
        )
    return call.listener
