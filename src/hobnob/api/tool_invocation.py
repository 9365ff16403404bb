"""Invoke one tool for a session without a turn, with that session's tools and rights."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from hobnob.config import Config
from hobnob.errors import Conflict, MissingScope, NotAllowed, NotFound, ToolFailed, ToolRefused
from hobnob.policy import Operator
from hobnob.policy.toolsets import ToolFacts, named
from hobnob.sessions import Sessions, resolve
from hobnob.store import Store, idempotency
from hobnob.tools import Context, Result, Tool, Toolbox
from hobnob.tools.registry import ToolRegistry
from hobnob.types import Session, Turn, new_id

MAX_KEY = 256
_CALL_NAMESPACE = uuid.UUID("0b3f3f0a-4f5e-4c39-9a6e-1d7a86c0e5d4")
Payload = dict[str, Any]


class ToolInvoker:
    """Tool calls of clients: tools marked `outside`, and those `gateway.tools.allow` names."""

    def __init__(
        self,
        config: Config,
        store: Store,
        sessions: Sessions,
        tools: ToolRegistry,
        toolbox: Callable[[Session], Awaitable[Toolbox]],
    ) -> None:
        self._config = config
        self._store = store
        self._sessions = sessions
        self._tools = tools
        self._toolbox = toolbox

    async def invoke(
        self,
        operator: Operator,
        name: str,
        arguments: dict[str, Any],
        *,
        session_key: str,
        agent_id: str | None,
        dry_run: bool,
        idempotency_key: str | None,
    ) -> Payload:
        """The result of a tool. Raises NotFound, NotAllowed, ToolRefused, ToolFailed or Conflict."""
        reference = resolve.key_for_agent(self._config.settings, session_key, agent_id)
        session = await self._sessions.resolve_for_calls(operator, reference)
        toolbox = await self._toolbox(session)
        tool = self._tools.find(name)
        if tool is None or name not in toolbox.names or not self._is_callable(tool.facts):
            raise NotFound(
                f"Tool not available: {name}",
                fix="The session needs the tool; one that is off for clients must be in gateway.tools.allow.",
            )
        _check_caller(operator, tool, arguments)
        if problem := toolbox.problem(name, arguments):
            raise ToolRefused(problem)
        if dry_run:
            return _payload(Result(orjson.dumps({"dryRun": True, "tool": name, "args": arguments}).decode()))
        if idempotency_key is None:
            return _payload(await _run(toolbox, session, name, arguments, new_id()))
        scope = f"invoke:{operator.name}:{session.key}"
        return _payload(await self._run_once(toolbox, session, name, arguments, scope, idempotency_key))

    def _is_callable(self, tool: ToolFacts) -> bool:
        rules = self._config.settings.gateway.tools
        return (tool.outside or named(tool, rules.allow)) and not named(tool, rules.deny)

    async def _run_once(
        self, toolbox: Toolbox, session: Session, name: str, arguments: dict[str, Any], scope: str, key: str
    ) -> Result:
        """Run a call unless it ran before. One that began and did not end is repeated only if safe."""
        call = orjson.dumps([name, arguments], option=orjson.OPT_SORT_KEYS)
        fingerprint = hashlib.sha256(call).hexdigest()
        began, stored = await self._store.write(idempotency.begin, scope, key, fingerprint)
        if stored is not None:
            return Result(*orjson.loads(stored))
        if began and not toolbox.may_repeat(name):
            raise Conflict(
                f"{name} began under this idempotency key, and its outcome is unknown.",
                fix="Check whether it had its effect before you call it with another key.",
            )
        result = await _run(toolbox, session, name, arguments, f"{scope} {key}")
        answer = orjson.dumps([result.text, result.is_error]).decode()
        await self._store.write(idempotency.finish, scope, key, answer)
        return result


def _check_caller(operator: Operator, tool: Tool, arguments: dict[str, Any]) -> None:
    """The tool acts with the session's rights, so a narrow credential must not gain any through it."""
    if operator.agents is not None and tool.facts.group == "sessions":
        raise NotAllowed(
            f"A token for some agents cannot use {tool.name}, which may see the sessions of others.",
            rule="tools.narrow_token",
            fix="Use the methods sessions.list, chat.history and sessions.send, which go by the token.",
        )
    if tool.name == "session_status" and arguments.get("model") is not None and not operator.is_owner:
        raise MissingScope("operator.admin")


async def _run(
    toolbox: Toolbox, session: Session, name: str, arguments: dict[str, Any], call_id: str
) -> Result:
    # This turn is not stored. Its id makes a send or spawn of the same call idempotent.
    turn = Turn.of(session, f"{name} called by a client", turn_id=str(uuid.uuid5(_CALL_NAMESPACE, call_id)))
    return await toolbox.call(Context(session, turn, call_id), name, arguments)


def _payload(result: Result) -> Payload:
    """A result as clients get it: the text, and its fields when it is a JSON object."""
    try:
        details = orjson.loads(result.text)
    except orjson.JSONDecodeError:
        details = None
    details = details if isinstance(details, dict) else {}
    if not result.is_error:
        return {"content": [{"type": "text", "text": result.text}], "details": details}
    message, code, fix = str(details.get("error", result.text)), details.get("code"), details.get("fix")
    if details.get("status") == "forbidden":
        raise NotAllowed(message, rule=str(code), fix=fix)
    raise ToolRefused(message, fix=fix) if code else ToolFailed(message)
