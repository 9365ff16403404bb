"""Methods on the chat of a session: its history, deliveries, and what clients can choose from."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import Field

from hobnob.api.rpc import Call, Payload, method
from hobnob.config.fields import Thinking
from hobnob.errors import BadInput, SessionNotFound
from hobnob.requests import HISTORY_DEFAULT, HISTORY_MAX, HistoryQuery
from hobnob.sessions import presentation
from hobnob.sessions.slash_commands import COMMANDS
from hobnob.types import Delivery

Limit = Annotated[int, Field(ge=1, le=HISTORY_MAX)]


class ChatPage(HistoryQuery):
    """A page of a transcript, with tool results by default."""

    limit: Limit = HISTORY_DEFAULT
    include_tools: bool = True


@method("chat.history", scope="operator.read")
async def chat_history(
    call: Call,
    session_key: str,
    query: ChatPage,
    before: Annotated[int, Field(ge=1)] | None = None,
    agent_id: str | None = None,
    max_bytes: int | None = None,
    max_chars: int | None = None,
    input_run_ids: list[str] | None = None,
) -> Payload:
    """A page of a transcript, the newest one without a cursor. A session without messages has an empty page.

    `before` is the `seq` of a message: the page ends just before it. Page bounds are fixed; `maxBytes`,
    `maxChars` and `inputRunIds` are accepted for other clients and ignored.
    """
    if before is not None:
        query = query.model_copy(update={"cursor": presentation.encode_cursor(before)})
    return await _history(call, session_key, query)


async def _history(call: Call, session_key: str, query: HistoryQuery) -> Payload:
    default_level = call.services.config.settings.agents.defaults.thinking_default
    try:
        session, page = await call.services.sessions.queries.history_of(call.operator, session_key, query)
    except SessionNotFound:
        return {"sessionKey": session_key, "messages": [], "thinkingLevel": default_level}
    page["thinkingLevel"] = session.thinking_level or default_level
    return page | ({"verboseLevel": session.verbose_level} if session.verbose_level else {})


@method("chat.startup", scope="operator.read")
async def chat_startup(
    call: Call,
    session_key: str,
    limit: Limit = HISTORY_DEFAULT,
    agent_id: str | None = None,
    max_bytes: int | None = None,
    max_chars: int | None = None,
    input_run_ids: list[str] | None = None,
    cursor: str | None = None,
) -> Payload:
    """What a client needs to open a chat: its history, and the state of the session."""
    page = await _history(call, session_key, ChatPage(limit=limit, cursor=cursor))
    try:
        row = await call.services.sessions.queries.status(call.operator, session_key)
    except SessionNotFound:
        return page
    return page | {"sessionInfo": row}


@method("chat.metadata", scope="operator.read")
async def chat_metadata(call: Call, session_key: str | None = None, agent_id: str | None = None) -> Payload:
    """What a client can offer in a chat: models, thinking levels, commands."""
    commands = [
        {"name": command.name, "args": command.usage, "description": command.help}
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
    """Append a message as if the agent had written it. No turn runs."""
    session, entry = await call.services.sessions.inject(call.operator, session_key, message, label=label)
    return {"ok": True, "messageId": f"{session.session_id}:{entry.seq}", "messageSeq": entry.seq}


@method("sessions.get", scope="operator.read")
async def sessions_get(
    call: Call, query: ChatPage, key: str | None = None, session_key: str | None = None
) -> Payload:
    """The transcript, as in `chat.history`."""
    reference = key or session_key
    if not reference:
        raise BadInput("Name the session: key.")
    return await _history(call, reference, query)


@method("chat.deliveries", scope="operator.read")
async def chat_deliveries(
    call: Call, session_key: str, limit: Annotated[int, Field(ge=1, le=200)] = 50
) -> Payload:
    """The deliveries to a session's chat, oldest first, with their state."""
    queries = call.services.sessions.queries
    session, sent = await queries.deliveries(call.operator, session_key, limit=limit)
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
