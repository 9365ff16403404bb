"""An exchange as it is shown: who, how it stands, each step, and what became of its announcement."""

from pathlib import Path

import pytest
from tests.integration.helpers import ANN, BOB, Gate, three_agents, use

from hobnob.errors import NotFound
from hobnob.policy import Operator
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say
from hobnob.types import now_ms


async def test_an_exchange_shows_both_sides_its_state_its_end_its_hop_and_its_time(tmp_path: Path) -> None:
    before = now_ms()
    async with rehearse(tmp_path, three_agents({BOB: ["yes", "ANNOUNCE_SKIP"]})) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="What?")
        ended = await exchange_ended(gateway, answer["exchangeId"])
    assert (ended["requester"], ended["target"], ended["request"]) == (ANN, BOB, "What?")
    assert (ended["state"], ended["end"], ended["hop"]) == ("done", "announce_skip", 1)
    assert before <= ended["createdAt"] <= ended["updatedAt"] <= now_ms()


async def test_an_exchange_shows_each_step_with_its_run_its_words_and_what_it_used(tmp_path: Path) -> None:
    scripts = {BOB: ["yes", "Told."]}
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="What?")
        ended = await exchange_ended(gateway, answer["exchangeId"])
    assert [(s["step"], s["sessionKey"], s["status"], s.get("text")) for s in ended["steps"]] == [
        ("primary", BOB, "ok", "yes"),
        ("reply", ANN, "ok", None),
        ("announce", BOB, "ok", "Told."),
    ]
    assert ended["steps"][0]["runId"] == answer["runId"]
    assert ended["steps"][1]["skipped"] is True
    assert all(s["usage"]["input"] > 0 and s["usage"]["output"] > 0 for s in ended["steps"])
    assert all(s["acceptedAt"] <= s["startedAt"] <= s["endedAt"] for s in ended["steps"])


async def test_an_exchange_that_goes_on_shows_where_it_is(tmp_path: Path) -> None:
    gate = Gate()
    async with rehearse(tmp_path, three_agents({BOB: [calls("hold"), "yes"]}), tools=[gate.tool]) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="?", timeoutSeconds=0)
        await gate.reached.wait()
        shown = await gateway.sessions.queries.exchange(OWNER, answer["exchangeId"])
        assert (shown["state"], shown["phase"], "end" in shown) == ("open", "primary", False)
        assert [(s["step"], s["status"]) for s in shown["steps"]] == [("primary", "running")]
        gate.open.set()
        await exchange_ended(gateway, answer["exchangeId"])


@pytest.mark.parametrize(("timeout_s", "waited"), [(0, False), (30, True)])
async def test_an_ended_exchange_shows_whether_its_sender_waited(
    tmp_path: Path, timeout_s: int, waited: bool
) -> None:
    async with rehearse(tmp_path, three_agents({BOB: ["yes", "ANNOUNCE_SKIP"]})) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="?", timeoutSeconds=timeout_s)
        ended = await exchange_ended(gateway, answer["exchangeId"])
    assert (ended["waited"], "waitUntil" in ended) == (waited, False)


async def test_an_exchange_shows_where_its_announcement_went(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents({BOB: ["hello", "yes", "Told."]})) as gateway:
        await say(gateway, "hi", BOB)
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="?")
        ended = await exchange_ended(gateway, answer["exchangeId"])
    assert ended["delivery"] == {"state": "delivered", "channel": "webchat", "to": BOB, "attempts": 1}


async def test_an_exchange_is_shown_only_to_who_may_read_both_sides(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="say: yes")
        await exchange_ended(gateway, answer["exchangeId"])
        for agents in (("ann",), ("bob",), ()):
            narrow = Operator("narrow", ("operator.read",), agents)
            with pytest.raises(NotFound):
                await gateway.sessions.queries.exchange(narrow, answer["exchangeId"])
