"""The tools of a turn that a message started: never more than both have, whatever was reloaded since."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hobnob.config import Settings
from hobnob.keys import parse
from hobnob.policy import authority
from hobnob.types import Session

ANN, BOB = Session.of(parse("agent:ann:main")), Session.of(parse("agent:bob:main"))
CHILD = Session.of(parse("agent:bob:subagent:1"), spawned_by=ANN)
TOOLS = st.frozensets(st.sampled_from(["exec", "read", "write", "sessions_send", "cron"]))
PAIRS = st.sampled_from([("ann", "bob"), ("bob", "ann"), ("*", "bob"), ("ann", "*")])
GRANTS = st.lists(
    st.builds(
        lambda pair, mode, only: (
            {"from": pair[0], "to": pair[1], "verbs": ["send"], "authority": mode}
            | ({"sessions": only} if only else {})
        ),
        PAIRS,
        st.sampled_from(["both", "target"]),
        st.sampled_from([None, ["main"], ["cron:*"]]),
    ),
    max_size=3,
)


def settings(grants: list[dict[str, Any]], setting: str = "both") -> Settings:
    return Settings.model_validate(
        {
            "agents": {"list": [{"id": "ann"}, {"id": "bob"}]},
            "tools": {"agentToAgent": {"authority": setting}},
            "grants": grants,
        }
    )


def lifted(grants: list[dict[str, Any]], setting: str) -> bool:
    """The oracle: whether messages of ann's main session leave bob's all his tools."""
    return setting == "target" or any(
        each["authority"] == "target"
        and each["from"] in ("ann", "*")
        and each["to"] in ("bob", "*")
        and each.get("sessions") in (None, ["main"])
        for each in grants
    )


@pytest.mark.promise("authority.both", "authority.grant", "authority.setting", "authority.withdrawn")
@given(
    held=TOOLS,
    there=TOOLS,
    before=GRANTS,
    after=GRANTS,
    first=st.sampled_from(["both", "target"]),
    then=st.sampled_from(["both", "target"]),
)
def test_a_turn_keeps_more_than_both_have_only_if_it_is_lifted_when_sent_and_when_run(
    held: frozenset[str],
    there: frozenset[str],
    before: list[dict[str, Any]],
    after: list[dict[str, Any]],
    first: str,
    then: str,
) -> None:
    found = authority.stored(settings(before, first), ANN, BOB, held, there)
    assert found is not None
    left = set(there)
    for limit in authority.limits(settings(after, then), {authority.OPTION: found}, BOB):
        left &= set(limit)
    assert left == (there if lifted(before, first) and lifted(after, then) else held & there)


@pytest.mark.promise("authority.no_growth")
@given(names=TOOLS, grants=GRANTS)
def test_what_a_limited_turn_passes_on_is_lifted_by_nothing(
    names: frozenset[str], grants: list[dict[str, Any]]
) -> None:
    options = {authority.OPTION: authority.inherited(ANN, names)}
    assert authority.limits(settings(grants, "target"), options, BOB) == [sorted(names)]


@pytest.mark.promise("authority.own_children")
def test_only_messages_down_the_own_tree_are_not_limited() -> None:
    given = settings([])
    assert authority.stored(given, ANN, CHILD, [], ["exec"]) is None
    up = authority.stored(given, CHILD, ANN, [], ["exec"])
    assert up is not None
    assert (up["mode"], up["withheld"]) == ("both", ["exec"])


@pytest.mark.promise("authority.no_growth")
def test_a_sub_agent_has_no_authority_that_its_spawner_was_not_granted() -> None:
    to_bob = {"from": "ann", "to": "bob", "verbs": ["send"], "authority": "target"}
    spawned = Session.of(parse("agent:ann:subagent:1"), spawned_by=Session.of(parse("agent:eve:main")))
    assert authority.between(settings([to_bob]), ANN, BOB).mode == "target"
    assert authority.between(settings([to_bob]), spawned, BOB).mode == "both"


def test_authority_without_the_verb_send_is_a_mistake() -> None:
    with pytest.raises(ValidationError, match="add send to verbs"):
        settings([{"from": "ann", "to": "bob", "verbs": ["list"], "authority": "target"}])
