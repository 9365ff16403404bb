"""The send policy where it acts: on what people send, on the turns of exchanges, on what goes out."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    Gate,
    spawning_agents,
    texts,
    three_agents,
    use,
    wait_until_idle,
)

from hobnob.errors import BadInput, NotAllowed
from hobnob.models.rehearsal import Rehearsal
from hobnob.store import sessions
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say

NOT_TO_BOB = {"sendPolicy": {"rules": [{"match": {"keyPrefix": "agent:bob"}, "action": "deny"}]}}


@pytest.mark.promise("send_policy.set_by_patch")
async def test_a_patch_sets_the_override_and_takes_it_back(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents(session=NOT_TO_BOB)) as gateway:
        await gateway.sessions.create(OWNER, BOB)
        with pytest.raises(NotAllowed, match="rules"):
            await gateway.sessions.send(OWNER, BOB, "hi")
        await gateway.sessions.patch(OWNER, BOB, send_policy="allow")
        assert (await say(gateway, "say: yes", BOB)).reply == "yes"
        await gateway.sessions.patch(OWNER, BOB, send_policy=None)
        with pytest.raises(NotAllowed, match="rules"):
            await gateway.sessions.send(OWNER, BOB, "hi")


@pytest.mark.promise("send_policy.set_by_patch")
async def test_an_override_there_is_not_is_refused(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await gateway.sessions.create(OWNER, BOB)
        with pytest.raises(BadInput, match="allow, deny or null"):
            await gateway.sessions.patch(OWNER, BOB, send_policy="perhaps")
        assert (await gateway.store.read(sessions.get, BOB)).send_policy is None


@pytest.mark.promise("send_policy.override_wins")
async def test_a_send_into_a_denied_session_starts_no_turn(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await gateway.sessions.create(OWNER, BOB, send_policy="deny")
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="hi")
        assert (answer["status"], answer["code"]) == ("forbidden", "send_policy.denied")
        assert await texts(gateway, BOB, "user") == []


async def test_a_target_that_is_denied_meanwhile_gets_no_announce_turn(tmp_path: Path) -> None:
    gate = Gate()
    limits = {"agentToAgent": {"maxPingPongTurns": 0}}
    scripts = {BOB: [calls("hold"), "yes", "Told."]}
    async with rehearse(tmp_path, three_agents(scripts, session=limits), tools=[gate.tool]) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="?", timeoutSeconds=0)
        await gate.reached.wait()
        await gateway.sessions.patch(OWNER, BOB, send_policy="deny")
        gate.open.set()
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert ([s["step"] for s in ended["steps"]], ended["end"]) == (["primary"], "policy")


async def test_a_requester_that_is_denied_meanwhile_is_not_woken(tmp_path: Path) -> None:
    gate = Gate()
    settings = spawning_agents({"*": [calls("hold"), "done", "Done."]}, {"onComplete": "wake"})
    async with rehearse(tmp_path, settings, tools=[gate.tool]) as gateway:
        answer = await use(gateway, "sessions_spawn", task="Count.")
        await gate.reached.wait()
        await gateway.sessions.patch(OWNER, ANN, send_policy="deny")
        gate.open.set()
        await exchange_ended(gateway, answer["exchangeId"])
        await wait_until_idle(gateway, ANN)
        assert (await texts(gateway, ANN, "user"))[-1].startswith("Status: completed")
        assert not any("Status:" in text for text in await texts(gateway, ANN, "assistant"))


@pytest.mark.promise("send_policy.holds_for_deliveries")
async def test_a_report_is_not_delivered_to_a_session_that_is_denied(tmp_path: Path) -> None:
    gate = Gate()
    async with rehearse(
        tmp_path, spawning_agents({"*": [calls("hold"), "done", "Done."]}), tools=[gate.tool]
    ) as gateway:
        await say(gateway, "hi", ANN)
        answer = await use(gateway, "sessions_spawn", task="Count.")
        await gate.reached.wait()
        await gateway.sessions.patch(OWNER, ANN, send_policy="deny")
        gate.open.set()
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert (ended["end"], "delivery" in ended) == ("policy", False)
        assert (await gateway.sessions.queries.deliveries(OWNER, ANN))[1] == []


@pytest.mark.promise("send_policy.holds_for_deliveries")
async def test_an_announcement_is_not_delivered_to_a_session_that_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announce turn itself takes the right away, at the moment its model is asked."""
    scripts = {BOB: ["hello", "yes", "Told."]}
    limits = {"agentToAgent": {"maxPingPongTurns": 0}}
    async with rehearse(tmp_path, three_agents(scripts, session=limits)) as gateway:
        await say(gateway, "hi", BOB)
        stream = Rehearsal.stream

        async def meddling(self: Rehearsal, request: Any) -> Any:
            if "announce step" in request.system:
                await gateway.sessions.patch(OWNER, BOB, send_policy="deny")
            async for event in stream(self, request):
                yield event

        monkeypatch.setattr(Rehearsal, "stream", meddling)
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="?")
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert [(s["step"], s.get("text")) for s in ended["steps"]] == [
            ("primary", "yes"),
            ("announce", "Told."),
        ]
        assert (ended["end"], "delivery" in ended) == ("policy", False)
        assert (await gateway.sessions.queries.deliveries(OWNER, BOB))[1] == []
