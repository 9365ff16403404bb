"""Methods on tools: the catalog, the tools of a session with their rules, and calls by clients."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hobnob import fixes, keys
from hobnob.api.rpc import Call, Payload, method
from hobnob.api.tool_invocation import MAX_KEY
from hobnob.policy import Confinement, toolsets
from hobnob.policy.names import unknown_agent


@method("tools.catalog", scope="operator.read")
async def tools_catalog(
    call: Call, agent_id: str | None = None, include_plugins: bool | None = None
) -> Payload:
    """Every tool, by group, with the profiles that include it."""
    settings = call.services.config.settings
    agent = keys.agent_id(agent_id) if agent_id else settings.default_agent.id
    groups: dict[str, list[Payload]] = {}
    for tool in call.services.tools.tools:
        profiles = [name for name, names in toolsets.PROFILES.items() if toolsets.named(tool.facts, names)]
        row: Payload = {"id": tool.name, "label": tool.name, "description": tool.description}
        row |= {"source": "core", "defaultProfiles": profiles}
        groups.setdefault(f"group:{tool.facts.group}", []).append(row)
    return {
        "agentId": agent,
        "profiles": [{"id": name, "label": name} for name in toolsets.PROFILES],
        "groups": [
            {"id": name, "label": name.removeprefix("group:"), "source": "core", "tools": tools}
            for name, tools in groups.items()
        ],
    }


@method("tools.effective", scope="operator.read")
async def tools_effective(call: Call, session_key: str | None = None, agent_id: str | None = None) -> Payload:
    """Every tool: whether a session has it, which rule decides, and which setting would change that."""
    sessions, settings = call.services.sessions, call.services.config.settings
    agent = keys.agent_id(agent_id) if agent_id else settings.default_agent.id
    session = await sessions.resolve_or_new(call.operator, session_key or f"agent:{agent}:main")
    configured = settings.agent(session.agent_id)
    if configured is None:
        raise unknown_agent(settings, session.agent_id)
    confinement = await sessions.capabilities.confinement(session)
    verdicts = await sessions.capabilities.tools(session)
    groups: dict[str, list[Payload]] = {}
    for tool in call.services.tools.tools:
        if (verdict := verdicts.get(tool.name)) is None:
            continue
        summary = tool.description.partition("\n")[0]
        row: dict[str, Any] = {"id": tool.name, "label": tool.name, "description": summary}
        row |= {"allowed": verdict.allowed, "rule": verdict.code, "why": verdict.why}
        if verdict.fix:
            row["fix"] = [{"path": fix.path, "value": fix.value} for fix in verdict.fix]
            row["command"] = fixes.command(verdict.fix)
        groups.setdefault(f"group:{tool.facts.group}", []).append(row)
    return {
        "agentId": session.agent_id,
        "sessionKey": session.key,
        "profile": configured.tools.profile or settings.tools.profile or "full",
        "sandbox": _sandbox(call, confinement),
        "groups": [{"id": name, "tools": tools} for name, tools in groups.items()],
    }


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
    """Call a tool of a session with that session's rights. `dryRun` only validates the arguments.

    Calls with the same `idempotencyKey` have one effect and get the same answer.
    """
    arguments = dict(args or {}) | ({"action": action} if action is not None else {})
    result = await call.services.tool_calls.invoke(
        call.operator,
        tool,
        arguments,
        session_key=session_key,
        agent_id=agent_id,
        dry_run=dry_run,
        idempotency_key=idempotency_key,
    )
    return {"ok": True, "result": result}


def _sandbox(call: Call, confinement: Confinement) -> Payload:
    sandbox, settings = call.services.sandbox, call.services.config.settings
    row: Payload = {
        "sandboxed": confinement.sandboxed,
        "backend": sandbox.name,
        "works": sandbox.problem is None,
        "commands": "sandbox" if toolsets.runs_in_sandbox(settings, confinement) else "gateway",
        "workspaceAccess": confinement.access,
        "network": settings.agents.defaults.sandbox.network,
    }
    return row | ({"problem": sandbox.problem} if sandbox.problem else {})
