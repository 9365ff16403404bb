"""Methods that subscribe a connection to events: of all sessions, or of one transcript."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hobnob.api.presence import ClientConnection
from hobnob.api.rpc import Call, Payload, method
from hobnob.errors import BadInput


@method("sessions.subscribe", scope="operator.read")
async def sessions_subscribe(call: Call) -> Payload:
    """Receive changes of sessions and exchanges (`sessions.changed`, `exchange.changed`)."""
    _connection(call).subscribe_sessions()
    return {"subscribed": True}


@method("sessions.unsubscribe", scope="operator.read")
async def sessions_unsubscribe(call: Call) -> Payload:
    _connection(call).subscribe_sessions(on=False)
    return {"subscribed": False}


@method("sessions.messages.subscribe", scope="operator.read")
async def messages_subscribe(
    call: Call,
    key: str,
    after: Annotated[int, Field(ge=0, lt=2**63)] | None = None,
    session_id: str | None = None,
    include_approvals: bool | None = None,
) -> Payload:
    """Receive all events of a session. With `after`, the messages since that one come first, without repeats.

    `sessionId` names the transcript of that message: after a reset, the new one is sent from its start.
    """
    session, last = await call.services.sessions.queries.last_position(call.operator, key)
    if session_id not in (None, session.session_id):
        after = 0
    position = last if after is None else after
    _connection(call).subscribe_messages(session.key, session.session_id, position)
    return {"subscribed": True, "key": session.key, "sessionId": session.session_id, "after": position}


@method("sessions.messages.unsubscribe", scope="operator.read")
async def messages_unsubscribe(call: Call, key: str) -> Payload:
    session = await call.services.sessions.resolve(call.operator, key, verb="history")
    _connection(call).unsubscribe_messages(session.key)
    return {"subscribed": False, "key": session.key}


def _connection(call: Call) -> ClientConnection:
    if call.connection is None:
        raise BadInput("A subscription needs a WebSocket.", fix="Over HTTP, use follow=1.")
    return call.connection
