"""Which tools a session has."""

from typing import Any

import pytest
from tests.known_tools import SESSION_TOOLS, TOOL_GROUPS
from tests.pasting import paste

from hobnob import fixes
from hobnob.config import Settings
from hobnob.keys import parse
from hobnob.policy import Confinement
from hobnob.policy.toolsets import ToolFacts, tool_set
from hobnob.types import Session

NESTING = {"sessions_spawn", "subagents", "sessions_list", "sessions_history"}
FACTS = [
    ToolFacts(name, group.removeprefix("group:"), writes=name in ("write", "edit"), nesting=name in NESTING)  # type: ignore[arg-type]
    for group, names in TOOL_GROUPS.items()
    for name in names
]
ALL = [tool.name for tool in FACTS]
NOT_FOR_CHILDREN = SESSION_TOOLS | {"cron"}
ECHO = ToolFacts("mcp__lab__echo", "mcp", server="lab")
MAIN = Session.of(parse("agent:a:main"))
CHILD = Session.of(parse("agent:a:subagent:x"), spawned_by=MAIN)
FOREIGN_CHILD = Session.of(parse("agent:b:subagent:x"), spawned_by=MAIN)


def held(session: Session, tools: Any = None, agent: Any = None, **more: Any) -> set[str]:
    agents = {"list": [{"id": "a", **(agent or {})}, {"id": "b"}], **more.pop("agents", {})}
    settings = Settings.model_validate({"tools": tools or {}, "agents": agents})
    return {name for name, verdict in tool_set(settings, session, FACTS, **more).items() if verdict.allowed}


def test_without_rules_a_session_has_every_tool() -> None:
    assert held(MAIN) == set(ALL)


@pytest.mark.parametrize(
    ("tools", "agent", "expected"),
    [
        ({"allow": ["read", "exec"]}, {}, {"read", "exec"}),
        ({"allow": ["group:fs"], "deny": ["write"]}, {}, {"read", "edit", "ls", "grep"}),
        ({"profile": "minimal"}, {}, {"session_status"}),
        ({"profile": "minimal", "alsoAllow": ["read"]}, {}, {"session_status", "read"}),
        ({"profile": "full"}, {"tools": {"profile": "minimal"}}, {"session_status"}),
        ({"allow": ["read", "write"]}, {"tools": {"allow": ["read", "exec"]}}, {"read"}),
        ({"alsoAllow": ["exec"], "allow": ["read"]}, {"tools": {"deny": ["exec"]}}, {"read"}),
        ({"allow": ["web_*"]}, {}, {"web_fetch"}),
        ({"alsoAllow": ["exec"]}, {"tools": {"allow": ["read"]}}, {"read"}),
        ({"allow": ["read"]}, {"tools": {"alsoAllow": ["exec"]}}, {"read"}),
        ({"allow": [" Read ", "BASH"]}, {}, {"read", "exec"}),
    ],
)
def test_profile_allow_and_deny_of_all_agents_and_of_one(tools: Any, agent: Any, expected: set[str]) -> None:
    assert held(MAIN, tools, agent) == expected


@pytest.mark.promise("spawn.child_lacks_session_tools", "spawn.subagents_cannot_spawn")
def test_a_child_has_the_target_agents_tools_without_the_session_tools() -> None:
    assert held(CHILD) == set(ALL) - NOT_FOR_CHILDREN


@pytest.mark.promise("spawn.child_tools_also_allow", "spawn.child_tools_deny")
@pytest.mark.parametrize(
    ("rules", "more", "fewer"),
    [
        ({"alsoAllow": ["sessions_send"]}, {"sessions_send"}, set()),
        ({"deny": ["exec"]}, set(), {"exec"}),
        ({"deny": ["sessions_send"], "alsoAllow": ["sessions_send"]}, set(), set()),
    ],
)
def test_the_tools_of_children_can_be_adjusted(rules: Any, more: set[str], fewer: set[str]) -> None:
    expected = (set(ALL) - NOT_FOR_CHILDREN - fewer) | more
    assert held(CHILD, {"subagents": {"tools": rules}}) == expected


@pytest.mark.promise("spawn.child_tools_allow")
def test_allow_for_children_means_only_these() -> None:
    rules = {"subagents": {"tools": {"allow": ["read", "sessions_list"]}}}
    assert held(CHILD, rules) == {"read", "sessions_list"}


@pytest.mark.promise("spawn.deeper_when_configured")
def test_a_child_that_may_spawn_has_the_tools_for_it() -> None:
    agents = {"defaults": {"subagents": {"maxSpawnDepth": 2}}}
    nesting = {"sessions_spawn", "subagents", "sessions_list", "sessions_history"}
    assert held(CHILD, agents=agents) & SESSION_TOOLS == nesting


@pytest.mark.promise("spawn.never_more_than_requester")
def test_a_child_never_has_more_than_its_requester_unless_the_pair_is_named() -> None:
    limits: dict[str, Any] = {"requester": MAIN, "requester_tools": frozenset({"read", "sessions_send"})}
    assert held(FOREIGN_CHILD, **limits) == {"read"}
    delegating = {"subagents": {"delegate": ["b"]}}
    assert held(FOREIGN_CHILD, agent=delegating, **limits) == set(ALL) - NOT_FOR_CHILDREN


@pytest.mark.promise("spawn.delegation_by_pair")
def test_to_name_one_agent_exempts_no_other() -> None:
    limits: dict[str, Any] = {"requester": MAIN, "requester_tools": frozenset({"read"})}
    assert held(FOREIGN_CHILD, agent={"subagents": {"delegate": ["c"]}}, **limits) == {"read"}


def test_a_tool_that_is_out_says_by_which_rule_and_what_would_bring_it_in() -> None:
    settings = Settings.model_validate({"tools": {"deny": ["group:runtime", "web_fetch"]}})
    verdict = tool_set(settings, MAIN, [ToolFacts("exec", "runtime")])["exec"]
    assert verdict.code == "tools.denied"
    assert [(f.path, f.value) for f in verdict.fix] == [("tools.deny", ["web_fetch"])]


@pytest.mark.parametrize("rule", ["group:mcp", "mcp__lab__*", "mcp__lab__echo"])
def test_tools_of_mcp_servers_are_named_by_group_by_server_or_alone(rule: str) -> None:
    settings = Settings.model_validate({"tools": {"deny": [rule]}})
    verdicts = tool_set(settings, MAIN, [ECHO, ToolFacts("read", "fs")])
    assert [name for name, verdict in verdicts.items() if verdict.allowed] == ["read"]


@pytest.mark.promise("mcp.not_from_a_sandbox")
@pytest.mark.parametrize("allowed", [False, True])
def test_sandboxed_sessions_get_tools_of_an_mcp_server_only_when_that_was_set(allowed: bool) -> None:
    settings = Settings.model_validate({"mcp": {"servers": {"lab": {"command": "x", "sandboxed": allowed}}}})
    place = Confinement(sandboxed=True, access="rw")
    verdict = tool_set(settings, MAIN, [ECHO], confinement=place)["mcp__lab__echo"]
    assert verdict.allowed == allowed
    if not allowed:
        assert (verdict.code, verdict.fix[0].path) == ("sandbox.mcp", "mcp.servers.lab.sandboxed")
    outside = Confinement(sandboxed=False, access="rw")
    assert tool_set(settings, MAIN, [ECHO], confinement=outside)["mcp__lab__echo"].allowed


@pytest.mark.promise("policy.fix_lists_every_switch")
@pytest.mark.parametrize("session", [MAIN, CHILD, FOREIGN_CHILD], ids=["main", "child", "foreign child"])
@pytest.mark.parametrize(
    "tools",
    [
        {"deny": ["group:fs", "exec", "web_*"]},
        {"allow": ["read"]},
        {"profile": "minimal"},
        {"profile": "messaging", "deny": ["message"]},
        {"subagents": {"tools": {"deny": ["read"], "allow": ["write"]}}},
    ],
)
def test_a_tool_can_be_had_by_pasting_what_each_refusal_says(tools: Any, session: Session) -> None:
    refused = {"tools": tools, "agents": {"list": [{"id": "a", "tools": {"deny": ["ls"]}}, {"id": "b"}]}}
    place = Confinement(sandboxed=True, access="none")
    for name in ("read", "write", "exec", "ls", "sessions_send", "message", "mcp__lab__echo"):
        tree = {**refused, "mcp": {"servers": {"lab": {"command": "x"}}}}
        for _ in range(6):  # one rule hides the next
            settings = Settings.model_validate(tree)
            agent = settings.agent(session.agent_id)
            assert agent is not None
            access = agent.sandbox.workspace_access or settings.agents.defaults.sandbox.workspace_access
            limits = {"requester": MAIN, "requester_tools": frozenset({"read"})}
            verdict = tool_set(
                settings,
                session,
                [*FACTS, ECHO],
                confinement=Confinement(place.sandboxed, access),
                **(limits if session is FOREIGN_CHILD else {}),
            )[name]
            if verdict.allowed:
                break
            paste(fixes.command(verdict.fix), tree)
        assert verdict.allowed, (name, verdict)


def test_a_rule_names_a_tool_in_any_case() -> None:
    settings = Settings.model_validate({"tools": {"deny": ["mcp__lab__GetFile", "ROLL"]}})
    tools = [ToolFacts("mcp__lab__GetFile", "mcp", server="lab"), ToolFacts("Roll")]
    assert not any(verdict.allowed for verdict in tool_set(settings, MAIN, tools).values())
