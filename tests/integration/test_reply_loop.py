"""How the reply-back loop of a send ends, and the limits of exchanges that cause each other."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import ANN, BOB, EVE, Gate, three_agents, transcript, use

from hobnob import config
from hobnob.errors import BadConfig
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say

ASK = calls("sessions_send", sessionKey=BOB, message="?")


async def only_exchange(gateway: Any) -> dict[str, Any]:
    [found] = (await gateway.sessions.queries.exchanges(OWNER))["exchanges"]
    return await exchange_ended(gateway, found["id"])


@pytest.mark.parametrize(
    ("scripts", "loop_end", "steps"),
    [
        ({ANN: [ASK, "Done.", ""], BOB: ["one", "Told."]}, "empty", 1),
        ({ANN: [ASK, "Done.", "two"], BOB: ["one", "  ", "Told."]}, "empty", 2),
        ({ANN: [ASK, "Done.", " REPLY_SKIP\n"], BOB: ["one", "Told."]}, "reply_skip", 1),
        ({ANN: [ASK, "Done.", {"error": "no model"}], BOB: ["one", "Told."]}, "failed", 1),
        (
            {ANN: [ASK, "Done.", "so REPLY_SKIP?", "REPLY_SKIP"], BOB: ["one", "two", "Told."]},
            "reply_skip",
            3,
        ),
    ],
    ids=["empty of requester", "blank of target", "skip", "failure", "skip within text"],
)
@pytest.mark.promise(
    "loop.empty_reply_ends_it",
    "loop.skip_ends_it",
    "loop.failed_turn_ends_it",
    "loop.skip_within_text_does_not",
    "announce.once_after_the_loop",
)
async def test_however_the_loop_ends_its_outcome_is_announced_once(
    tmp_path: Path, scripts: dict[str, Any], loop_end: str, steps: int
) -> None:
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        await say(gateway, "go", ANN)
        ended = await only_exchange(gateway)
        assert ended["loopEnd"] == loop_end
        assert [s["step"] for s in ended["steps"]] == ["primary", *["reply"] * steps, "announce"]


@pytest.mark.promise("loop.denied_policy_ends_it")
@pytest.mark.parametrize(
    ("denied", "replies", "announced"),
    [(ANN, [], True), (BOB, [ANN], False)],
    ids=["requester", "target"],
)
async def test_a_session_that_takes_no_more_messages_ends_the_loop(
    tmp_path: Path, denied: str, replies: list[str], announced: bool
) -> None:
    """It is denied while the turn before its own is under way: the primary turn, or ann's first reply."""
    gate = Gate()
    scripts = {
        ANN: [calls("sessions_send", sessionKey=BOB, message="?", timeoutSeconds=0), "Done.", "two"],
        BOB: ["one", "three", "four"],
    }
    where = BOB if denied == ANN else ANN
    scripts[where].insert(0 if where == BOB else 2, calls("hold"))
    async with rehearse(tmp_path, three_agents(scripts), tools=[gate.tool]) as gateway:
        await say(gateway, "go", ANN)
        await gate.reached.wait()
        await gateway.sessions.patch(OWNER, denied, send_policy="deny")
        gate.open.set()
        ended = await only_exchange(gateway)
        assert ended["loopEnd"] == "policy"
        assert [s["sessionKey"] for s in ended["steps"] if s["step"] == "reply"] == replies
        assert ([s["step"] for s in ended["steps"]][-1] == "announce") == announced


@pytest.mark.promise("loop.limit_range")
async def test_without_a_setting_the_loop_has_five_turns(tmp_path: Path) -> None:
    scripts = {ANN: [ASK, "Done.", *["more"] * 9], BOB: ["first", *["more"] * 9]}
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        await say(gateway, "go", ANN)
        ended = await only_exchange(gateway)
        assert sum(s["step"] == "reply" for s in ended["steps"]) == 5
        assert ended["loopEnd"] == "max_turns"


@pytest.mark.promise("loop.limit_range")
@pytest.mark.parametrize(("turns", "fits"), [(-1, False), (0, True), (5, True), (6, False)])
def test_the_limit_of_the_loop_goes_from_none_to_five(tmp_path: Path, turns: int, fits: bool) -> None:
    file = tmp_path / "hobnob.json5"
    file.write_text(f"{{session: {{agentToAgent: {{maxPingPongTurns: {turns}}}}}}}")
    try:
        loaded = config.load(file, env={"HOBNOB_HOME": str(tmp_path)})
    except BadConfig as refusal:
        assert not fits
        assert [p.path for p in refusal.problems] == ["session.agentToAgent.maxPingPongTurns"]
    else:
        assert fits
        assert loaded.settings.session.agent_to_agent.max_ping_pong_turns == turns


@pytest.mark.promise("loop.not_for_people")
async def test_a_person_who_writes_to_a_session_starts_no_exchange(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        assert (await say(gateway, "say: yes", BOB)).reply == "yes"
        assert (await gateway.sessions.queries.exchanges(OWNER))["count"] == 0


@pytest.mark.promise("exchange.hop_limit_default", "exchange.hop_limit", "exchange.hops_are_counted")
async def test_without_a_setting_a_chain_of_agents_has_eight_hops(tmp_path: Path) -> None:
    """Nine errands one inside the other: each agent passes on the rest."""
    errand = "".join(f"tell {agent}: " for agent in ("bob", "eve", "ann") * 3) + "say: arrived"
    limits = {"agentToAgent": {"maxPingPongTurns": 0}}
    async with rehearse(tmp_path, three_agents(session=limits)) as gateway:
        await say(gateway, errand, ANN)
        known: set[str] = set()
        while new := [
            e["id"]
            for e in (await gateway.sessions.queries.exchanges(OWNER))["exchanges"]
            if e["id"] not in known
        ]:
            for exchange_id in new:
                await exchange_ended(gateway, exchange_id)
            known.update(new)
        found = (await gateway.sessions.queries.exchanges(OWNER))["exchanges"]
        assert sorted(e["hop"] for e in found) == list(range(1, 9))
        told = [str(m) for m in await transcript(gateway, EVE) if m["role"] == "toolResult"]
        assert "hop_limit" in told[-1]
        assert "maxHops 9" in told[-1]


@pytest.mark.promise("exchange.circle_is_refused", "exchange.waiting_for_itself_is_refused")
async def test_a_refused_wait_starts_nothing(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        refused = await use(gateway, "sessions_send", sessionKey="main", message="hi")
        assert (refused["code"], refused["status"]) == ("deadlock", "forbidden")
        assert (await gateway.sessions.queries.exchanges(OWNER))["count"] == 0
