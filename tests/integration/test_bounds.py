"""Results stay within their bounds, as a model reads them; and what is listed is what is accepted."""

from pathlib import Path

import orjson
import pytest
from tests.integration.helpers import ANN, BOB, append_messages, create_sessions, three_agents, use
from tests.integration.sandboxed import needs_sandbox
from tests.waiting import LIMIT_S

from hobnob.store import entries, sessions
from hobnob.testing import OWNER, rehearse, say
from hobnob.types import text_of


async def last_result(gateway: object, key: str) -> str:
    store = gateway.store  # type: ignore[attr-defined]
    session = await store.read(sessions.get, key)
    kept = await store.read(entries.history, session.session_id, limit=10)
    return [text_of(e.message) for e in kept if e.role == "toolResult"][-1]


@pytest.mark.promise("list.bounded")
async def test_a_list_is_within_its_bound_as_the_model_reads_it(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, *(f"agent:bob:irc:group:{n}{'x' * 300}" for n in range(190)))
        answer = await use(gateway, "sessions_list", limit=200)
        assert answer["truncationReason"] == "byte-limit"
        assert len((await last_result(gateway, ANN)).encode()) <= 65 * 1024


@pytest.mark.promise("history.bounded")
async def test_a_history_is_within_its_bound_as_the_model_reads_it(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, "agent:bob:hook:1")
        await append_messages(gateway, hook, *["y" * 900] * 300)
        answer = await use(gateway, "sessions_history", sessionKey=hook.key, limit=1000)
        assert len(orjson.dumps(answer["messages"])) == answer["bytes"] <= 80 * 1024


@needs_sandbox
@pytest.mark.promise("agents.exactly_what_spawn_accepts")
async def test_agents_list_shows_just_those_a_spawn_is_accepted_for(tmp_path: Path) -> None:
    """A sandboxed caller, and agents in and out of a sandbox."""
    settings = three_agents()
    settings["agents"]["list"][0] |= {"sandbox": {"mode": "all"}, "subagents": {"allowAgents": ["*"]}}
    settings["agents"]["list"][2]["sandbox"] = {"mode": "all"}
    async with rehearse(tmp_path, settings) as gateway:
        listed = [a["id"] for a in (await use(gateway, "agents_list"))["agents"]]
        accepted = []
        for agent in ("ann", "bob", "eve"):
            answer = await use(gateway, "sessions_spawn", task="say: hi", agentId=agent)
            accepted += [agent] if answer["status"] == "accepted" else []
        assert listed == accepted == ["ann", "eve"]


@pytest.mark.promise("send_policy.holds_for_exchanges")
async def test_a_child_that_would_take_no_message_is_not_spawned(tmp_path: Path) -> None:
    deny = {"sendPolicy": {"rules": [{"match": {"keyPrefix": "subagent:"}, "action": "deny"}]}}
    async with rehearse(tmp_path, three_agents(session=deny)) as gateway:
        answer = await use(gateway, "sessions_spawn", task="x")
        assert answer["code"] == "send_policy.denied"
        assert (await gateway.sessions.queries.exchanges(OWNER))["count"] == 0


@pytest.mark.promise("list.row_flags")
async def test_a_row_tells_that_its_agent_was_briefed_and_that_its_last_turn_was_stopped(
    tmp_path: Path,
) -> None:
    async with rehearse(tmp_path, three_agents({BOB: [{"text": "x", "delayMs": 600_000}]})) as gateway:
        turn = await gateway.sessions.send(OWNER, BOB, "hi")
        await gateway.sessions.abort(OWNER, BOB)
        await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        await say(gateway, "hi", ANN)
        rows = {r["key"]: r for r in (await use(gateway, "sessions_list"))["sessions"]}
        assert rows[BOB]["abortedLastRun"] is True
        assert rows["main"]["systemSent"] is True
        assert rows["main"]["abortedLastRun"] is False


@pytest.mark.promise("list.by_words")
async def test_a_search_of_the_list_wants_every_word(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, "agent:bob:irc:group:ops", "agent:bob:irc:group:dev")
        found = await use(gateway, "sessions_list", search="ops IRC")
        assert [r["key"] for r in found["sessions"]] == ["agent:bob:irc:group:ops"]
