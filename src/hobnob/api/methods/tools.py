"""Tools from outside."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hobnob.api.invoking import MAX_KEY, invoke
from hobnob.api.rpc import Call, Payload, method


@method("tools.invoke", scope="operator.write")
async def tools_invoke(
    call: Call,
    tool: str,
    args: dict[str, Any] | None = None,
    session_key: str = "main",
    action: str | None = None,
    dry_run: bool = False,
    agent_id: str | None = None,
    idempotency_key: Annotated[str, Field(min_length=1, max_length=MAX_KEY)] | None = None,
) -> Payload:
    """Call a tool of a session, with that session's rights. `dryRun` only checks the arguments.

    The same call with the same `idempotencyKey` has its effect once and gets the same answer.
    """
    arguments = dict(args or {}) | ({"action": action} if action is not None else {})
    result = await invoke(
        call,
        tool,
        arguments,
        session_key=session_key,
        agent_id=agent_id,
        dry_run=dry_run,
        idempotency_key=idempotency_key,
    )
    return {"ok": True, "result": result}
