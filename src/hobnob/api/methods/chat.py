"""The chat of a session: what was said in it, and what was announced to its people."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import Field

from hobnob.api.rpc import Call, Payload, method
from hobnob.config.fields import Thinking
from hobnob.errors import BadInput, SessionNotFound
from hobnob.sessions import presentation
from hobnob.sessions.slash_commands import COMMANDS
from hobnob.types import Delivery

Limit = Annotated[int, Field(ge=1, le=1000)]


@method("chat.history", scope="operator.read")
async def chat_history(
    call: Call,
    session_key: str,
    limit: Limit = 200,
    cursor: str | None = None,
    include_tools: bool = True,
    before: Annotated[int, Field(ge=1)] | None = None,
    agent_id: str | None = None,
    max_bytes: int | None = None,
    max_chars: int | None = None,
    input_run_ids: list[str] | None = None,
) -> Payload:
    """A page of a transcript, the newest without a cursor. A session nobody has used yet has no messages.

    `before` is the `seq` of a message: the page is what came just before it. The bounds of a page are fixed:
    what other clients say of them is read and not needed.
    """
    sessions = call.services.sessions
    if before is not None:
        cursor = presentation.encode_cursor(before)
    try:
        session = await sessions.resolve(call.operator, session_key, verb="history")
    except SessionNotFound:
        return {"sessionKey": session_key, "messages": [], "thinkingLevel": _thinking(call)}
    page = await sessions.history(
        call.operator, session_key, limit=limit, include_tools=include_tools, cursor=cursor
    )
    page["thinkingLevel"] = session.thinking_level or _thinking(call)
    return page | ({"verboseLevel": session.verbose_level} if session.verbose_level else {})


@method("chat.startup", scope="operator.read")
async def chat_startup(
    call: Call,
    session_key: str,
    limit: Limit = 200,
    agent_id: str | None = None,
    max_bytes: int | None = None,
    max_chars: int | None = None,
    input_run_ids: list[str] | None = None,
    cursor: str | None = None,
) -> Payload:
    """What a page needs to open a chat: its history, and what goes on in it."""
    page: Payload = await chat_history(call, session_key, limit, cursor)
    try:
        row = await call.services.sessions.status(call.operator, session_key)
    except SessionNotFound:
        return page
    return page | {"sessionInfo": row}


@method("chat.metadata", scope="operator.read")
async def chat_metadata(call: Call, session_key: str | None = None, agent_id: str | None = None) -> Payload:
    """What can be chosen and said in a chat: models, thinking levels, commands."""
    commands = [
        {"name": command.name, "args": command.word, "description": command.help}
        for command in COMMANDS.values()
    ]
    models = [
        {"id": info.id, "name": info.name, "provider": info.provider} for info in call.services.models.known()
    ]
    return {"commands": commands, "models": models, "thinkingLevels": list(get_args(Thinking))}


@method("chat.inject", scope="operator.admin")
async def chat_inject(
    call: Call, session_key: str, message: str, label: Annotated[str, Field(max_length=100)] | None = None
) -> Payload:
    """Put a line into the chat as if the agent had said it. Nobody is asked."""
    session, entry = await call.services.sessions.inject(call.operator, session_key, message, label=label)
    return {"ok": True, "messageId": f"{session.session_id}:{entry.seq}", "messageSeq": entry.seq}


@method("sessions.get", scope="operator.read")
async def sessions_get(
    call: Call,
    key: str | None = None,
    session_key: str | None = None,
    limit: Limit = 200,
    cursor: str | None = None,
    include_tools: bool = True,
) -> Payload:
    """The transcript, as `chat.history` has it."""
    named = key or session_key
    if not named:
        raise BadInput("Say which session: key.")
    page: Payload = await chat_history(call, named, limit, cursor, include_tools)
    return page


@method("chat.deliveries", scope="operator.read")
async def chat_deliveries(
    call: Call, session_key: str, limit: Annotated[int, Field(ge=1, le=200)] = 50
) -> Payload:
    """What was announced to a session's chat, oldest first, and whether it arrived."""
    session = await call.services.sessions.resolve(call.operator, session_key, verb="history")
    sent = await call.services.sessions.posted(call.operator, session.key, limit=limit)
    return {"sessionKey": session.key, "deliveries": [_delivery(each) for each in sent]}


def _delivery(sent: Delivery) -> dict[str, Any]:
    row = {
        "id": sent.delivery_id,
        "channel": sent.channel,
        "to": sent.recipient,
        "accountId": sent.account_id,
        "threadId": sent.thread_id,
        "text": sent.text,
        "state": sent.state,
        "attempts": sent.attempts,
        "error": sent.error,
        "exchangeId": sent.exchange_id,
        "runId": sent.turn_id,
        "createdAt": sent.created_at_ms,
    }
    return {name: value for name, value in row.items() if value is not None}


def _thinking(call: Call) -> str:
    return call.services.config.settings.agents.defaults.thinking_default
