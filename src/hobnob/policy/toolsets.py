"""The tool policy: which tools a session has, and by which rule. Pure functions."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Literal, get_args

from hobnob.config import Settings
from hobnob.config.agents import Agent
from hobnob.config.tools import ToolRules
from hobnob.fixes import Fix
from hobnob.policy import Confinement, Verdict
from hobnob.records import Struct
from hobnob.types import Session

Group = Literal["sessions", "fs", "runtime", "web", "messaging", "automation", "nodes", "mcp", "own"]
GROUPS: tuple[Group, ...] = get_args(Group)


class ToolFacts(Struct, frozen=True):
    """The properties of a tool that the policy uses; `@tool` declares them.

    `outside`: clients may call it without a turn. `writes`: it changes workspace files. `nesting`: a
    sub-agent that may spawn has it. `server`: the MCP server it belongs to.
    """

    name: str
    group: Group = "own"
    outside: bool = False
    writes: bool = False
    nesting: bool = False
    server: str | None = None


PROFILES: dict[str, list[str]] = {
    "minimal": ["session_status"],
    "messaging": ["group:sessions", "group:messaging", "group:automation"],
    "coding": ["group:sessions", "group:fs", "group:runtime", "group:web", "group:automation"],
    "full": ["*"],
}
BUILT_IN: dict[Group, tuple[str, ...]] = {
    "sessions": (
        "sessions_list",
        "sessions_history",
        "sessions_send",
        "sessions_spawn",
        "agents_list",
        "session_status",
        "sessions_search",
        "sessions_yield",
        "subagents",
        "agents_wait",
    ),
    "fs": ("read", "write", "edit", "ls", "grep"),
    "runtime": ("exec", "process"),
    "web": ("web_fetch",),
    "messaging": ("message",),
    "automation": ("cron",),
    "nodes": ("nodes",),
}
_ALIASES = {"bash": "exec", "sessions": "group:sessions"}


def tool_set(
    settings: Settings,
    session: Session,
    available: Iterable[ToolFacts],
    *,
    requester: Session | None = None,
    requester_tools: frozenset[str] | None = None,
    confinement: Confinement | None = None,
    problem: str | None = None,
    group: ToolRules | None = None,
) -> dict[str, Verdict]:
    """A verdict for each available tool. A child has no tool that its requester lacks.

    `problem` is the reason why the sandbox does not work, if it does not. `group` are the rules of the group
    chat that the session belongs to.
    """
    agent = settings.agent(session.agent_id) or Agent(id=session.agent_id)
    verdicts = {}
    for tool in available:
        verdict = _by_rules(settings, agent, tool)
        if verdict.allowed and group is not None:
            verdict = _in_group(session, tool, group) or verdict
        if verdict.allowed and session.kind == "node":
            verdict = _of_node(settings, tool) or verdict
        if verdict.allowed and session.spawned_by is not None:
            verdict = _as_child(settings, session, tool) or verdict
        if verdict.allowed and requester is not None and requester_tools is not None:
            verdict = _within_requester(settings, requester, session, tool, requester_tools) or verdict
        if verdict.allowed and confinement is not None:
            verdict = _by_confinement(settings, agent, tool, confinement, problem) or verdict
        verdicts[tool.name] = verdict
    return verdicts


def runs_in_sandbox(settings: Settings, confinement: Confinement) -> bool:
    """Whether a session's commands run in the sandbox: by its confinement, or by `tools.exec.host`."""
    return confinement.sandboxed or settings.tools.exec.host == "sandbox"


def _by_rules(settings: Settings, agent: Agent, tool: ToolFacts) -> Verdict:
    """Both levels must allow the tool: the rules for all agents, and those of this agent."""
    own = f"agents.list[{agent.id}].tools"
    levels: list[tuple[str, ToolRules]] = [("tools", settings.tools), (own, agent.tools)]
    denying = [(path, rules) for path, rules in levels if named(tool, rules.deny)]
    if denying:
        why = f"{' and '.join(f'{path}.deny' for path, _ in denying)} names {tool.name}."
        fixes = [Fix(f"{p}.deny", [d for d in r.deny if not named(tool, [d])]) for p, r in denying]
        return Verdict(False, "tools.denied", why, tuple(fixes))
    closed = [(p, r) for p, r in levels if r.allow is not None and not named(tool, [*r.allow, *r.also_allow])]
    if closed:
        why = f"{' and '.join(f'{path}.allow' for path, _ in closed)} does not name {tool.name}."
        fixes = [Fix(f"{path}.allow", [*(rules.allow or []), tool.name]) for path, rules in closed]
        return Verdict(False, "tools.not_allowed", why, tuple(fixes))
    profile = agent.tools.profile or settings.tools.profile or "full"
    added = next((path for path, rules in levels if named(tool, rules.also_allow)), None)
    if added:
        return Verdict(True, "tools.also_allow", f"{added}.alsoAllow names {tool.name}.")
    if not named(tool, PROFILES[profile]):
        path, rules = levels[1] if agent.tools.profile else levels[0]
        fix = Fix(f"{path}.alsoAllow", [*rules.also_allow, tool.name])
        return Verdict(
            False, "tools.profile", f"The tool profile {profile} does not include {tool.name}.", (fix,)
        )
    return Verdict(True, "tools.profile", f"The tool profile {profile} includes {tool.name}.")


def _in_group(session: Session, tool: ToolFacts, rules: ToolRules) -> Verdict | None:
    """The rules of a group only narrow: they cannot give a tool that the agent lacks."""
    allowed = rules.allow is None or named(tool, [*rules.allow, *rules.also_allow])
    in_profile = rules.profile is None or named(tool, [*PROFILES[rules.profile], *rules.also_allow])
    if allowed and in_profile and not named(tool, rules.deny):
        return None
    why = f"The settings of the group {session.display_name or session.peer} on {session.channel} exclude it."
    return Verdict(False, "tools.group", why)


def _of_node(settings: Settings, tool: ToolFacts) -> Verdict | None:
    """The session of a node has only the tools of the setting: a device writes there, not a person."""
    listed = settings.gateway.nodes.tools
    if named(tool, listed):
        return None
    why = f"The session belongs to a node, and gateway.nodes.tools does not name {tool.name}."
    return Verdict(False, "tools.node", why, (Fix("gateway.nodes.tools", [*listed, tool.name]),))


def _as_child(settings: Settings, child: Session, tool: ToolFacts) -> Verdict | None:
    rules, path = settings.tools.subagents.tools, "tools.subagents.tools"
    if named(tool, rules.deny):
        fix = Fix(f"{path}.deny", [d for d in rules.deny if not named(tool, [d])])
        return Verdict(False, "tools.subagent_denied", f"{path}.deny names {tool.name}.", (fix,))
    if rules.allow is not None and not named(tool, [*rules.allow, *rules.also_allow]):
        fix = Fix(f"{path}.allow", [*rules.allow, tool.name])
        return Verdict(
            False, "tools.subagent_not_allowed", f"{path}.allow does not name {tool.name}.", (fix,)
        )
    nests = tool.nesting and child.spawn_depth < settings.agents.defaults.subagents.max_spawn_depth
    listed = named(tool, [*(rules.allow or []), *rules.also_allow]) or _given_to_harness(settings, child)
    if tool.group in ("sessions", "automation") and not nests and not listed:
        fix = Fix(f"{path}.alsoAllow", [*rules.also_allow, tool.name])
        kind = "session tool " if tool.group == "sessions" else "tool "
        return Verdict(
            False, f"tools.subagent_{tool.group}", f"Sub-agents do not have the {kind}{tool.name}.", (fix,)
        )
    return None


def _given_to_harness(settings: Settings, child: Session) -> bool:
    """Whether the child is a harness that gets the session tools."""
    harness = settings.acp.harnesses.get(child.agent_id) if child.is_external else None
    return harness is not None and harness.session_tools


def _by_confinement(
    settings: Settings, agent: Agent, tool: ToolFacts, confinement: Confinement, problem: str | None
) -> Verdict | None:
    """Refuse what the sandbox cannot run: commands if it does not work, files it has no access to."""
    if tool.group == "runtime" and problem and runs_in_sandbox(settings, confinement):
        why = f"Commands run in a sandbox, and none works here: {problem}"
        fix = () if confinement.sandboxed else (Fix("tools.exec.host", "gateway"),)
        return Verdict(False, "sandbox.unavailable", why, fix)
    if confinement.sandboxed and tool.group == "nodes":
        why = "This session is sandboxed, and commands on a node run outside of its sandbox."
        return Verdict(False, "sandbox.nodes", why)
    if confinement.sandboxed and tool.server and not _usable_in_sandbox(settings, tool.server):
        why = f"{tool.name} belongs to an MCP server, which runs outside the sandbox."
        return Verdict(False, "sandbox.mcp", why, (Fix(f"mcp.servers.{tool.server}.sandboxed", True),))
    if not confinement.sandboxed or tool.group != "fs" or confinement.access == "rw":
        return None
    if confinement.access == "ro" and not tool.writes:
        return None
    own = agent.sandbox.workspace_access is not None
    path = f"agents.list[{agent.id}].sandbox" if own else "agents.defaults.sandbox"
    state = "not accessible" if confinement.access == "none" else "read-only"
    why = f"For this sandboxed session the workspace is {state} (workspaceAccess is {confinement.access})."
    needed = "rw" if tool.writes else "ro"
    return Verdict(False, "sandbox.workspace_access", why, (Fix(f"{path}.workspaceAccess", needed),))


def _usable_in_sandbox(settings: Settings, server: str) -> bool:
    """Whether sandboxed sessions may use the tools of an MCP server."""
    rules = settings.mcp.servers.get(server)
    return rules is not None and rules.sandboxed


def _within_requester(
    settings: Settings, requester: Session, child: Session, tool: ToolFacts, requester_tools: frozenset[str]
) -> Verdict | None:
    agent = settings.agent(requester.agent_id) or Agent(id=requester.agent_id)
    if tool.name in requester_tools or child.agent_id in agent.subagents.delegate:
        return None
    path = f"agents.list[{requester.agent_id}].subagents.delegate"
    why = f"The session that spawned this one does not have {tool.name} itself."
    return Verdict(False, "tools.requester", why, (Fix(path, [*agent.subagents.delegate, child.agent_id]),))


def is_group(name: str) -> bool:
    """Whether an entry of a list names a group of tools."""
    name = name.strip().lower()
    return _ALIASES.get(name, name) in {f"group:{group}" for group in GROUPS}


def named(tool: ToolFacts, names: Iterable[str]) -> bool:
    """Whether `names` contains the tool, as a name, a pattern or a group."""
    for name in names:
        name = name.strip().lower()
        name = _ALIASES.get(name, name)
        if name == f"group:{tool.group}" or fnmatch.fnmatchcase(tool.name.lower(), name):
            return True
    return False
