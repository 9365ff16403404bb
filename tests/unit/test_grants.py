"""Grants between agents: the table of grants, visibility and sandbox, and what no grant may do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hobnob import checks, policy
from hobnob.config import Settings
from hobnob.keys import parse
from hobnob.models.catalog import open_models
from hobnob.policy import Verb, explanation, may, may_spawn, visibility
from hobnob.types import Session

BOSS, WORKER = Session.of(parse("agent:boss:main")), Session.of(parse("agent:worker:main"))
CHILD = Session.of(parse("agent:worker:subagent:1"), spawned_by=WORKER)
GRANTED: dict[Verb, str] = {
    "list": "list",
    "status": "list",
    "history": "history",
    "search": "history",
    "send": "send",
    "abort": "control",
    "change": "control",
    "control": "control",
}
VERBS = ("list", "history", "send", "spawn", "control")


def settings(
    *grants: dict[str, Any], mode: str = "tree", sandbox: str = "off", own: str | None = None, **more: Any
) -> Settings:
    boss: dict[str, Any] = {"id": "boss"} | ({"tools": {"sessions": {"visibility": own}}} if own else {})
    tree = {
        "agents": {
            "list": [boss, {"id": "worker"}, {"id": "other"}],
            "defaults": {"sandbox": {"mode": sandbox}},
        },
        "tools": {"sessions": {"visibility": mode}},
        "grants": list(grants),
    }
    return Settings.model_validate(tree | more)


def grant(verbs: list[str], **more: Any) -> dict[str, Any]:
    return {"from": "boss", "to": "worker", "verbs": verbs} | more


@pytest.mark.promise("grants.add", "grants.by_verb")
@pytest.mark.parametrize("mode", ["self", "tree", "agent", "all"])
@pytest.mark.parametrize("granted", VERBS)
@pytest.mark.parametrize("verb", GRANTED)
def test_a_grant_allows_its_verb_under_every_visibility_and_no_other(
    mode: str, granted: str, verb: Verb
) -> None:
    verdict = may(settings(grant([granted]), mode=mode), BOSS, verb, WORKER)
    assert verdict.allowed == (GRANTED[verb] == granted)
    if verdict.allowed:
        assert verdict.code == "grant"
        assert "grants[0]" in verdict.why


@pytest.mark.promise("grants.sandbox")
@pytest.mark.parametrize("mode", ["self", "tree", "agent", "all"])
@pytest.mark.parametrize("verb", GRANTED)
def test_no_grant_lifts_the_limit_of_a_sandboxed_session(mode: str, verb: Verb) -> None:
    given = settings(grant(list(VERBS)), mode=mode, sandbox="all")
    verdict = may(given, BOSS, verb, WORKER)
    assert (verdict.allowed, verdict.code) == (False, "sandbox.spawned_only")
    assert [fix.path for fix in verdict.fix] == ["agents.defaults.sandbox.sessionToolsVisibility"]


@pytest.mark.promise("grants.sandbox")
def test_a_sandboxed_session_uses_grants_where_the_limit_is_lifted() -> None:
    sandbox = {"mode": "all", "sessionToolsVisibility": "all"}
    agents = {"list": [{"id": "boss"}, {"id": "worker"}], "defaults": {"sandbox": sandbox}}
    assert may(settings(grant(["send"]), agents=agents), BOSS, "send", WORKER).code == "grant"


@pytest.mark.promise("grants.not_approvals")
def test_no_grant_lets_an_agent_approve_commands() -> None:
    verdict = may(settings(grant(list(VERBS)), mode="all"), BOSS, "approve", WORKER)
    assert verdict.code == "control.not_descendant"


@pytest.mark.promise("grants.one_way")
@pytest.mark.parametrize(
    ("caller", "target"), [(WORKER, BOSS), (WORKER, Session.of(parse("agent:other:main")))]
)
def test_a_grant_is_for_one_direction(caller: Session, target: Session) -> None:
    assert not may(settings(grant(["send"])), caller, "send", target).allowed


@pytest.mark.promise("grants.any_agent")
@pytest.mark.parametrize("sides", [("boss", "*"), ("*", "worker"), ("*", "*")])
def test_a_star_means_every_agent(sides: tuple[str, str]) -> None:
    given = settings({"from": sides[0], "to": sides[1], "verbs": ["history"]})
    assert may(given, BOSS, "history", WORKER).code == "grant"


@pytest.mark.promise("grants.sessions")
@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        ("main", ["agent:worker:main"]),
        ("agent:worker:main", ["agent:worker:main"]),
        ("cron:*", ["agent:worker:cron:1", "agent:worker:cron:12"]),
        ("cron:1", ["agent:worker:cron:1"]),
        ("agent:worker:telegram:*", ["agent:worker:telegram:group:5"]),
        ("agent:other:*", []),
        (
            "*",
            [
                "agent:worker:main",
                "agent:worker:cron:1",
                "agent:worker:cron:12",
                "agent:worker:telegram:group:5",
            ],
        ),
    ],
)
def test_sessions_limit_a_grant_to_keys(pattern: str, covered: list[str]) -> None:
    keys = ["main", "cron:1", "cron:12", "telegram:group:5"]
    given = settings(grant(["history"], sessions=[pattern]))
    found = [
        key
        for key in (f"agent:worker:{rest}" for rest in keys)
        if may(given, BOSS, "history", Session.of(parse(key))).allowed
    ]
    assert found == covered


@pytest.mark.promise("grants.sessions")
def test_the_main_session_is_meant_by_its_configured_name() -> None:
    given = settings(grant(["send"], sessions=["home"]), session={"mainKey": "home"})
    assert may(given, BOSS, "send", WORKER).allowed


@pytest.mark.promise("grants.no_growth")
def test_a_sub_agent_has_a_grant_only_if_the_sessions_above_it_have_it() -> None:
    boss_child = Session.of(parse("agent:boss:subagent:1"), spawned_by=WORKER)
    assert not may(settings(grant(["history"], to="other")), boss_child, "history", OTHER).allowed
    both = settings(grant(["history"], to="other"), {"from": "worker", "to": "other", "verbs": ["history"]})
    assert may(both, boss_child, "history", OTHER).code == "grant"


@pytest.mark.promise("grants.no_growth")
def test_a_harness_has_the_grants_of_the_agent_that_runs_it() -> None:
    harness = Session.of(parse("agent:codex:acp:1"), spawned_by=BOSS)
    assert may(settings(grant(["history"])), harness, "history", WORKER).code == "grant"
    assert not may(settings(grant(["history"])), harness, "send", WORKER).allowed


OTHER = Session.of(parse("agent:other:main"))


@pytest.mark.promise("visibility.per_agent")
def test_a_coordinator_sees_all_and_workers_only_their_tree() -> None:
    given = settings(own="all", mode="tree")
    given = Settings.model_validate(
        given.model_dump(by_alias=True, exclude_unset=True)
        | {"tools": {"sessions": {"visibility": "tree"}, "agentToAgent": {"enabled": True}}}
    )
    assert may(given, BOSS, "history", WORKER).allowed
    assert may(given, WORKER, "history", CHILD).allowed
    refusal = may(given, WORKER, "history", BOSS)
    assert (refusal.allowed, refusal.code) == (False, "visibility.tree")


@pytest.mark.promise("visibility.per_agent")
def test_a_narrower_visibility_of_an_agent_wins_and_is_named() -> None:
    verdict = may(settings(own="self", mode="all"), BOSS, "history", Session.of(parse("agent:boss:cron:1")))
    assert verdict.code == "visibility.self"
    assert [fix.path for fix in verdict.fix] == ["agents.list[boss].tools.sessions.visibility"]


@pytest.mark.promise("visibility.per_agent")
def test_a_sub_agent_sees_no_further_than_the_agents_above_it() -> None:
    child = Session.of(parse("agent:boss:subagent:1"), spawned_by=WORKER)
    given = settings(own="all", mode="tree")
    assert visibility(given, BOSS) == "all"
    assert visibility(given, child) == "tree"


@pytest.mark.promise("grants.spawn")
def test_a_grant_to_spawn_needs_no_entry_in_allow_agents() -> None:
    given = settings(grant(["spawn"]))
    assert policy.spawnable(given, "boss") == ["boss", "worker"]
    verdict = may_spawn(given, BOSS, "worker")
    assert (verdict.code, "grants[0]" in verdict.why) == ("grant", True)
    assert not may_spawn(given, WORKER, "boss").allowed
    assert not may(given, BOSS, "send", WORKER).allowed


@pytest.mark.promise("grants.spawn")
def test_sessions_cannot_limit_a_grant_to_spawn() -> None:
    with pytest.raises(ValidationError, match="spawn creates a new session"):
        settings(grant(["spawn"], sessions=["main"]))


@pytest.mark.parametrize("pattern", ["a*b", "", " ", "*:main", "agent:worker:\x00x"])
def test_a_pattern_that_could_be_misread_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError):
        settings(grant(["send"], sessions=[pattern]))


@pytest.mark.promise("grants.explained")
def test_a_refusal_is_explained_with_the_grant_that_would_be_enough() -> None:
    narrow = explanation.narrow_grant(settings(), BOSS, "send", WORKER)
    assert narrow == {"from": "boss", "to": "worker", "verbs": ["send"]}
    given = settings(narrow)
    assert may(given, BOSS, "send", WORKER).allowed
    assert not may(given, BOSS, "history", WORKER).allowed


@pytest.mark.promise("grants.explained")
def test_no_grant_is_proposed_where_none_would_help() -> None:
    assert explanation.narrow_grant(settings(sandbox="all"), BOSS, "send", WORKER) is None
    assert explanation.narrow_grant(settings(grant(["send"])), BOSS, "send", WORKER) is None
    assert explanation.narrow_grant(settings(), BOSS, "approve", WORKER) is None


async def test_a_grant_for_an_agent_that_does_not_exist_is_reported() -> None:
    given = settings({"from": "bos", "to": "worker", "verbs": ["send"]})
    async with open_models(given, {}) as models:
        messages = [finding.message for finding in checks.findings(given, models, [])]
    found = [message for message in messages if message.startswith("grants")]
    assert len(found) == 1
    assert found[0].startswith("grants[0].from names 'bos', and there is no such agent; did you mean 'boss'?")


AGENTS = st.sampled_from(["boss", "worker", "other", "*"])
GRANTS = st.lists(
    st.fixed_dictionaries(
        {
            "from": AGENTS,
            "to": AGENTS,
            "verbs": st.lists(st.sampled_from(VERBS[:3]), min_size=1, unique=True),
        },
        optional={
            "sessions": st.lists(st.sampled_from(["main", "cron:*", "*", "agent:worker:main"]), max_size=2)
        },
    ),
    max_size=5,
)
SESSIONS = st.sampled_from([BOSS, WORKER, OTHER, CHILD, Session.of(parse("agent:worker:cron:1"))])


@pytest.mark.promise("grants.add", "grants.sandbox")
@given(
    grants=GRANTS,
    mode=st.sampled_from(["self", "tree", "agent", "all"]),
    sandbox=st.sampled_from(["off", "non-main", "all"]),
    caller=SESSIONS,
    target=SESSIONS,
    verb=st.sampled_from(["list", "history", "send"]),
)
def test_grants_only_add_and_only_what_they_say(
    grants: list[dict[str, Any]], mode: str, sandbox: str, caller: Session, target: Session, verb: Verb
) -> None:
    """The oracle reads the list from the front, without an index."""
    given, without = settings(*grants, mode=mode, sandbox=sandbox), settings(mode=mode, sandbox=sandbox)
    allowed = may(without, caller, verb, target).allowed
    if not allowed and not policy.is_clamped(given, caller):
        chain = {caller.agent_id} | {key.split(":")[1] for key in caller.lineage.split("\n") if key}
        allowed = all(any(_covers(each, agent, target, verb) for each in grants) for agent in chain)
    assert may(given, caller, verb, target).allowed == allowed


def _covers(grant: dict[str, Any], agent: str, target: Session, verb: str) -> bool:
    if grant["from"] not in (agent, "*") or grant["to"] not in (target.agent_id, "*"):
        return False
    if verb not in grant["verbs"]:
        return False
    texts = (target.key, target.key.split(":", 2)[2])
    patterns = grant.get("sessions")
    return patterns is None or any(
        text.startswith(p[:-1]) if p.endswith("*") else text == p for p in patterns for text in texts
    )
