"""The one decision, as agents meet it: every tool, however the session is named, and for every caller."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    append_messages,
    create_sessions,
    keys_in,
    spawning_agents,
    three_agents,
    use,
)
from tests.integration.sandboxed import needs_sandbox

from hobnob import policy
from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.requests import SearchQuery
from hobnob.store import Tx, sessions
from hobnob.testing import OWNER, rehearse, say
from hobnob.types import Session

OWN_CHILD, OWN_HOOK = "agent:ann:subagent:a", "agent:ann:hook:1"
OTHERS_CHILD, OTHERS_HOOK = "agent:bob:subagent:b", "agent:bob:hook:1"
EVERYBODY = (ANN, OWN_CHILD, OWN_HOOK, OTHERS_CHILD, OTHERS_HOOK)
SETTINGS: dict[str, Any] = {
    "self": {"sessions": {"visibility": "self"}},
    "tree": {},
    "agent": {"sessions": {"visibility": "agent"}},
    "all, others off": {"sessions": {"visibility": "all"}},
    "all, others on": {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
    "all, others named": {
        "sessions": {"visibility": "all"},
        "agentToAgent": {"enabled": True, "allow": ["ann", "eve"]},
    },
}
TOOLS: dict[str, dict[str, Any]] = {
    "sessions_history": {},
    "session_status": {},
    "sessions_search": {"query": "zebra"},
    "sessions_send": {"message": "say: yes", "timeoutSeconds": 0},
}


async def peopled(gateway: Gateway) -> Session:
    """Ann's main session, what it spawned at home and abroad, and sessions of ann and bob beside it."""
    await say(gateway, "hi", ANN)
    ann = await gateway.store.read(sessions.get, ANN)

    def make(tx: Tx) -> None:
        for key in (OWN_CHILD, OTHERS_CHILD):
            sessions.create(tx, Session.of(parse(key), spawned_by=ann))

    await gateway.store.write(make)
    await create_sessions(gateway, OWN_HOOK, OTHERS_HOOK)
    return ann


@pytest.mark.promise("policy.decides_tools")
@pytest.mark.parametrize("tools", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("tool", TOOLS)
async def test_a_tool_does_what_the_policy_says_and_nothing_else(
    tmp_path: Path, tools: Any, tool: str
) -> None:
    async with rehearse(tmp_path, three_agents() | {"tools": tools}) as gateway:
        ann = await peopled(gateway)
        for key in EVERYBODY:
            target = await gateway.store.read(sessions.get, key)
            verdict = policy.may(gateway.config.settings, ann, "history", target)
            answer = await use(gateway, tool, sessionKey=key, **TOOLS[tool])
            if verdict.allowed:
                assert answer.get("status") != "forbidden", (key, answer)
            else:
                assert (answer["status"], answer["code"]) == ("forbidden", verdict.code), key


@pytest.mark.promise("policy.decides_tools", "visibility.own_children")
@pytest.mark.parametrize("tools", SETTINGS.values(), ids=SETTINGS)
async def test_a_list_holds_what_the_policy_lets_through(tmp_path: Path, tools: Any) -> None:
    async with rehearse(tmp_path, three_agents() | {"tools": tools}) as gateway:
        ann = await peopled(gateway)
        listed = await use(gateway, "sessions_list")
        for key in EVERYBODY:
            target = await gateway.store.read(sessions.get, key)
            seen = policy.may(gateway.config.settings, ann, "list", target).allowed
            assert (gateway.sessions.display_key(ann, key) in keys_in(listed)) == seen, key


@pytest.mark.promise("policy.decides_search", "more.search_sees_what_the_caller_sees")
@pytest.mark.parametrize("tools", SETTINGS.values(), ids=SETTINGS)
async def test_a_search_finds_in_what_the_policy_lets_through(tmp_path: Path, tools: Any) -> None:
    async with rehearse(tmp_path, three_agents() | {"tools": tools}) as gateway:
        ann = await peopled(gateway)
        expected = set()
        for key in EVERYBODY:
            target = await gateway.store.read(sessions.get, key)
            await append_messages(gateway, target, "the zebra was here")
            if policy.may(gateway.config.settings, ann, "search", target).allowed:
                expected.add(gateway.sessions.display_key(ann, key))
        found = await use(gateway, "sessions_search", query="zebra", limit=25)
        assert {row["sessionKey"] for row in found["results"]} == expected


@pytest.mark.promise("keys.spelling_changes_no_verdict", "keys.resolved_before_authorised")
@pytest.mark.parametrize("tool", TOOLS)
async def test_however_a_session_is_named_the_verdict_is_the_same(tmp_path: Path, tool: str) -> None:
    settings = three_agents() | {
        "tools": {"sessions": {"visibility": "agent"}},
        "session": {"mainKey": "home"},
    }
    async with rehearse(tmp_path, settings) as gateway:
        await say(gateway, "hi", ANN)
        [bob] = await create_sessions(gateway, BOB)
        ann = await gateway.store.read(sessions.get, ANN)
        verdicts = {
            spelling: await use(gateway, tool, OWN_HOOK, sessionKey=spelling, **TOOLS[tool])
            for spelling in (BOB, "agent:bob:home", " AGENT:Bob:Main ", "agent:bob:ｍain", bob.session_id)
        }
        assert {a["status"] for a in verdicts.values()} == {"forbidden"}
        assert {a["code"] for a in verdicts.values()} == {"visibility.agent"}
        for spelling in (ANN, "main", "home", "MAIN", "agent:ann:home", ann.session_id.upper()):
            answer = await use(gateway, tool, OWN_HOOK, sessionKey=spelling, **TOOLS[tool])
            assert answer.get("status") != "forbidden", (spelling, answer)
            assert "code" not in answer, (spelling, answer)


@pytest.mark.promise("keys.main_is_the_callers")
async def test_main_is_the_main_session_of_the_agent_that_says_it(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "say: I am bob", BOB)
        read = await use(gateway, "sessions_history", OTHERS_HOOK, sessionKey="main")
        assert (read["sessionKey"], read["messages"][0]["content"]) == ("main", "say: I am bob")


@pytest.mark.promise("keys.main_is_the_default_agents")
async def test_at_the_gateway_main_is_the_main_session_of_the_default_agent(tmp_path: Path) -> None:
    settings = three_agents()
    settings["agents"]["list"] = [{"id": "ann"}, {"id": "bob", "default": True}]
    async with rehearse(tmp_path, settings) as gateway:
        turn = await say(gateway, "hi", "main")
        assert turn.session_key == BOB


@pytest.mark.promise("keys.gateway_shows_full_keys")
async def test_at_the_gateway_every_key_is_shown_in_full(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        ann = await peopled(gateway)
        listed = await gateway.sessions.queries.list(OWNER)
        assert sorted(keys_in(listed)) == sorted(EVERYBODY)
        rows = {row["key"]: row for row in listed["sessions"]}
        assert rows[OWN_CHILD]["spawnedBy"] == ANN
        assert sorted(rows[ANN]["childSessions"]) == [OWN_CHILD, OTHERS_CHILD]
        assert (await gateway.sessions.queries.history(OWNER, "main"))["sessionKey"] == ANN
        assert (await gateway.sessions.queries.status(OWNER, ann.session_id))["key"] == ANN
        await append_messages(gateway, ann, "the zebra was here")
        assert (await gateway.sessions.queries.search(OWNER, SearchQuery(query="zebra")))["results"][0][
            "sessionKey"
        ] == ANN


@pytest.mark.promise("keys.key_or_session_id")
async def test_at_the_gateway_a_session_is_named_by_key_or_id(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, OTHERS_HOOK)
        for reference in (OTHERS_HOOK, hook.session_id):
            assert (await say(gateway, "say: here", reference)).session_key == OTHERS_HOOK
            assert (await gateway.sessions.queries.history(OWNER, reference))["sessionKey"] == OTHERS_HOOK
            assert (await gateway.sessions.patch(OWNER, reference, label="x")).key == OTHERS_HOOK
            assert (await gateway.sessions.resolve(OWNER, reference)).key == OTHERS_HOOK


@needs_sandbox
@pytest.mark.promise("visibility.sandboxed_may_use_tools", "visibility.sandbox_clamp")
async def test_a_sandboxed_session_uses_the_session_tools_within_its_tree(tmp_path: Path) -> None:
    settings = three_agents()
    settings["agents"]["defaults"] = {"sandbox": {"mode": "all"}}
    async with rehearse(tmp_path, settings) as gateway:
        await peopled(gateway)
        listed = await use(gateway, "sessions_list")
        assert sorted(keys_in(listed)) == sorted(["main", "agent:ann:subagent:a", OTHERS_CHILD])
        for tool, arguments in TOOLS.items():
            seen = await use(gateway, tool, sessionKey=OTHERS_CHILD, **arguments)
            assert seen.get("status") != "forbidden", tool
            refused = await use(gateway, tool, sessionKey=OTHERS_HOOK, **arguments)
            assert refused["code"] == "sandbox.spawned_only"


# -- agents_list


@pytest.mark.parametrize(
    ("allowed", "listed"),
    [([], ["ann"]), (["bob"], ["ann", "bob"]), (["*"], ["ann", "bob", "eve"]), (["nobody"], ["ann"])],
)
async def test_the_agents_listed_are_those_a_spawn_accepts(
    tmp_path: Path, allowed: list[str], listed: list[str]
) -> None:
    settings = spawning_agents()
    settings["agents"]["list"][0]["subagents"] = {"allowAgents": allowed}
    async with rehearse(tmp_path, settings) as gateway:
        told = await use(gateway, "agents_list")
        assert [row["id"] for row in told["agents"]] == listed
        for agent in ("ann", "bob", "eve", "nobody"):
            answer = await use(gateway, "sessions_spawn", task="say done", agentId=agent)
            assert (answer["status"] == "accepted") == (agent in listed), answer


@pytest.mark.promise("agents.says_who_asks")
@pytest.mark.parametrize(("allowed", "any_agent"), [(["bob"], False), (["*"], True)])
async def test_agents_list_says_who_asks_and_whether_any_agent_will_do(
    tmp_path: Path, allowed: list[str], any_agent: bool
) -> None:
    settings = spawning_agents()
    settings["agents"]["list"][1]["subagents"] = {"allowAgents": allowed}
    async with rehearse(tmp_path, settings) as gateway:
        told = await use(gateway, "agents_list", BOB)
        assert (told["requester"], told["allowAny"]) == ("bob", any_agent)


@pytest.mark.promise("agents.rows")
async def test_an_agents_row_has_its_name_and_model_where_they_are_known(tmp_path: Path) -> None:
    settings = spawning_agents()
    settings["agents"]["list"][1] |= {"name": "Bob the builder", "model": "anthropic/claude"}
    async with rehearse(tmp_path, settings) as gateway:
        assert (await use(gateway, "agents_list"))["agents"] == [
            {"id": "ann", "configured": True},
            {"id": "bob", "configured": True, "name": "Bob the builder", "model": "anthropic/claude"},
        ]
