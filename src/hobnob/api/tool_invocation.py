"""One tool call from outside, for a session: with the tools that session has, and with its rights."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import orjson

from hobnob.api.addressing import address
from hobnob.api.rpc import Call, Payload
from hobnob.config import Settings
from hobnob.errors import Conflict, NotAllowed, NotFound, ToolFailed, ToolRefused
from hobnob.policy import Operator
from hobnob.policy.toolsets import GROUPS, named
from hobnob.store import Tx, idempotency
from hobnob.tools import Context, Result, Toolbox, mcp
from hobnob.types import Session, Turn, new_id

# Off from outside unless `gateway.tools.allow` names them: they have others act, or touch the host.
OFF = (
    "sessions_send",
    "sessions_spawn",
    "sessions_yield",
    "exec",
    "process",
    "write",
    "edit",
    "message",
    "cron",
    "gateway",
)
MAX_KEY = 256
_CALLS = uuid.UUID("0b3f3f0a-4f5e-4c39-9a6e-1d7a86c0e5d4")


async def invoke(
    call: Call,
    tool: str,
    arguments: dict[str, Any],
    *,
    session_key: str,
    agent_id: str | None,
    dry_run: bool,
    idempotency_key: str | None,
) -> Payload:
    """What the tool gives back. Raises NotFound, NotAllowed, ToolRefused, ToolFailed or Conflict."""
    services, settings = call.services, call.services.config.settings
    session = await services.sessions.acting_for(call.operator, address(settings, session_key, agent_id))
    box = await services.toolbox(session)
    if tool not in box.names or _is_off(settings, tool):
        raise NotFound(
            f"Tool not available: {tool}",
            fix="The session has to have it, and where it is off from outside gateway.tools.allow names it.",
        )
    _check_caller(call.operator, tool, arguments)
    if problem := box.problem(tool, arguments):
        raise ToolRefused(problem)
    if dry_run:
        return _shown(Result(orjson.dumps({"dryRun": True, "tool": tool, "args": arguments}).decode()))
    if idempotency_key is None:
        return _shown(await _run(box, session, tool, arguments, new_id()))
    return await _once(call, box, session, tool, arguments, idempotency_key)


def _is_off(settings: Settings, tool: str) -> bool:
    rules = settings.gateway.tools
    return named(tool, rules.deny) or (
        (tool in OFF or tool.startswith(mcp.PREFIX)) and not named(tool, rules.allow)
    )


def _check_caller(operator: Operator, tool: str, arguments: dict[str, Any]) -> None:
    """The tool acts with the session's rights: nobody gets more by it than their credential holds."""
    if operator.agents is not None and tool in GROUPS["group:sessions"]:
        raise NotAllowed(
            f"A token for some agents cannot use {tool}, which may see the sessions of others.",
            rule="tools.narrow_token",
            fix="Use the methods sessions.list, chat.history and sessions.send, which go by the token.",
        )
    if tool == "session_status" and arguments.get("model") is not None and not operator.is_owner:
        raise NotAllowed(
            "missing scope: operator.admin", rule="scope.missing", fix="Use a token with operator.admin."
        )


async def _run(box: Toolbox, session: Session, tool: str, arguments: dict[str, Any], call_id: str) -> Result:
    # A turn that nobody keeps: by its id a send or spawn is known again when the same call is made twice.
    turn = Turn.of(session, f"{tool} from outside", turn_id=str(uuid.uuid5(_CALLS, call_id)))
    return await box.call(Context(session, turn, call_id), tool, arguments)


async def _once(
    call: Call, box: Toolbox, session: Session, tool: str, arguments: dict[str, Any], key: str
) -> Payload:
    """Run it unless that was done before. What was begun and not ended is run again only if that is safe."""
    store, scope = call.services.store, f"invoke:{call.operator.name}:{session.key}"
    fingerprint = hashlib.sha256(orjson.dumps([tool, arguments], option=orjson.OPT_SORT_KEYS)).hexdigest()
    begun, kept = await store.write(_begin, scope, key, fingerprint)
    if kept is None:
        if begun and not box.may_repeat(tool):
            raise Conflict(
                f"{tool} was begun with this idempotency key, and how it ended is not known.",
                fix="Find out whether it had its effect before you call it with another key.",
            )
        result = await _run(box, session, tool, arguments, f"{scope} {key}")
        kept = orjson.dumps([result.text, result.is_error]).decode()
        await store.write(idempotency.remember, scope, f"{key}:result", kept)
    text, is_error = orjson.loads(kept)
    return _shown(Result(text, is_error))


def _begin(tx: Tx, scope: str, key: str, fingerprint: str) -> tuple[bool, str | None]:
    """Whether the call was begun before, and what came of it."""
    earlier = idempotency.recall(tx, scope, key)
    if earlier is None:
        idempotency.remember(tx, scope, key, fingerprint)
        return False, None
    if earlier != fingerprint:
        raise Conflict("This idempotency key was used for another call.", fix="Use a new one for each call.")
    return True, idempotency.recall(tx, scope, f"{key}:result")


def _shown(result: Result) -> Payload:
    """A result as the wire has it: the text, and what it says when it is an object."""
    try:
        details = orjson.loads(result.text)
    except orjson.JSONDecodeError:
        details = None
    details = details if isinstance(details, dict) else {}
    if not result.is_error:
        return {"content": [{"type": "text", "text": result.text}], "details": details}
    said, code, fix = str(details.get("error", result.text)), details.get("code"), details.get("fix")
    if details.get("status") == "forbidden":
        raise NotAllowed(said, rule=str(code), fix=fix)
    raise ToolRefused(said, fix=fix) if code else ToolFailed(said)
