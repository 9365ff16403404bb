"""The access policy: pure functions from settings and sessions to a verdict.

Every surface (tools, RPC, HTTP, CLI) asks `may`, through the `sessions` package. A refusal has the rule
(`code`), a sentence (`why`) and every setting that would have to change (`fix`): with all of them applied,
the verdict is yes.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from typing import Literal, get_args

from hobnob import keys
from hobnob.config import Settings
from hobnob.config.fields import Access, Scope, Visibility
from hobnob.config.sessions import SendMatch
from hobnob.fixes import Fix
from hobnob.policy import grants, names
from hobnob.policy.verdicts import Block as _Block
from hobnob.policy.verdicts import Verdict as Verdict
from hobnob.policy.verdicts import refusal as _refusal
from hobnob.policy.verdicts import refused as _refused
from hobnob.policy.verdicts import sentence as _sentence
from hobnob.records import Struct, replace
from hobnob.types import Session

Verb = Literal[
    "list", "history", "search", "status", "send", "spawn", "abort", "change", "approve", "control"
]

_MAX_DEPTH, _MAX_CHILDREN = 5, 20  # the upper bounds of the two settings
_RANK: dict[Visibility, int] = {"self": 0, "tree": 1, "agent": 2, "all": 3}
_ACCESS: tuple[Access, ...] = ("none", "ro", "rw")
_UNCLAMPED = Fix("agents.defaults.sandbox.sessionToolsVisibility", "all")
_SCOPE_OF: dict[Verb, Scope] = {
    "list": "operator.read",
    "history": "operator.read",
    "search": "operator.read",
    "status": "operator.read",
    "send": "operator.write",
    "spawn": "operator.write",
    "abort": "operator.write",
    "change": "operator.write",
    "approve": "operator.approvals",
    "control": "operator.admin",
}
_IMPLIED: dict[Scope, set[Scope]] = {
    "operator.read": {"operator.read"},
    "operator.write": {"operator.read", "operator.write"},
    "operator.admin": set(get_args(Scope)),
    "operator.approvals": {"operator.approvals"},
    "operator.pairing": {"operator.pairing"},
}


class Operator(Struct, frozen=True):
    """A person or program at the API, with the rights of its credential.

    `node` is the id of a node, which has no scopes: it may only write into its sessions and follow them.
    """

    name: str = "owner"
    scopes: tuple[Scope, ...] = ("operator.admin",)
    agents: tuple[str, ...] | None = None
    node: str | None = None

    def holds(self, scope: Scope) -> bool:
        for own in self.scopes:  # a loop: this is asked for every request and every row
            if scope in _IMPLIED[own]:
                return True
        return False

    @property
    def scopes_in_force(self) -> tuple[Scope, ...]:
        """Every scope it holds, implied ones too."""
        return tuple(scope for scope in get_args(Scope) if self.holds(scope))

    def narrowed(self, claimed: Collection[str]) -> Operator:
        """The same operator with only those of its scopes that it claims. Unknown scopes are ignored."""
        known = tuple(scope for scope in get_args(Scope) if scope in claimed)
        asked = Operator(scopes=known)
        return replace(self, scopes=tuple(s for s in self.scopes_in_force if asked.holds(s)))

    @property
    def is_owner(self) -> bool:
        return self.holds("operator.admin")


Caller = Session | Operator


class Confinement(Struct, frozen=True):
    """Whether a session's tools must run in a sandbox, and with which access to the workspace."""

    sandboxed: bool
    access: Access


def may(settings: Settings, caller: Caller, verb: Verb, target: Session) -> Verdict:
    """Whether `caller` may do `verb` to the session `target`. For spawn, the target's agent counts."""
    if isinstance(caller, Operator):
        return _operator_may(settings, caller, verb, target)
    if verb == "spawn":
        check = may_run if target.is_external else may_spawn
        return check(settings, caller, target.agent_id)
    if verb in ("abort", "change", "approve", "control"):
        return _agent_may_control(settings, caller, verb, target)
    return _agent_may_see(settings, caller, verb, target)


def may_see_all(settings: Settings, caller: Session) -> Verdict:
    """Whether an agent may see every session.

    For a session named by id or label: the refusal is the same whether or not the session exists.
    """
    blocks = _visibility_blocks(settings, caller, "all")
    if not settings.tools.agent_to_agent.enabled:
        why = "agents may not reach other agents' sessions"
        blocks.append(_Block("a2a.disabled", why, Fix("tools.agentToAgent.enabled", True)))
    elif settings.tools.agent_to_agent.allow:
        why = "the setting tools.agentToAgent.allow limits which agents may reach each other"
        blocks.append(_Block("a2a.not_allowed", why, Fix("tools.agentToAgent.allow", ["*"])))
    return _refused(blocks) or Verdict(True, "ok", "All sessions are visible.")


def visibility(settings: Settings, caller: Session) -> Visibility:
    """How far `caller` sees without its grants: the settings, limited for sandboxed sessions."""
    mode = _narrowest(settings, caller)[0]
    return "tree" if _RANK[mode] > _RANK["tree"] and is_clamped(settings, caller) else mode


def is_clamped(settings: Settings, caller: Session) -> bool:
    """Whether the session is sandboxed and therefore limited to what it spawned, whatever grants say."""
    limited = settings.agents.defaults.sandbox.session_tools_visibility == "spawned"
    return limited and is_sandboxed(settings, caller)


def is_sandboxed(settings: Settings, session: Session) -> bool:
    """Whether the session's tools must run in a sandbox: by its agent's mode, or because its requester's do.

    A harness has its own tools, which never run in our sandbox.
    """
    if session.is_external:
        return False
    agent = settings.agent(session.agent_id)
    mode = (agent.sandbox.mode if agent else None) or settings.agents.defaults.sandbox.mode
    return session.sandboxed or mode == "all" or (mode == "non-main" and session.kind != "main")


def confinement(settings: Settings, session: Session, requester: Confinement | None = None) -> Confinement:
    """The confinement of a session: that of its agent, and at least that of its requester."""
    agent, defaults = settings.agent(session.agent_id), settings.agents.defaults.sandbox
    own = Confinement(
        is_sandboxed(settings, session),
        (agent.sandbox.workspace_access if agent else None) or defaults.workspace_access,
    )
    if requester is None or not requester.sandboxed:
        return own
    return Confinement(True, min(own.access, requester.access, key=_ACCESS.index))


def send_policy(settings: Settings, target: Session) -> Verdict:
    """Whether `target` accepts messages: by its override, else a deny rule, an allow rule, the default."""
    if target.send_policy:
        fix = () if target.send_policy == "allow" else (Fix("send-policy", "inherit", target.key),)
        return _sending(target.send_policy == "allow", f"its own sendPolicy is {target.send_policy}", fix)
    policy = settings.session.send_policy
    main_key = settings.session.main_key
    matching = [(i, r.action) for i, r in enumerate(policy.rules) if _matches(r.match, target, main_key)]
    denying = [i for i, action in matching if action == "deny"]
    if denying:
        paths = [f"session.sendPolicy.rules[{i}].action" for i in denying]
        why = ", ".join(f"{path} is deny" for path in paths)
        return _sending(False, why, tuple(Fix(path, "allow") for path in paths))
    if matching:
        return _sending(True, f"session.sendPolicy.rules[{matching[0][0]}].action is allow")
    if policy.default == "deny":
        fix = (Fix("session.sendPolicy.default", "allow"),)
        return _sending(False, "no rule matches and session.sendPolicy.default is deny", fix)
    return _sending(True, "session.sendPolicy.default is allow")


def spawnable(settings: Settings, agent_id: str) -> list[str]:
    """The agents that `agent_id` may spawn: itself first, then the others by name."""
    agent = settings.agent(agent_id)
    if agent is None:
        return []
    allowed = agent.subagents.allow_agents
    others = sorted(a.id for a in settings.agent_list() if a.id != agent_id)
    listed = {x.lower() for x in allowed}
    return [
        agent_id,
        *(
            a
            for a in others
            if "*" in listed or a in listed or grants.for_spawn(settings, agent_id, a) is not None
        ),
    ]


def spawning_agent(requester: Session) -> str:
    """The agent whose rules for spawning hold for a session: for a harness, that of its spawner."""
    if requester.is_external and requester.spawned_by:
        return keys.parse(requester.spawned_by).agent
    return requester.agent_id


def may_spawn(
    settings: Settings,
    requester: Session,
    agent_id: str,
    *,
    live_children: int = 0,
    require_sandbox: bool = False,
) -> Verdict:
    """Whether `requester` may spawn a child of the agent `agent_id`; a refusal lists all reasons."""
    blocks = _limit_blocks(settings, requester, live_children)
    agent = spawning_agent(requester)
    blocks += _agent_blocks(settings, agent, agent_id)
    blocks += _unsandboxed_blocks(settings, requester, agent_id, require_sandbox)
    if blocks:
        return _refusal(blocks)
    number = grants.for_spawn(settings, agent, agent_id) if agent_id != agent else None
    if number is not None:
        return Verdict(True, "grant", f"The grant {settings.grant_index.clauses[number]} allows it.")
    return Verdict(True, "ok", f"Agent {agent!r} may spawn {agent_id!r}.")


def may_have_child(settings: Settings, requester: Session, live_children: int) -> Verdict:
    """Whether depth and number of children permit one more child of `requester`."""
    allowed = Verdict(True, "ok", "The session may have another child.")
    return _refused(_limit_blocks(settings, requester, live_children)) or allowed


def may_run(
    settings: Settings,
    requester: Session,
    harness: str | None,
    *,
    live_children: int = 0,
) -> Verdict:
    """Whether `requester` may run an external harness (None: any); a refusal lists all reasons."""
    blocks = []
    if not settings.acp.enabled:
        why = "external harnesses are disabled"
        blocks.append(_Block("spawn.acp_disabled", why, Fix("acp.enabled", True)))
    if is_sandboxed(settings, requester):
        why = "a sandboxed session may not run a harness, which runs outside a sandbox"
        blocks.append(_Block("spawn.sandbox", why, _sandbox_off(settings, requester)))
    blocks += _harness_blocks(settings, harness) if harness else []
    blocks += _limit_blocks(settings, requester, live_children)
    return _refused(blocks) or Verdict(True, "ok", f"Agent {requester.agent_id!r} may run {harness!r}.")


def _limit_blocks(settings: Settings, requester: Session, children: int) -> list[_Block]:
    limits, depth = settings.agents.defaults.subagents, requester.spawn_depth
    blocks = []
    if depth >= limits.max_spawn_depth:
        why = f"a sub-agent at depth {depth} cannot spawn (maximum depth: {limits.max_spawn_depth})"
        fix = Fix("agents.defaults.subagents.maxSpawnDepth", depth + 1)
        blocks.append(_Block("spawn.depth", why, fix if depth < _MAX_DEPTH else None))
    if children >= limits.max_children_per_agent:
        why = f"the session has {children} live children (maximum: {limits.max_children_per_agent})"
        fix = Fix("agents.defaults.subagents.maxChildrenPerAgent", children + 1)
        blocks.append(_Block("spawn.children", why, fix if children < _MAX_CHILDREN else None))
    return blocks


def _harness_blocks(settings: Settings, harness: str) -> list[_Block]:
    acp, blocks = settings.acp, []
    usable = [name for name in sorted(acp.harnesses) if acp.allows(name)]
    if harness not in acp.harnesses:
        why = names.no_such("harness", harness, usable, "available")
        if names.nearest(harness, usable):
            return [_Block("spawn.harness_unknown", why, None)]
        fix = Fix(f"acp.harnesses.{harness}", {"command": [harness]})
        blocks.append(_Block("spawn.harness_unknown", why, fix))
    if not acp.allows(harness):
        allowed = ", ".join(usable) or "none"
        why = f"the setting acp.allowedAgents does not include {harness!r} (allowed: {allowed})"
        fix = Fix("acp.allowedAgents", [*acp.allowed_agents, harness])
        blocks.append(_Block("spawn.harness_not_allowed", why, fix))
    return blocks


def _sandbox_off(settings: Settings, session: Session) -> Fix | None:
    """The setting that would run a session outside a sandbox; None if it was created as sandboxed."""
    agent = settings.agent(session.agent_id)
    own = agent is not None and agent.sandbox.mode is not None
    path = f"agents.list[{session.agent_id}].sandbox.mode" if own else "agents.defaults.sandbox.mode"
    return None if session.sandboxed else Fix(path, "off")


def _agent_blocks(settings: Settings, requester: str, agent_id: str) -> list[_Block]:
    allowed = spawnable(settings, requester)
    fix = Fix(f"agents.list[{requester}].subagents.allowAgents", [*allowed[1:], agent_id])
    if settings.agent(agent_id) is None:
        why = names.no_such("agent", agent_id, allowed, "allowed")
        if agent_id in settings.acp.harnesses:
            why = f"{agent_id!r} is a harness, which needs runtime: acp"
        if agent_id in settings.acp.harnesses or names.nearest(agent_id, allowed):
            return [_Block("spawn.agent_unknown", why, None)]
        return [
            _Block("spawn.agent_unknown", why, Fix(f"agents.list[{agent_id}].id", agent_id)),
            _Block("spawn.agent_not_allowed", f"agent {requester!r} also may not spawn it", fix),
        ]
    if agent_id not in allowed:
        why = f"agent {requester!r} may not spawn {agent_id!r} (allowed: {', '.join(allowed)})"
        return [_Block("spawn.agent_not_allowed", why, fix)]
    return []


def _unsandboxed_blocks(settings: Settings, requester: Session, agent_id: str, require: bool) -> list[_Block]:
    """A child is never a main session, so the modes `non-main` and `all` both sandbox it."""
    agent = settings.agent(agent_id)
    own_mode = agent.sandbox.mode if agent else None
    sandboxed = (own_mode or settings.agents.defaults.sandbox.mode) != "off"
    if sandboxed or not (require or is_sandboxed(settings, requester)):
        return []
    why = f"a sandbox is required, but {agent_id!r} runs outside one"
    if is_sandboxed(settings, requester):
        why = f"a sandboxed session may not spawn {agent_id!r}, which runs outside a sandbox"
    path = f"agents.list[{agent_id}].sandbox.mode" if own_mode else "agents.defaults.sandbox.mode"
    return [_Block("spawn.sandbox", why, Fix(path, "non-main"))]


def _node_may(settings: Settings, node_id: str, verb: Verb, target: Session) -> Verdict:
    """A node writes into its own session and follows it, and those that the settings name."""
    if verb not in ("send", "history", "status"):
        return Verdict(False, "node.verb", "A node may only write into its sessions and follow them.")
    key = keys.parse(target.key)
    if key.shape is keys.Shape.NODE and key.id == node_id and target.agent_id == settings.default_agent.id:
        return Verdict(True, "node.own", "It is the node's own session.")
    listed, main = settings.gateway.nodes.sessions, settings.session.main_key
    own_agent = target.agent_id == settings.default_agent.id
    names = (target.key, key.rest) if own_agent else (target.key,)
    patterns = [keys.canonical_prefix(pattern, main) for pattern in listed]
    if not key.is_child and any(_in_patterns(name, patterns) for name in names):
        return Verdict(True, "node.sessions", "The setting gateway.nodes.sessions names the session.")
    if key.is_child:
        return Verdict(False, "node.child", "A node may not write into the session of a sub-agent.")
    named = "main" if own_agent and key.is_main else target.key
    why = "The setting gateway.nodes.sessions does not name the session."
    return Verdict(False, "node.session", why, (Fix("gateway.nodes.sessions", [*listed, named]),))


def _operator_may(settings: Settings, caller: Operator, verb: Verb, target: Session) -> Verdict:
    if caller.node is not None:
        return _node_may(settings, caller.node, verb, target)
    needed = _SCOPE_OF[verb]
    token_path = f"gateway.auth.tokens[{caller.name}]"
    blocks = []
    if not caller.holds(needed):
        why = f"{verb} needs the scope {needed}, which the token {caller.name!r} does not have"
        blocks.append(_Block("scope.missing", why, Fix(f"{token_path}.scopes", [*caller.scopes, needed])))
    if caller.agents is not None and target.agent_id not in caller.agents:
        why = f"the token {caller.name!r} is not for sessions of agent {target.agent_id!r}"
        fix = Fix(f"{token_path}.agents", [*caller.agents, target.agent_id])
        blocks.append(_Block("scope.agent", why, fix))
    if verb == "spawn" and not target.is_external and settings.agent(target.agent_id) is None:
        known = [a.id for a in settings.agent_list() if caller.agents is None or a.id in caller.agents]
        why = names.no_such("agent", target.agent_id, known)
        adding = names.fix_for_agent(target.agent_id, known)
        blocks.append(_Block("spawn.agent_unknown", why, adding[0] if adding else None))
    allowed = Verdict(True, "ok", _sentence(f"the token {caller.name!r} has the scope {needed}"))
    return _refused(blocks) or allowed


def _agent_may_control(settings: Settings, caller: Session, verb: Verb, target: Session) -> Verdict:
    """A session controls itself and what it spawned; any other session only by a grant."""
    if target.key == caller.key or caller.spawned(target):
        return _agent_may_see(settings, caller, verb, target)
    if granted := _by_grant(settings, caller, verb, target):
        return granted
    why = "a session can control only itself and what it spawned; ask the owner to do it"
    return Verdict(False, "control.not_descendant", _sentence(why))


def _agent_may_see(settings: Settings, caller: Session, verb: Verb, target: Session) -> Verdict:
    if target.key == caller.key:
        return Verdict(True, "self", "The target is the calling session itself.")
    if caller.spawned(target):
        needed: Visibility = "tree"
    elif target.agent_id == caller.agent_id:
        needed = "agent"
    else:
        needed = "all"
    mode, path = _narrowest(settings, caller)
    clamped = needed in ("agent", "all") and is_clamped(settings, caller)
    other = needed == "all" and not _agents_may_meet(settings, caller.agent_id, target.agent_id)
    if _RANK[mode] >= _RANK[needed] and not clamped and not other:
        mode = visibility(settings, caller)
        return Verdict(True, f"visibility.{mode}", f"The setting {path} is {mode}.")
    if granted := _by_grant(settings, caller, verb, target):
        return granted
    blocks = _visibility_blocks(settings, caller, needed)
    if needed == "all":
        blocks += _agent_to_agent_blocks(settings, caller.agent_id, target.agent_id)
    return _refusal(blocks)


def _by_grant(settings: Settings, caller: Session, verb: Verb, target: Session) -> Verdict | None:
    """The verdict of a grant. It lifts every rule but one: a sandboxed session stays with what it spawned."""
    number = grants.find(settings, caller, verb, target)
    if number is None:
        return None
    grant = settings.grant_index.clauses[number]
    if is_clamped(settings, caller) and not caller.spawned(target):
        why = f"{grant} would allow it, but this session is sandboxed and reaches only what it spawned"
        return Verdict(False, "sandbox.spawned_only", _sentence(why), (_UNCLAMPED,))
    return Verdict(True, "grant", f"The grant {grant} allows it.")


def _visibility_of(settings: Settings, agent_id: str) -> tuple[Visibility, str]:
    """The visibility of an agent, and the setting that says so."""
    agent = settings.agent(agent_id)
    if agent is not None and (own := agent.tools.sessions.visibility) is not None:
        return own, f"agents.list[{agent_id}].tools.sessions.visibility"
    return settings.tools.sessions.visibility, "tools.sessions.visibility"


def _narrowest(settings: Settings, caller: Session) -> tuple[Visibility, str]:
    """The narrowest visibility among the agents that limit a session, and its setting."""
    found = [_visibility_of(settings, agent) for agent in grants.holders(caller)]
    return found[0] if len(found) == 1 else min(found, key=lambda each: _RANK[each[0]])


def _visibility_blocks(settings: Settings, caller: Session, needed: Visibility) -> list[_Block]:
    found = dict.fromkeys(_visibility_of(settings, agent) for agent in grants.holders(caller))
    blocks = []
    for mode, path in sorted(found, key=lambda each: _RANK[each[0]]):
        if _RANK[mode] < _RANK[needed]:
            scope = {
                "self": "this session",
                "tree": "this session and what it spawned",
                "agent": "this agent",
            }
            why = f"the setting {path} is {mode}, which covers only {scope[mode]}"
            blocks.append(_Block(f"visibility.{mode}", why, Fix(path, needed)))
    if _RANK[needed] > _RANK["tree"] and is_clamped(settings, caller):
        why = "this session is sandboxed and reaches only what it spawned"
        # The narrower rule gives the refusal its code: `self`, or else the sandbox limit.
        only_self = bool(blocks) and blocks[0].code == "visibility.self"
        blocks.insert(1 if only_self else 0, _Block("sandbox.spawned_only", why, _UNCLAMPED))
    return blocks


def _agents_may_meet(settings: Settings, own: str, other: str) -> bool:
    rules = settings.tools.agent_to_agent
    if not rules.enabled or not rules.allow:
        return rules.enabled
    return _in_patterns(own, rules.allow) and _in_patterns(other, rules.allow)


def _agent_to_agent_blocks(settings: Settings, own: str, other: str) -> list[_Block]:
    rules = settings.tools.agent_to_agent
    blocks = []
    if not rules.enabled:
        why = "agents may not reach other agents' sessions"
        blocks.append(_Block("a2a.disabled", why, Fix("tools.agentToAgent.enabled", True)))
    missing = [a for a in (own, other) if rules.allow and not _in_patterns(a, rules.allow)]
    if missing:
        why = f"the setting tools.agentToAgent.allow does not include {' and '.join(missing)}"
        fix = Fix("tools.agentToAgent.allow", [*rules.allow, *missing])
        blocks.append(_Block("a2a.not_allowed", why, fix))
    return blocks


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
