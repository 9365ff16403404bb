"""Tools: which there are, which a session has, by which rule, and a call of one from outside."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hobnob import keys
from hobnob.api.rpc import Call, Payload, method
from hobnob.api.tool_invocation import MAX_KEY, invoke
from hobnob.errors import UnknownAgent
from hobnob.policy import Confinement, toolsets
from hobnob.tools import mcp


@method("tools.catalog", scope="operator.read")
async def tools_catalog(
    call: Call, agent_id: str | None = None, include_plugins: bool | None = None
) -> Payload:
    """Every tool there is, by group, and the profiles that hold it."""
    settings = call.services.config.settings
    agent = keys.agent_id(agent_id) if agent_id else settings.default_agent.id
    groups: dict[str, list[Payload]] = {}
    for tool in call.services.tools.tools:
        profiles = [name for name, names in toolsets.PROFILES.items() if toolsets.named(tool.name, names)]
        row: Payload = {"id": tool.name, "label": tool.name, "description": tool.description}
        row |= {"source": "core", "defaultProfiles": profiles}
        groups.setdefault(_group(tool.name), []).append(row)
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
    """The tools of a session, those it has not as well: each with the rule that says so, and what to set."""
    sessions, settings = call.services.sessions, call.services.config.settings
    agent = keys.agent_id(agent_id) if agent_id else settings.default_agent.id
    session = await sessions.known_or_new(call.operator, session_key or f"agent:{agent}:main")
    configured = settings.agent(session.agent_id)
    if configured is None:
        raise UnknownAgent(f"There is no agent {session.agent_id!r}.")
    place = await sessions.confinement(session)
    verdicts = await sessions.tools_of(session)
    descriptions = {tool.name: tool.description.partition("\n")[0] for tool in call.services.tools.tools}
    groups: dict[str, list[Payload]] = {}
    for name, verdict in verdicts.items():
        row: dict[str, Any] = {"id": name, "label": name, "description": descriptions.get(name, "")}
        row |= {"allowed": verdict.allowed, "rule": verdict.code, "why": verdict.why}
        if verdict.fix:
            row["fix"] = [{"path": fix.path, "value": fix.value} for fix in verdict.fix]
        groups.setdefault(_group(name), []).append(row)
    return {
        "agentId": session.agent_id,
        "sessionKey": session.key,
        "profile": configured.tools.profile or settings.tools.profile or "full",
        "sandbox": _sandbox(call, place),
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


def _sandbox(call: Call, place: Confinement) -> Payload:
    sandbox, settings = call.services.sandbox, call.services.config.settings
    row: Payload = {"sandboxed": place.sandboxed, "backend": sandbox.name, "works": sandbox.problem is None}
    row["commands"] = "sandbox" if toolsets.runs_in_sandbox(settings, place) else "gateway"
    row |= {"workspaceAccess": place.access, "network": settings.agents.defaults.sandbox.network}
    return row | ({"problem": sandbox.problem} if sandbox.problem else {})


def _group(tool: str) -> str:
    other = "group:mcp" if tool.startswith(mcp.PREFIX) else "group:own"
    return next((name for name, tools in toolsets.GROUPS.items() if tool in tools), other)
