"""Labels: whose they are, what a taken one tells, and what a label names when several sessions have it."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.harnesses import harness_settings
from tests.integration.helpers import (
    ANN,
    BOB,
    EVE,
    Gate,
    create_sessions,
    keys_in,
    spawning_agents,
    three_agents,
    use,
    wait_until_idle,
)
from tests.integration.test_wire import client_of

from hobnob.errors import LabelAmbiguous, RpcFailed, SessionNotFound
from hobnob.policy import Operator
from hobnob.requests import SessionQuery, SpawnRequest
from hobnob.sessions import Cause
from hobnob.store import sessions
from hobnob.testing import OWNER, rehearse

ANNS, BOBS, EVES = "agent:ann:hook:1", "agent:bob:hook:1", "agent:eve:hook:1"


def seen(visibility: str, **more: Any) -> dict[str, Any]:
    settings = spawning_agents(**more)
    settings["tools"]["sessions"]["visibility"] = visibility
    return settings


@pytest.mark.promise("policy.unknown_looks_like_invisible")
@pytest.mark.parametrize("visibility", ["self", "tree", "agent"])
@pytest.mark.parametrize("agent", ["ann", "bob"])
async def test_a_spawn_does_not_tell_which_labels_others_use(
    tmp_path: Path, visibility: str, agent: str
) -> None:
    async with rehearse(tmp_path, seen(visibility)) as gateway:
        await create_sessions(gateway, EVES, label="secret")
        await create_sessions(gateway, BOBS, label="secret")
        await create_sessions(gateway, ANNS, label="secret")
        first = await use(gateway, "sessions_spawn", task="x", label="secret", agentId=agent)
        assert first["status"] == "accepted", first
        before = len(await gateway.store.read(sessions.page))
        again = await use(gateway, "sessions_spawn", task="y", label="secret", agentId=agent)
        assert again["code"] == "label.taken"
        assert again["error"] == "Another sub-agent of this session already has the label 'secret'."
        assert len(await gateway.store.read(sessions.page)) == before


async def test_a_harness_that_others_use_too_does_not_tell_their_labels(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        for session in (ANN, BOB, EVE):
            answer = await use(gateway, "sessions_spawn", session, task="work", runtime="acp", label="x")
            assert answer["status"] == "accepted", answer
            await wait_until_idle(gateway, session)


async def test_each_agent_has_labels_of_its_own(tmp_path: Path) -> None:
    agents = {"agents": {"list": [{"id": "main"}, {"id": "helper"}]}}
    async with client_of(tmp_path, agents) as client:
        await client.call("sessions.create", key="hook:1", label="desk")
        await client.call("sessions.create", key="agent:helper:hook:1", label="desk")
        with pytest.raises(RpcFailed, match="session of agent 'main' already has the label 'desk'"):
            await client.call("sessions.create", key="hook:2", label="desk")
        await client.call("sessions.create", key="hook:2", label="lamp")
        with pytest.raises(RpcFailed, match="already has the label 'desk'"):
            await client.call("sessions.patch", key="hook:2", label="desk")
        found = await client.call("sessions.resolve", label="desk", agentId="helper")
        assert found["key"] == "agent:helper:hook:1"
        with pytest.raises(RpcFailed, match="agent:helper:hook:1, agent:main:hook:1") as refused:
            await client.call("sessions.resolve", label="desk")
        assert refused.value.reason == "label.ambiguous"


@pytest.mark.promise("send.by_label", "send.by_label_of_an_agent")
async def test_an_ambiguous_label_is_refused_with_the_keys_that_may_be_meant(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        for key in (EVES, BOBS):
            await create_sessions(gateway, key, label="desk")
        answer = await use(gateway, "sessions_send", label="desk", message="say: here")
        assert (answer["status"], answer["code"]) == ("error", "label.ambiguous")
        assert BOBS in answer["error"] and EVES in answer["error"]
        assert "key" in answer["fix"]
        for agent, key in (("bob", BOBS), ("eve", EVES)):
            sent = await use(gateway, "sessions_send", label="desk", agentId=agent, message="say: here")
            assert (sent["status"], sent["sessionKey"]) == ("ok", key)


async def test_a_label_names_only_what_the_caller_may_see(tmp_path: Path) -> None:
    narrow = Operator("n", ("operator.admin",), ("bob", "eve"))
    bob, stranger = Operator("b", ("operator.admin",), ("bob",)), Operator("s", (), ("mallory",))
    async with rehearse(tmp_path, three_agents()) as gateway:
        for key in (ANNS, BOBS, EVES):
            await create_sessions(gateway, key, label="desk")
        assert (await gateway.sessions.resolve(bob, label="desk")).key == BOBS
        with pytest.raises(LabelAmbiguous) as refused:
            await gateway.sessions.resolve(narrow, label="desk")
        assert ANNS not in refused.value.message
        with pytest.raises(SessionNotFound) as unseen:
            await gateway.sessions.resolve(stranger, label="desk")
        with pytest.raises(SessionNotFound) as unknown:
            await gateway.sessions.resolve(stranger, label="none")
        assert unseen.value.message == unknown.value.message.replace("none", "desk")


async def test_an_archived_session_gives_way_to_one_in_use(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        for key in (BOBS, EVES):
            await create_sessions(gateway, key, label="desk")
        await gateway.sessions.archive(OWNER, BOBS)
        assert (await gateway.sessions.resolve(OWNER, label="desk")).key == EVES
        assert (await gateway.sessions.resolve(OWNER, label="desk", agent_id="bob")).key == BOBS


@pytest.mark.promise("list.by_label")
async def test_a_list_by_label_holds_all_of_them_page_after_page(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        for key in (ANNS, BOBS, EVES):
            await create_sessions(gateway, key, label="desk")
        query = SessionQuery(label="desk", limit=2)
        first = await gateway.sessions.queries.list(OWNER, query)
        rest = await gateway.sessions.queries.list(
            OWNER, query.model_copy(update={"cursor": first["nextCursor"]})
        )
        assert keys_in(first) + keys_in(rest) == [ANNS, BOBS, EVES]


async def test_a_label_of_several_working_sub_agents_cancels_none(tmp_path: Path) -> None:
    gate = Gate()
    settings = spawning_agents(subagents={"maxSpawnDepth": 2})
    request = SpawnRequest(task="call hold {}", label="x")
    async with rehearse(tmp_path, settings, tools=(gate.tool,)) as gateway:
        child = await use(gateway, "sessions_spawn", task="call hold {}", label="x")
        session = await gateway.store.read(sessions.get, child["childSessionKey"])
        below = await gateway.sessions.spawn(Cause(session, None, "call"), request)
        answer = await use(gateway, "subagents", action="cancel", target="x")
        assert (answer["status"], answer.get("code")) == ("error", "label.ambiguous"), answer
        assert session.key in answer["error"] and below.child_session_key in answer["error"]
        gate.open.set()
