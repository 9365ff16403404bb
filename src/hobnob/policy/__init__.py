"""Who may do what. Pure functions: settings and facts in, a verdict out.

`may` is the one function every surface asks, through the verbs in `sessions.py`. A verdict that says no
names the rule (`code`), says it in a sentence (`why`) and lists every switch that is missing (`fix`):
apply all of them and the answer is yes.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any, Literal

from hobnob import keys
from hobnob.config import Settings
from hobnob.config.fields import Access, Scope, Visibility
from hobnob.config.sessions import SendMatch
from hobnob.types import Session

Verb = Literal["list", "history", "search", "status", "send", "spawn", "abort", "control"]

_DEEPEST, _MOST_CHILDREN = 5, 20  # what the settings can be set to at most
_ORDER: tuple[Visibility, ...] = ("self", "tree", "agent", "all")
_ACCESS: tuple[Access, ...] = ("none", "ro", "rw")
_SCOPE_OF: dict[Verb, Scope] = {
    "list": "operator.read",
    "history": "operator.read",
    "search": "operator.read",
    "status": "operator.read",
    "send": "operator.write",
    "spawn": "operator.write",
    "abort": "operator.write",
    "control": "operator.admin",
}
_IMPLIED: dict[Scope, set[Scope]] = {
    "operator.read": {"operator.read"},
    "operator.write": {"operator.read", "operator.write"},
    "operator.admin": {"operator.read", "operator.write", "operator.admin"},
}


@dataclass(frozen=True, slots=True)
class Fix:
    """A setting and the value that is missing for a yes."""

    path: str
    value: Any


@dataclass(frozen=True, slots=True)
class Verdict:
    allowed: bool
    code: str
    why: str
    fix: tuple[Fix, ...] = ()


@dataclass(frozen=True, slots=True)
class Operator:
    """A person or program at the API, by what its credential holds."""

    name: str = "owner"
    scopes: tuple[Scope, ...] = ("operator.admin",)
    agents: tuple[str, ...] | None = None

    def holds(self, scope: Scope) -> bool:
        return any(scope in _IMPLIED[own] for own in self.scopes)

    @property
    def is_owner(self) -> bool:
        return self.holds("operator.admin")


Caller = Session | Operator


@dataclass(frozen=True, slots=True)
class Confinement:
    """Whether a session's tools must stay in a sandbox, and what that may do with the workspace."""

    sandboxed: bool
    access: Access


@dataclass(frozen=True, slots=True)
class _Block:
    """One rule that stands in the way, and the switch that moves it aside."""

    code: str
    why: str
    fix: Fix | None


def may(settings: Settings, caller: Caller, verb: Verb, target: Session) -> Verdict:
    """Whether `caller` may do `verb` to the session `target` (for spawn: under the target's agent)."""
    if isinstance(caller, Operator):
        return _operator_may(settings, caller, verb, target)
    if verb == "spawn":
        asked = may_run if target.is_external else may_spawn
        return asked(settings, caller, target.agent_id)
    if verb in ("abort", "control"):
        return _agent_may_control(settings, caller, target)
    return _agent_may_see(settings, caller, target)


def unseen(settings: Settings, caller: Session) -> Verdict:
    """What an agent is told of a session it named by other than its key: the same, be it there or not."""
    blocks = _visibility_blocks(settings, caller, "all")
    if not settings.tools.agent_to_agent.enabled:
        why = "agents may not reach other agents' sessions"
        blocks.append(_Block("a2a.disabled", why, Fix("tools.agentToAgent.enabled", True)))
    elif settings.tools.agent_to_agent.allow:
        why = "the setting tools.agentToAgent.allow names the agents that may be reached"
        blocks.append(_Block("a2a.not_allowed", why, Fix("tools.agentToAgent.allow", ["*"])))
    return _refused(blocks) or Verdict(True, "ok", "Every session can be seen.")


def visibility(settings: Settings, caller: Session) -> Visibility:
    """How far the session tools of `caller` see: the setting, clamped for sandboxed sessions."""
    mode = settings.tools.sessions.visibility
    return "tree" if _clamped(settings, caller) and _ORDER.index(mode) > _ORDER.index("tree") else mode


def is_sandboxed(settings: Settings, session: Session) -> bool:
    """Whether the session's tools run in a sandbox: by its agent's mode, or because its spawner's do.

    A harness brings its own tools, and those never do.
    """
    if session.is_external:
        return False
    agent = settings.agent(session.agent_id)
    mode = (agent.sandbox.mode if agent else None) or settings.agents.defaults.sandbox.mode
    return session.sandboxed or mode == "all" or (mode == "non-main" and session.kind != "main")


def confinement(settings: Settings, session: Session, requester: Confinement | None = None) -> Confinement:
    """How a session is confined: as its agent is, and never less than whoever spawned it."""
    agent, defaults = settings.agent(session.agent_id), settings.agents.defaults.sandbox
    own = Confinement(
        is_sandboxed(settings, session),
        (agent.sandbox.workspace_access if agent else None) or defaults.workspace_access,
    )
    if requester is None or not requester.sandboxed:
        return own
    return Confinement(True, min(own.access, requester.access, key=_ACCESS.index))


def send_policy(settings: Settings, target: Session) -> Verdict:
    """Whether anything may be sent into `target`: its override, then any deny, an allow, the default."""
    if target.send_policy:
        fix = () if target.send_policy == "allow" else (Fix(f"session {target.key}: sendPolicy", "inherit"),)
        return _sending(target.send_policy == "allow", "the session's own override says so", fix)
    policy = settings.session.send_policy
    main_key = settings.session.main_key
    matching = [(i, r.action) for i, r in enumerate(policy.rules) if _matches(r.match, target, main_key)]
    denying = [i for i, action in matching if action == "deny"]
    if denying:
        paths = [f"session.sendPolicy.rules[{i}].action" for i in denying]
        return _sending(False, f"{', '.join(paths)} says deny", tuple(Fix(p, "allow") for p in paths))
    if matching:
        return _sending(True, f"session.sendPolicy.rules[{matching[0][0]}] says allow")
    if policy.default == "deny":
        fix = (Fix("session.sendPolicy.default", "allow"),)
        return _sending(False, "no rule matches and session.sendPolicy.default is deny", fix)
    return _sending(True, "session.sendPolicy.default is allow")


def spawnable(settings: Settings, agent_id: str) -> list[str]:
    """The agents `agent_id` may spawn: itself first, then those allowed that exist, by name."""
    agent = settings.agent(agent_id)
    if agent is None:
        return []
    allowed = agent.subagents.allow_agents
    others = sorted(a.id for a in settings.agent_list() if a.id != agent_id)
    return [agent_id, *(a for a in others if "*" in allowed or a in {x.lower() for x in allowed})]


def may_spawn(
    settings: Settings,
    requester: Session,
    agent_id: str,
    *,
    live_children: int = 0,
    require_sandbox: bool = False,
) -> Verdict:
    """Whether `requester` may spawn a child under `agent_id`, with everything that is in the way."""
    blocks = _limit_blocks(settings, requester, live_children)
    blocks += _agent_blocks(settings, requester.agent_id, agent_id)
    blocks += _unsandboxed_blocks(settings, requester, agent_id, require_sandbox)
    return _refused(blocks) or Verdict(True, "ok", f"Agent {requester.agent_id!r} may spawn {agent_id!r}.")


def may_have_child(settings: Settings, requester: Session, live_children: int) -> Verdict:
    """Whether `requester` may have one more child, by depth and number."""
    allowed = Verdict(True, "ok", "The session may have another child.")
    return _refused(_limit_blocks(settings, requester, live_children)) or allowed


def may_run(
    settings: Settings,
    requester: Session,
    harness: str | None,
    *,
    live_children: int = 0,
) -> Verdict:
    """Whether `requester` may run an external harness, with everything that is in the way.

    Without a harness: whether it may run one at all.
    """
    blocks = []
    if not settings.acp.enabled:
        why = "external harnesses are switched off"
        blocks.append(_Block("spawn.acp_disabled", why, Fix("acp.enabled", True)))
    if is_sandboxed(settings, requester):
        why = "a sandboxed session may not run a harness, which works outside a sandbox"
        blocks.append(_Block("spawn.sandbox", why, _unconfined(settings, requester)))
    blocks += _harness_blocks(settings, harness) if harness else []
    blocks += _limit_blocks(settings, requester, live_children)
    return _refused(blocks) or Verdict(True, "ok", f"Agent {requester.agent_id!r} may run {harness!r}.")


def _limit_blocks(settings: Settings, requester: Session, children: int) -> list[_Block]:
    limits, depth = settings.agents.defaults.subagents, requester.spawn_depth
    blocks = []
    if depth >= limits.max_spawn_depth:
        why = f"a sub-agent at depth {depth} cannot spawn, the deepest is {limits.max_spawn_depth}"
        fix = Fix("agents.defaults.subagents.maxSpawnDepth", depth + 1)
        blocks.append(_Block("spawn.depth", why, fix if depth < _DEEPEST else None))
    if children >= limits.max_children_per_agent:
        why = f"the session has {children} live children of at most {limits.max_children_per_agent}"
        fix = Fix("agents.defaults.subagents.maxChildrenPerAgent", children + 1)
        blocks.append(_Block("spawn.children", why, fix if children < _MOST_CHILDREN else None))
    return blocks


def _harness_blocks(settings: Settings, harness: str) -> list[_Block]:
    acp, blocks = settings.acp, []
    usable = [known for known in sorted(acp.harnesses) if acp.allows(known)]
    if harness not in acp.harnesses:
        why = f"there is no harness {harness!r} (there are: {', '.join(usable) or 'none'})"
        fix = Fix(f"acp.harnesses.{harness}", {"command": ["…"]})
        blocks.append(_Block("spawn.harness_unknown", why, fix))
    if not acp.allows(harness):
        allowed = ", ".join(usable) or "none"
        why = f"the setting acp.allowedAgents does not name {harness!r} (allowed: {allowed})"
        fix = Fix("acp.allowedAgents", [*acp.allowed_agents, harness])
        blocks.append(_Block("spawn.harness_not_allowed", why, fix))
    return blocks


def _unconfined(settings: Settings, session: Session) -> Fix | None:
    """What would take a session out of its sandbox, unless it was born into one."""
    agent = settings.agent(session.agent_id)
    own = agent is not None and agent.sandbox.mode is not None
    path = f"agents.list[{session.agent_id}].sandbox.mode" if own else "agents.defaults.sandbox.mode"
    return None if session.sandboxed else Fix(path, "off")


def _refused(blocks: list[_Block]) -> Verdict | None:
    """The verdict when something is in the way: named after the first, listing all."""
    if not blocks:
        return None
    why = _sentence(*(block.why for block in blocks))
    return Verdict(False, blocks[0].code, why, tuple(block.fix for block in blocks if block.fix))


def _agent_blocks(settings: Settings, own: str, wanted: str) -> list[_Block]:
    legal = spawnable(settings, own)
    if settings.agent(wanted) is None:
        why = f"there is no agent {wanted!r} (allowed: {', '.join(legal)})"
        if wanted in settings.acp.harnesses:
            why = f"{wanted!r} is a harness, which needs runtime: acp"
            return [_Block("spawn.agent_unknown", why, None)]
        allow = Fix(f"agents.list[{own}].subagents.allowAgents", [*legal[1:], wanted])
        return [
            _Block("spawn.agent_unknown", why, Fix("agents.list[].id", wanted)),
            _Block("spawn.agent_not_allowed", f"and then agent {own!r} may not spawn it", allow),
        ]
    if wanted not in legal:
        why = f"agent {own!r} may not spawn {wanted!r} (allowed: {', '.join(legal)})"
        fix = Fix(f"agents.list[{own}].subagents.allowAgents", [*legal[1:], wanted])
        return [_Block("spawn.agent_not_allowed", why, fix)]
    return []


def _unsandboxed_blocks(settings: Settings, requester: Session, agent_id: str, require: bool) -> list[_Block]:
    """A child is never a main session, so the modes `non-main` and `all` both confine it."""
    agent = settings.agent(agent_id)
    own_mode = agent.sandbox.mode if agent else None
    confined = (own_mode or settings.agents.defaults.sandbox.mode) != "off"
    if confined or not (require or is_sandboxed(settings, requester)):
        return []
    why = f"a sandbox is required, but {agent_id!r} runs outside one"
    if is_sandboxed(settings, requester):
        why = f"a sandboxed session may not spawn {agent_id!r}, which runs outside a sandbox"
    path = f"agents.list[{agent_id}].sandbox.mode" if own_mode else "agents.defaults.sandbox.mode"
    return [_Block("spawn.sandbox", why, Fix(path, "non-main"))]


def _operator_may(settings: Settings, caller: Operator, verb: Verb, target: Session) -> Verdict:
    needed = _SCOPE_OF[verb]
    where = f"gateway.auth.tokens[{caller.name}]"
    blocks = []
    if not caller.holds(needed):
        why = f"{verb} needs the scope {needed}, which the token {caller.name!r} does not hold"
        blocks.append(_Block("scope.missing", why, Fix(f"{where}.scopes", [*caller.scopes, needed])))
    if caller.agents is not None and target.agent_id not in caller.agents:
        why = f"the token {caller.name!r} is not for sessions of agent {target.agent_id!r}"
        fix = Fix(f"{where}.agents", [*caller.agents, target.agent_id])
        blocks.append(_Block("scope.agent", why, fix))
    if verb == "spawn" and not target.is_external and settings.agent(target.agent_id) is None:
        why = f"there is no agent {target.agent_id!r}"
        blocks.append(_Block("spawn.agent_unknown", why, Fix("agents.list[].id", target.agent_id)))
    held = Verdict(True, "ok", _sentence(f"the token {caller.name!r} holds {needed}"))
    return _refused(blocks) or held


def _agent_may_control(settings: Settings, caller: Session, target: Session) -> Verdict:
    """An agent controls itself and what it spawned, never a parent, a sibling or a stranger."""
    if target.key == caller.key or caller.spawned(target):
        return _agent_may_see(settings, caller, target)
    why = "a session controls only itself and what it spawned; ask the owner to do it"
    return Verdict(False, "control.not_descendant", _sentence(why))


def _agent_may_see(settings: Settings, caller: Session, target: Session) -> Verdict:
    if target.key == caller.key:
        return Verdict(True, "self", "It is the session itself.")
    if caller.spawned(target):
        needed: Visibility = "tree"
    elif target.agent_id == caller.agent_id:
        needed = "agent"
    else:
        needed = "all"
    blocks = _visibility_blocks(settings, caller, needed)
    if needed == "all":
        blocks += _agent_to_agent_blocks(settings, caller.agent_id, target.agent_id)
    mode = visibility(settings, caller)
    seen = Verdict(True, f"visibility.{mode}", _sentence(f"the setting tools.sessions.visibility is {mode}"))
    return _refused(blocks) or seen


def _visibility_blocks(settings: Settings, caller: Session, needed: Visibility) -> list[_Block]:
    mode = settings.tools.sessions.visibility
    blocks = []
    if _ORDER.index(mode) < _ORDER.index(needed):
        reach = {"self": "this session", "tree": "this session and what it spawned", "agent": "this agent"}
        why = f"the setting tools.sessions.visibility is {mode}, which ends at {reach[mode]}"
        blocks.append(_Block(f"visibility.{mode}", why, Fix("tools.sessions.visibility", needed)))
    if _clamped(settings, caller) and _ORDER.index(needed) > _ORDER.index("tree"):
        why = "this sandboxed session reaches only what it spawned"
        fix = Fix("agents.defaults.sandbox.sessionToolsVisibility", "all")
        # `self` is narrower than the clamp and names the refusal; otherwise the clamp does.
        blocks.insert(len(blocks) if mode == "self" else 0, _Block("sandbox.spawned_only", why, fix))
    return blocks


def _agent_to_agent_blocks(settings: Settings, own: str, other: str) -> list[_Block]:
    rules = settings.tools.agent_to_agent
    blocks = []
    if not rules.enabled:
        why = "agents may not reach other agents' sessions"
        blocks.append(_Block("a2a.disabled", why, Fix("tools.agentToAgent.enabled", True)))
    missing = [a for a in (own, other) if rules.allow and not _in_patterns(a, rules.allow)]
    if missing:
        why = f"the setting tools.agentToAgent.allow does not name {' and '.join(missing)}"
        fix = Fix("tools.agentToAgent.allow", [*rules.allow, *missing])
        blocks.append(_Block("a2a.not_allowed", why, fix))
    return blocks


def _clamped(settings: Settings, caller: Session) -> bool:
    spawned_only = settings.agents.defaults.sandbox.session_tools_visibility == "spawned"
    return spawned_only and is_sandboxed(settings, caller)


def _matches(match: SendMatch, target: Session, main_key: str) -> bool:
    channel = target.channel or target.last_channel
    rest = keys.parse(target.key).rest
    prefix = keys.canonical_prefix(match.key_prefix or "", main_key)
    raw_prefix = keys.canonical_prefix(match.raw_key_prefix or "", main_key)
    return (
        (match.channel is None or match.channel.casefold() == (channel or "").casefold())
        and (match.chat_type is None or match.chat_type == target.chat_type)
        and (target.key.startswith(prefix) or rest.startswith(prefix))
        and target.key.startswith(raw_prefix)
    )


def _sending(allowed: bool, why: str, fix: tuple[Fix, ...] = ()) -> Verdict:
    code = "send_policy.allowed" if allowed else "send_policy.denied"
    prefix = "Sending into this session is " + ("allowed" if allowed else "denied")
    return Verdict(allowed, code, f"{prefix}: {why}.", fix)


def _in_patterns(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name.casefold(), p.strip().casefold()) for p in patterns if p.strip())


def _sentence(*clauses: str) -> str:
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."
