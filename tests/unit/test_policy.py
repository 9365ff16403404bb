"""Who may do what: the whole matrix, and that every refusal says how to lift it."""

from copy import deepcopy
from typing import Any

import pytest
from tests.pasting import paste

from hobnob import fixes, policy
from hobnob.config import Settings
from hobnob.keys import parse
from hobnob.policy import Operator, Verdict, may, may_run, may_spawn, send_policy
from hobnob.records import replace
from hobnob.types import Session

ROOT = Session.of(parse("agent:a:main"))
CALLER = Session.of(parse("agent:a:subagent:me"), spawned_by=ROOT)
CHILD = Session.of(parse("agent:a:subagent:child"), spawned_by=CALLER)
RELATIONS = {
    "self": CALLER,
    "child": CHILD,
    "grandchild": Session.of(parse("agent:a:subagent:grandchild"), spawned_by=CHILD),
    "foreign child": Session.of(parse("agent:b:subagent:child"), spawned_by=CALLER),
    "sibling": Session.of(parse("agent:a:subagent:sibling"), spawned_by=ROOT),
    "parent": ROOT,
    "same agent": Session.of(parse("agent:a:cron:1")),
    "other agent": Session.of(parse("agent:b:main")),
}
A2A: dict[str, dict[str, Any]] = {
    "off": {},
    "on": {"enabled": True},
    "both listed": {"enabled": True, "allow": ["a", "b*"]},
    "one listed": {"enabled": True, "allow": ["b"]},
    "listed but off": {"allow": ["a"]},
}

# Y: allowed. s t g: visibility.self .tree .agent.  c: sandbox.spawned_only.  d p: a2a.disabled .not_allowed.
#                   self child grand foreign sibling parent same  other agent by A2A (in the order above)
MATRIX = {
    ("self", False): ["Y", "s", "s", "s", "s", "s", "s", "s", "s", "s", "s", "s"],
    ("tree", False): ["Y", "Y", "Y", "Y", "t", "t", "t", "t", "t", "t", "t", "t"],
    ("agent", False): ["Y", "Y", "Y", "Y", "Y", "Y", "Y", "g", "g", "g", "g", "g"],
    ("all", False): ["Y", "Y", "Y", "Y", "Y", "Y", "Y", "d", "Y", "Y", "p", "d"],
    ("self", True): ["Y", "s", "s", "s", "s", "s", "s", "s", "s", "s", "s", "s"],
    ("tree", True): ["Y", "Y", "Y", "Y", "c", "c", "c", "c", "c", "c", "c", "c"],
    ("agent", True): ["Y", "Y", "Y", "Y", "c", "c", "c", "c", "c", "c", "c", "c"],
    ("all", True): ["Y", "Y", "Y", "Y", "c", "c", "c", "c", "c", "c", "c", "c"],
}
CODES = {
    "s": "visibility.self",
    "t": "visibility.tree",
    "g": "visibility.agent",
    "c": "sandbox.spawned_only",
    "d": "a2a.disabled",
    "p": "a2a.not_allowed",
}
COLUMNS = [(r, "off") for r in list(RELATIONS)[:-1]] + [("other agent", a) for a in A2A]
CASES = [
    pytest.param(mode, clamped, relation, a2a, expected, id=f"{mode}-{clamped}-{relation}-{a2a}")
    for (mode, clamped), row in MATRIX.items()
    for (relation, column), expected in zip(COLUMNS, row, strict=True)
    # Only sessions of other agents depend on the agent-to-agent rules; the rest are the same under each.
    for a2a in ([column] if relation == "other agent" else A2A)
]


def settings(**tree: Any) -> Settings:
    tree.setdefault("agents", {}).setdefault("list", [{"id": "a"}, {"id": "b"}, {"id": "c"}])
    return Settings.model_validate(tree)


def visible(mode: str, clamped: bool, a2a: str) -> dict[str, Any]:
    return {
        "tools": {"sessions": {"visibility": mode}, "agentToAgent": A2A[a2a]},
        "agents": {
            "list": [{"id": "a"}, {"id": "b"}],
            "defaults": {"sandbox": {"mode": "all" if clamped else "off"}},
        },
    }


def apply(tree: dict[str, Any], verdict: Verdict) -> Settings:
    """The settings with everything done that the verdict asks for, as a user would do it."""
    if verdict.fix:
        paste(fixes.command(verdict.fix), tree)
    return Settings.model_validate(tree)


@pytest.mark.promise(
    "visibility.self",
    "visibility.tree",
    "visibility.tree_at_any_depth",
    "visibility.tree_across_agents",
    "visibility.tree_ends_there",
    "visibility.agent",
    "visibility.all",
    "visibility.cross_agent_is_off",
    "visibility.cross_agent_list",
    "visibility.own_children",
    "visibility.sandbox_clamp",
    "visibility.clamp_leaves_self",
    "policy.codes",
)
@pytest.mark.parametrize("verb", ["list", "history", "search", "status", "send"])
@pytest.mark.parametrize(("mode", "clamped", "relation", "a2a", "expected"), CASES)
def test_visibility_by_relation_agent_to_agent_and_sandbox(
    mode: str, clamped: bool, relation: str, a2a: str, expected: str, verb: policy.Verb
) -> None:
    verdict = may(settings(**visible(mode, clamped, a2a)), CALLER, verb, RELATIONS[relation])
    assert verdict.allowed == (expected == "Y")
    if not verdict.allowed:
        assert verdict.code == CODES[expected]


@pytest.mark.promise("policy.fix_lists_every_switch")
@pytest.mark.parametrize(("mode", "clamped", "relation", "a2a", "expected"), CASES)
def test_a_refusal_lists_every_switch_that_is_missing(
    mode: str, clamped: bool, relation: str, a2a: str, expected: str
) -> None:
    tree = visible(mode, clamped, a2a)
    verdict = may(settings(**tree), CALLER, "send", RELATIONS[relation])
    assert bool(verdict.fix) == (not verdict.allowed)
    assert may(apply(tree, verdict), CALLER, "send", RELATIONS[relation]).allowed


@pytest.mark.promise("visibility.clamp_can_be_lifted")
def test_the_sandbox_clamp_can_be_lifted() -> None:
    tree = visible("all", True, "on")
    tree["agents"]["defaults"]["sandbox"]["sessionToolsVisibility"] = "all"
    assert may(settings(**tree), CALLER, "history", RELATIONS["other agent"]).allowed


@pytest.mark.promise("more.only_its_own_tree")
@pytest.mark.parametrize("relation", ["sibling", "parent", "same agent", "other agent"])
@pytest.mark.parametrize("verb", ["abort", "control"])
def test_an_agent_never_controls_what_it_did_not_spawn(relation: str, verb: policy.Verb) -> None:
    verdict = may(settings(**visible("all", False, "on")), CALLER, verb, RELATIONS[relation])
    assert (verdict.allowed, verdict.code) == (False, "control.not_descendant")


@pytest.mark.parametrize("relation", ["self", "child", "grandchild", "foreign child"])
def test_an_agent_controls_itself_and_what_it_spawned(relation: str) -> None:
    assert may(settings(), CALLER, "control", RELATIONS[relation]).allowed


@pytest.mark.promise("visibility.tree_ends_there")
def test_a_name_that_only_begins_alike_is_no_descendant() -> None:
    twin = Session.of(parse("agent:a:subagent:mee"), spawned_by=ROOT)
    assert not CALLER.spawned(Session.of(parse("agent:a:subagent:x"), spawned_by=twin))


@pytest.mark.promise("access.read", "access.write_implies_read", "access.admin_implies_all")
@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        (["operator.read"], {"list", "history", "search", "status"}),
        (["operator.write"], {"list", "history", "search", "status", "send", "spawn", "abort"}),
        (
            ["operator.admin"],
            {"list", "history", "search", "status", "send", "spawn", "abort", "control"},
        ),
        ([], set()),
    ],
)
def test_an_operator_may_do_what_the_scopes_of_the_credential_hold(
    scopes: list[Any], allowed: set[str]
) -> None:
    verbs: list[policy.Verb] = [
        "list",
        "history",
        "search",
        "status",
        "send",
        "spawn",
        "abort",
        "control",
    ]
    operator = Operator("ann", tuple(scopes))
    verdicts = {verb: may(settings(), operator, verb, ROOT) for verb in verbs}
    assert {verb for verb, v in verdicts.items() if v.allowed} == allowed
    assert {v.code for v in verdicts.values() if not v.allowed} <= {"scope.missing"}


@pytest.mark.promise("access.tokens_of_some_agents")
def test_a_token_for_some_agents_reaches_no_others() -> None:
    operator = Operator("ann", ("operator.admin",), agents=("b",))
    assert may(settings(), operator, "history", ROOT).code == "scope.agent"
    assert may(settings(), operator, "history", RELATIONS["other agent"]).allowed


def test_a_token_that_lacks_scope_and_agent_is_told_both() -> None:
    operator = Operator("ann", ("operator.read",), agents=())
    verdict = may(settings(), operator, "send", ROOT)
    assert [f.path.rsplit(".", 1)[-1] for f in verdict.fix] == ["scopes", "agents"]


@pytest.mark.promise("policy.fix_lists_every_switch")
def test_a_token_may_do_it_after_its_fix_was_pasted() -> None:
    token = {"name": "for ann", "token": "t", "scopes": ["operator.read"], "agents": ["b"]}
    tree: dict[str, Any] = {
        "agents": {"list": [{"id": "a"}, {"id": "b"}]},
        "gateway": {"auth": {"tokens": [token]}},
    }
    verdict = may(settings(**tree), Operator("for ann", ("operator.read",), ("b",)), "send", ROOT)
    assert not verdict.allowed
    (changed,) = apply(tree, verdict).gateway.auth.tokens
    assert may(
        settings(**tree),
        Operator("for ann", tuple(changed.scopes), tuple(changed.agents or ())),
        "send",
        ROOT,
    ).allowed


@pytest.mark.promise("spawn.unknown_agent_is_refused")
def test_nobody_spawns_an_agent_that_is_not_there() -> None:
    ghost = Session.of(parse("agent:ghost:main"))
    assert may(settings(), Operator(), "spawn", ghost).code == "spawn.agent_unknown"
    assert policy.spawnable(settings(), "ghost") == []


def test_a_limit_that_cannot_be_raised_further_has_no_fix() -> None:
    assert may_spawn(settings(), ROOT, "a", live_children=20).fix == ()


GROUP = Session.of(parse("agent:a:discord:group:5"))
DENY_DISCORD = {"match": {"channel": "Discord"}, "action": "deny"}
ALLOW_ALL = {"action": "allow"}


@pytest.mark.promise(
    "send_policy.override_wins",
    "send_policy.deny_before_allow",
    "send_policy.allow_before_default",
    "send_policy.default_last",
    "send_policy.code",
)
@pytest.mark.parametrize(
    ("override", "rules", "default", "allowed"),
    [
        (None, [], "allow", True),
        (None, [], "deny", False),
        (None, [ALLOW_ALL], "deny", True),
        (None, [DENY_DISCORD], "allow", False),
        (None, [ALLOW_ALL, DENY_DISCORD], "allow", False),
        (None, [DENY_DISCORD, ALLOW_ALL], "allow", False),
        ("allow", [DENY_DISCORD], "deny", True),
        ("deny", [ALLOW_ALL], "allow", False),
    ],
)
def test_send_policy_precedence_is_override_then_deny_then_allow_then_default(
    override: Any, rules: list[Any], default: str, allowed: bool
) -> None:
    tree = settings(session={"sendPolicy": {"rules": rules, "default": default}})
    verdict = send_policy(tree, Session.of(parse(GROUP.key), send_policy=override))
    assert verdict.allowed == allowed
    assert verdict.code == ("send_policy.allowed" if allowed else "send_policy.denied")
    assert bool(verdict.fix) == (not allowed)


@pytest.mark.promise("policy.fix_lists_every_switch")
def test_doing_what_a_denied_send_asks_for_allows_it() -> None:
    rules: list[Any] = [DENY_DISCORD, {"action": "allow"}, {"match": {"chatType": "group"}, "action": "deny"}]
    tree: dict[str, Any] = {"session": {"sendPolicy": {"rules": rules, "default": "deny"}}}
    verdict = send_policy(settings(**tree), GROUP)
    assert len(verdict.fix) == 2
    assert send_policy(apply(tree, verdict), GROUP).allowed


@pytest.mark.promise(
    "send_policy.by_channel",
    "send_policy.by_chat_type",
    "send_policy.by_key_prefix",
    "send_policy.all_fields_must_match",
)
@pytest.mark.parametrize(
    ("match", "key", "last_channel", "denied"),
    [
        ({"channel": "discord"}, "agent:a:discord:group:5", None, True),
        ({"channel": "discord"}, "agent:a:main", "discord", True),
        ({"channel": "discord"}, "agent:a:main", None, False),
        ({"chatType": "group"}, "agent:a:discord:group:5", None, True),
        ({"chatType": "dm"}, "agent:a:discord:direct:5", None, True),
        ({"chatType": "group"}, "agent:a:discord:channel:5", None, False),
        ({"channel": "discord", "chatType": "channel"}, "agent:a:discord:group:5", None, False),
        ({"keyPrefix": "Cron:"}, "agent:a:cron:5", None, True),
        ({"keyPrefix": "agent:a:cron:"}, "agent:a:cron:5", None, True),
        ({"rawKeyPrefix": "cron:"}, "agent:a:cron:5", None, False),
        ({"keyPrefix": "agent:a:telegram:dm:"}, "agent:a:telegram:direct:5", None, True),
        ({"keyPrefix": "home"}, "agent:a:main", None, True),
        ({}, "agent:a:main", None, True),
    ],
)
def test_a_send_rule_matches_when_all_its_fields_do(
    match: dict[str, str], key: str, last_channel: str | None, denied: bool
) -> None:
    rules = {"sendPolicy": {"rules": [{"match": match, "action": "deny"}]}}
    tree = settings(session={"mainKey": "Home", **rules})
    target = Session.of(parse(key), last_channel=last_channel)
    assert send_policy(tree, target).allowed == (not denied)


@pytest.mark.promise("spawn.own_agent_by_default", "spawn.allow_list", "spawn.star_is_any_configured")
@pytest.mark.parametrize(
    ("allow", "expected"),
    [([], ["a"]), (["b"], ["a", "b"]), (["*"], ["a", "b", "c"]), (["B", "ghost"], ["a", "b"])],
)
def test_the_agents_one_may_spawn_are_itself_and_the_allowed_ones_that_exist(
    allow: list[str], expected: list[str]
) -> None:
    agents = [{"id": "a", "subagents": {"allowAgents": allow}}, {"id": "b"}, {"id": "c"}]
    tree = settings(agents={"list": agents})
    assert policy.spawnable(tree, "a") == expected
    for agent in ["a", "b", "c", "ghost"]:
        assert may_spawn(tree, ROOT, agent).allowed == (agent in expected)


@pytest.mark.promise(
    "spawn.subagents_cannot_spawn",
    "spawn.deeper_when_configured",
    "spawn.unknown_agent_is_refused",
    "spawn.codes",
    "spawn.require_needs_a_sandboxed_agent",
    "policy.fix_lists_every_switch",
)
@pytest.mark.parametrize(
    ("requester", "agent", "options", "code"),
    [
        (CALLER, "a", {}, "spawn.depth"),
        (ROOT, "a", {"live_children": 5}, "spawn.children"),
        (ROOT, "b", {}, "spawn.agent_not_allowed"),
        (ROOT, "ghost", {}, "spawn.agent_unknown"),
        (ROOT, "a", {"require_sandbox": True}, "spawn.sandbox"),
        (CALLER, "b", {"live_children": 7, "require_sandbox": True}, "spawn.depth"),
    ],
)
def test_a_refused_spawn_names_the_rule_and_all_that_is_in_the_way(
    requester: Session, agent: str, options: dict[str, Any], code: str
) -> None:
    tree: dict[str, Any] = {"agents": {"list": [{"id": "a"}, {"id": "b"}], "defaults": {}}}
    verdict = may_spawn(settings(**tree), requester, agent, **options)
    assert (verdict.allowed, verdict.code) == (False, code)
    assert may_spawn(apply(tree, verdict), requester, agent, **options).allowed


@pytest.mark.promise("spawn.refusals_have_an_order")
def test_of_several_rules_that_refuse_a_spawn_the_first_names_it() -> None:
    """All four are in the way, and one after the other is moved aside."""
    tree: dict[str, Any] = {"agents": {"list": [{"id": "a"}, {"id": "b"}], "defaults": {}}}
    options: dict[str, Any] = {"live_children": 7, "require_sandbox": True}
    named = []
    while not (verdict := may_spawn(settings(**tree), CALLER, "b", **options)).allowed:
        named.append(verdict.code)
        apply(tree, replace(verdict, fix=verdict.fix[:1]))
    assert named == ["spawn.depth", "spawn.children", "spawn.agent_not_allowed", "spawn.sandbox"]


@pytest.mark.promise("acp.allow_list", "acp.own_list", "policy.fix_lists_every_switch")
def test_of_several_rules_that_keep_a_harness_from_running_each_is_named_and_all_can_be_lifted() -> None:
    agents = {"list": [{"id": "a", "sandbox": {"mode": "all"}, "subagents": {"allowAgents": ["*"]}}]}
    tree: dict[str, Any] = {
        "agents": agents | {"defaults": {}},
        "acp": {"enabled": False, "allowedAgents": ["x"]},
    }
    verdict = may_run(settings(**tree), CALLER, "claude", live_children=7)
    assert may_run(apply(deepcopy(tree), verdict), CALLER, "claude", live_children=7).allowed
    named = []
    while not (verdict := may_run(settings(**tree), CALLER, "claude", live_children=7)).allowed:
        named.append(verdict.code)
        apply(tree, replace(verdict, fix=verdict.fix[:1]))
    assert named == [
        "spawn.acp_disabled",
        "spawn.sandbox",
        "spawn.harness_unknown",
        "spawn.harness_not_allowed",
        "spawn.depth",
        "spawn.children",
    ]


def test_what_a_harness_does_is_never_taken_for_sandboxed() -> None:
    harness = Session.of(parse("agent:claude:acp:1"), spawned_by=ROOT)
    assert not policy.is_sandboxed(settings(agents={"defaults": {"sandbox": {"mode": "all"}}}), harness)


@pytest.mark.promise("spawn.no_way_out_of_the_sandbox")
@pytest.mark.parametrize("mode", ["non-main", "all"])
def test_a_sandboxed_requester_never_gets_an_unsandboxed_child(mode: str) -> None:
    agents = [
        {"id": "a", "sandbox": {"mode": mode}, "subagents": {"allowAgents": ["*"]}},
        {"id": "b"},
    ]
    tree = settings(agents={"list": agents})
    requester = Session.of(parse("agent:a:cron:1"))
    assert may_spawn(tree, requester, "b").code == "spawn.sandbox"
    assert may_spawn(tree, requester, "a").allowed


@pytest.mark.promise("spawn.sandbox_is_inherited")
def test_a_child_of_a_sandboxed_session_stays_sandboxed_whatever_its_agent_says() -> None:
    child = Session.of(parse("agent:b:subagent:x"), spawned_by=ROOT, sandboxed=True)
    assert policy.is_sandboxed(settings(), child)


@pytest.mark.parametrize(
    ("mode", "key", "expected"),
    [
        ("off", "agent:a:cron:1", False),
        ("non-main", "agent:a:main", False),
        ("non-main", "agent:a:cron:1", True),
        ("all", "agent:a:main", True),
    ],
)
def test_the_sandbox_mode_says_which_sessions_are_confined(mode: str, key: str, expected: bool) -> None:
    tree = settings(agents={"defaults": {"sandbox": {"mode": mode}}})
    assert policy.is_sandboxed(tree, Session.of(parse(key))) == expected
