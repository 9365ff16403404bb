"""Which tools a session has, and by which rule each is in or out."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from hobnob.config import Settings
from hobnob.config.agents import Agent
from hobnob.config.tools import ToolRules
from hobnob.policy import Confinement, Fix, Verdict
from hobnob.types import Session

GROUPS: dict[str, tuple[str, ...]] = {
    "group:sessions": (
        "agents_list",
        "session_status",
        "sessions_history",
        "sessions_list",
        "sessions_search",
        "sessions_send",
        "sessions_spawn",
        "sessions_yield",
        "subagents",
    ),
    "group:fs": ("read", "write", "edit", "ls", "grep"),
    "group:runtime": ("exec", "process"),
    "group:web": ("web_fetch",),
    "group:messaging": ("message",),
}
_WRITING = ("write", "edit")
PROFILES: dict[str, list[str]] = {
    "minimal": ["session_status"],
    "messaging": ["group:sessions", "group:messaging"],
    "coding": ["group:sessions", "group:fs", "group:runtime", "group:web"],
    "full": ["*"],
}
_OTHER_NAMES = {"bash": "exec", "sessions": "group:sessions", "group:mcp": "mcp__*"}
# What a sub-agent that may itself spawn needs in order to do so.
_NESTING = ("sessions_spawn", "subagents", "sessions_list", "sessions_history")


def tool_set(
    settings: Settings,
    session: Session,
    available: Iterable[str],
    *,
    requester: Session | None = None,
    requester_tools: frozenset[str] | None = None,
    confinement: Confinement | None = None,
    problem: str | None = None,
) -> dict[str, Verdict]:
    """A verdict for each available tool. A child also needs what its requester had.

    `confinement` is where the session's tools run; `problem` is why no sandbox works, when none does.
    """
    agent = settings.agent(session.agent_id) or Agent(id=session.agent_id)
    verdicts = {}
    for tool in available:
        verdict = _by_rules(settings, agent, tool)
        if verdict.allowed and session.spawned_by is not None:
            verdict = _as_child(settings, session, tool) or verdict
        if verdict.allowed and requester is not None and requester_tools is not None:
            verdict = _within_requester(settings, requester, session, tool, requester_tools) or verdict
        if verdict.allowed and confinement is not None:
            verdict = _by_place(settings, agent, tool, confinement, problem) or verdict
        verdicts[tool] = verdict
    return verdicts


def runs_in_sandbox(settings: Settings, confinement: Confinement) -> bool:
    """Whether a session's commands run in the sandbox: by its confinement, or as all do by default."""
    return confinement.sandboxed or settings.tools.exec.host == "sandbox"


def _by_rules(settings: Settings, agent: Agent, tool: str) -> Verdict:
    """Every level has to let the tool through: the rules for all agents, and those of this one."""
    own = f"agents.list[{agent.id}].tools"
    levels: list[tuple[str, ToolRules]] = [("tools", settings.tools), (own, agent.tools)]
    denying = [(path, rules) for path, rules in levels if named(tool, rules.deny)]
    if denying:
        why = f"{' and '.join(f'{path}.deny' for path, _ in denying)} names {tool}."
        fixes = [Fix(f"{p}.deny", [d for d in r.deny if not named(tool, [d])]) for p, r in denying]
        return Verdict(False, "tools.denied", why, tuple(fixes))
    closed = [(p, r) for p, r in levels if r.allow is not None and not named(tool, [*r.allow, *r.also_allow])]
    if closed:
        why = f"{' and '.join(f'{path}.allow' for path, _ in closed)} does not name {tool}."
        fixes = [Fix(f"{path}.allow", [*(rules.allow or []), tool]) for path, rules in closed]
        return Verdict(False, "tools.not_allowed", why, tuple(fixes))
    profile = agent.tools.profile or settings.tools.profile or "full"
    added = next((path for path, rules in levels if named(tool, rules.also_allow)), None)
    if added:
        return Verdict(True, "tools.also_allow", f"{added}.alsoAllow names {tool}.")
    if not named(tool, PROFILES[profile]):
        path, rules = levels[1] if agent.tools.profile else levels[0]
        fix = Fix(f"{path}.alsoAllow", [*rules.also_allow, tool])
        return Verdict(False, "tools.profile", f"The tool profile {profile} does not hold {tool}.", (fix,))
    return Verdict(True, "tools.profile", f"The tool profile {profile} holds {tool}.")


def _as_child(settings: Settings, child: Session, tool: str) -> Verdict | None:
    rules, path = settings.tools.subagents.tools, "tools.subagents.tools"
    if named(tool, rules.deny):
        fix = Fix(f"{path}.deny", [d for d in rules.deny if not named(tool, [d])])
        return Verdict(False, "tools.subagent_denied", f"{path}.deny names {tool}.", (fix,))
    if rules.allow is not None and not named(tool, [*rules.allow, *rules.also_allow]):
        fix = Fix(f"{path}.allow", [*rules.allow, tool])
        return Verdict(False, "tools.subagent_not_allowed", f"{path}.allow does not name {tool}.", (fix,))
    nests = child.spawn_depth < settings.agents.defaults.subagents.max_spawn_depth and tool in _NESTING
    asked_for = named(tool, [*(rules.allow or []), *rules.also_allow])
    if named(tool, ["group:sessions"]) and not nests and not asked_for:
        fix = Fix(f"{path}.alsoAllow", [*rules.also_allow, tool])
        return Verdict(
            False, "tools.subagent_sessions", f"Sub-agents do not get the session tool {tool}.", (fix,)
        )
    return None


def _by_place(
    settings: Settings, agent: Agent, tool: str, confinement: Confinement, problem: str | None
) -> Verdict | None:
    """What the sandbox takes away: commands where none works, files where it may not touch them."""
    if named(tool, ["group:runtime"]) and problem and runs_in_sandbox(settings, confinement):
        why = f"Commands run in a sandbox, and none works here: {problem}"
        fix = () if confinement.sandboxed else (Fix("tools.exec.host", "gateway"),)
        return Verdict(False, "sandbox.unavailable", why, fix)
    if confinement.sandboxed and (server := _mcp_server(settings, tool)):
        why = f"{tool} is of an MCP server, which runs outside the sandbox."
        return Verdict(False, "sandbox.mcp", why, (Fix(f"mcp.servers.{server}.sandboxed", True),))
    if not confinement.sandboxed or not named(tool, ["group:fs"]) or confinement.access == "rw":
        return None
    if confinement.access == "ro" and tool not in _WRITING:
        return None
    own = agent.sandbox.workspace_access is not None
    path = f"agents.list[{agent.id}].sandbox" if own else "agents.defaults.sandbox"
    said = "out of its reach" if confinement.access == "none" else "to be read only"
    why = f"For this sandboxed session the workspace is {said} (workspaceAccess is {confinement.access})."
    needed = "rw" if tool in _WRITING else "ro"
    return Verdict(False, "sandbox.workspace_access", why, (Fix(f"{path}.workspaceAccess", needed),))


def _mcp_server(settings: Settings, tool: str) -> str | None:
    """The MCP server a tool is of, when sandboxed sessions may not use it."""
    prefix, _, rest = tool.partition("__")
    server = rest.partition("__")[0]
    if prefix != "mcp" or not server:
        return None
    rules = settings.mcp.servers.get(server)
    return None if rules is not None and rules.sandboxed else server


def _within_requester(
    settings: Settings, requester: Session, child: Session, tool: str, held: frozenset[str]
) -> Verdict | None:
    agent = settings.agent(requester.agent_id) or Agent(id=requester.agent_id)
    if tool in held or child.agent_id in agent.subagents.delegate:
        return None
    path = f"agents.list[{requester.agent_id}].subagents.delegate"
    why = f"The session that spawned this one may not use {tool} itself."
    return Verdict(False, "tools.requester", why, (Fix(path, [*agent.subagents.delegate, child.agent_id]),))


def named(tool: str, names: Iterable[str]) -> bool:
    """Whether `names` holds the tool, as a name, a pattern or through a group."""
    for name in names:
        name = name.strip().lower()
        name = _OTHER_NAMES.get(name, name)
        if tool in GROUPS.get(name, ()) or fnmatch.fnmatchcase(tool, name):
            return True
    return False
