"""sessions_send: a message into another session, and what follows it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import ANN, BOB, EVE, Gate, texts, three_agents, transcript, use
from tests.waiting import LIMIT_S

from hobnob.events import WebchatMessage
from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.sessions import Cause, SendTarget
from hobnob.store import Tx, exchanges, sessions, turns
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say
from hobnob.types import Exchange, Session, Turn


async def last_exchange(gateway: Gateway) -> dict[str, Any]:
    newest = (await gateway.sessions.queries.exchanges(OWNER))["exchanges"][0]
    return await exchange_ended(gateway, newest["id"])


@pytest.mark.promise("send.ok_with_reply", "send.by_key", "send.wait_again")
async def test_a_send_waits_for_the_answer_of_that_very_turn(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "say: something older", BOB)
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="say: it is 42")
        assert (answer["status"], answer["reply"], answer["sessionKey"]) == ("ok", "it is 42", BOB)
        turn = await gateway.sessions.wait(answer["runId"], LIMIT_S)
        assert turn.reply == "it is 42"
        again = await gateway.sessions.wait(answer["runId"], 5, caller=OWNER)
        assert again.reply == "it is 42"  # whoever waits again gets the same answer


@pytest.mark.promise("send.timeout_zero_accepts")
async def test_a_send_with_timeout_zero_is_accepted_and_goes_on_by_itself(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="say: yes", timeoutSeconds=0)
        assert answer == {
            "status": "accepted",
            "runId": answer["runId"],
            "sessionKey": BOB,
            "exchangeId": answer["exchangeId"],
        }
        assert (await gateway.sessions.wait(answer["runId"], LIMIT_S)).reply == "yes"


@pytest.mark.promise("send.timeout_status", "loop.without_a_waiter")
async def test_a_send_that_is_not_answered_in_time_says_so_and_the_turn_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    scripts = {BOB: [calls("hold"), "late"]}
    async with rehearse(tmp_path, three_agents(scripts), tools=[gate.tool]) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="hi", timeoutSeconds=0.05)
        assert answer["status"] == "timeout"
        assert "sessions_history" in answer["error"]
        gate.open.set()
        assert (await gateway.sessions.wait(answer["runId"], LIMIT_S)).reply == "late"
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert ended["steps"][1]["sessionKey"] == ANN  # the late reply is brought to whoever asked


@pytest.mark.promise("send.failed_turn_is_error")
async def test_a_send_to_a_session_that_fails_tells_why(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents({BOB: [{"error": "the key is wrong"}]})) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="hi")
        assert answer["status"] == "error"
        assert "the key is wrong" in answer["error"]
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert (ended["state"], ended["end"]) == ("failed", "failed")


@pytest.mark.promise("send.no_text_is_no_reply")
@pytest.mark.parametrize("reply", ["", "REPLY_SKIP"])
async def test_a_turn_that_ends_without_text_is_no_reply(tmp_path: Path, reply: str) -> None:
    async with rehearse(tmp_path, three_agents({BOB: [{"text": reply}]})) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="hi")
        assert answer["status"] == "no_reply"
        assert "reply" not in answer
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert (ended["state"], [s["step"] for s in ended["steps"]]) == ("done", ["primary"])


@pytest.mark.promise("send.provenance_kind", "send.provenance_source")
async def test_a_message_says_where_it_comes_from_and_only_the_server_says_so(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="say: yes")
        told = (await transcript(gateway, BOB))[0]
        assert told["content"] == "say: yes"
        assert told["provenance"] == {
            "kind": "inter_session",
            "sourceSessionKey": ANN,
            "sourceChannel": "webchat",
            "sourceTool": "sessions_send",
            "exchangeId": answer["exchangeId"],
            "hop": 1,
        }
        forged = {"sessionKey": BOB, "message": "x", "provenance": {"kind": "user"}}
        refused = await use(gateway, "sessions_send", **forged)
        assert "no parameter provenance" in refused["error"]


@pytest.mark.promise("send.context_says_who_asks", "send.context_is_system", "send.text_is_data")
async def test_the_agent_there_is_told_who_asks_and_that_it_is_information(
    tmp_path: Path, model_requests: Any
) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await use(gateway, "sessions_send", sessionKey=BOB, message="say: yes")
        await last_exchange(gateway)
    first = next(r for r in model_requests if r.session_key == BOB)
    assert "Agent-to-agent message" in first.system
    assert f'Requester: "{ANN}", on "webchat".' in first.system
    assert "not a person" in first.messages[-1]["content"]
    assert first.messages[-1]["content"].endswith("]\nsay: yes")


@pytest.mark.promise(
    "loop.after_a_reply",
    "loop.requester_first",
    "loop.alternates",
    "loop.skip_ends_it",
    "announce.once_after_the_loop",
    "announce.in_the_target",
)
async def test_agents_reply_to_each_other_in_turn_until_one_has_nothing_to_say(tmp_path: Path) -> None:
    scripts = {
        ANN: [
            calls("sessions_send", sessionKey=BOB, message="What is it?"),
            "Done.",
            "What else?",
            "REPLY_SKIP",
        ],
        BOB: ["It is 42.", "Nothing.", "ANNOUNCE_SKIP"],
    }
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        await say(gateway, "go", ANN)
        ended = await last_exchange(gateway)
        steps = [(s["step"], s["sessionKey"], s.get("text")) for s in ended["steps"]]
        assert steps == [
            ("primary", BOB, "It is 42."),
            ("reply", ANN, "What else?"),
            ("reply", BOB, "Nothing."),
            ("reply", ANN, None),
            ("announce", BOB, None),
        ]
        assert (ended["loopEnd"], ended["end"]) == ("reply_skip", "announce_skip")


@pytest.mark.promise("loop.at_most_the_limit", "loop.zero_means_none")
@pytest.mark.parametrize("most", [0, 1, 3, 5])
async def test_the_loop_has_at_most_the_configured_turns(tmp_path: Path, most: int) -> None:
    scripts = {
        ANN: [calls("sessions_send", sessionKey=BOB, message="?"), "Done.", *["more"] * 9],
        BOB: ["first", *["more"] * 9],
    }
    session = {"agentToAgent": {"maxPingPongTurns": most}}
    async with rehearse(tmp_path, three_agents(scripts, session=session)) as gateway:
        await say(gateway, "go", ANN)
        steps = [s["step"] for s in (await last_exchange(gateway))["steps"]]
        assert steps == ["primary", *["reply"] * most, "announce"]


@pytest.mark.promise("announce.told_the_exchange", "announce.in_the_target")
async def test_the_announce_step_is_told_the_request_the_first_and_the_latest_reply(
    tmp_path: Path, model_requests: Any
) -> None:
    scripts = {
        ANN: [
            calls("sessions_send", sessionKey=BOB, message="Question one"),
            "Done.",
            "Answer two",
            "REPLY_SKIP",
        ],
        BOB: ["Answer one", "Answer three", "ANNOUNCE_SKIP"],
    }
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        await say(gateway, "go", ANN)
        await last_exchange(gateway)
    announce = next(r for r in model_requests if "announce step" in r.system)
    assert announce.session_key == BOB
    for text in ("Question one", "Answer one", "Answer three", "ANNOUNCE_SKIP"):
        assert text in announce.system
    assert announce.tools == []


@pytest.mark.promise("announce.else_delivered")
async def test_an_announcement_goes_to_the_chat_of_the_target_and_is_kept_for_later(tmp_path: Path) -> None:
    scripts = {BOB: ["hello", "the answer", "All is told."]}
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        await say(gateway, "hi", BOB)
        posts = gateway.hub.subscribe(lambda event: isinstance(event, WebchatMessage))
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="?")
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert ended["end"] == "delivered"
        assert ended["delivery"] == {"state": "delivered", "channel": "webchat", "to": BOB, "attempts": 1}
        event: Any = await posts.next()
        assert (event.session_key, event.delivery.text) == (BOB, "All is told.")
        assert [d.text for d in (await gateway.sessions.queries.deliveries(OWNER, BOB))[1]] == [
            "All is told."
        ]


@pytest.mark.promise(
    "send.primary_turn_is_silent",
    "loop.turns_are_silent",
    "announce.skip_is_silent",
    "exchange.skip_words_never_delivered",
)
async def test_only_the_announcement_is_delivered(tmp_path: Path) -> None:
    scripts = {
        ANN: ["hi", calls("sessions_send", sessionKey=BOB, message="?"), "Done.", "more?", "REPLY_SKIP"],
        BOB: ["hello", "first", "second", "ANNOUNCE_SKIP"],
    }
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        await say(gateway, "hi", BOB)
        await say(gateway, "hi", ANN)
        await say(gateway, "go", ANN)
        assert (await last_exchange(gateway))["end"] == "announce_skip"
        assert (await gateway.sessions.queries.deliveries(OWNER, BOB))[1] == []
        assert (await gateway.sessions.queries.deliveries(OWNER, ANN))[1] == []


async def test_without_a_chat_an_announcement_stays_in_the_transcript(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents({BOB: ["yes", "Told."]})) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="?")
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert (ended["end"], "delivery" in ended) == ("no_route", False)
        assert (await texts(gateway, BOB, "assistant"))[-1] == "Told."


@pytest.mark.promise("send.refused_writes_nothing")
async def test_a_session_that_takes_no_messages_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    deny = {"sendPolicy": {"rules": [{"match": {"keyPrefix": "agent:bob"}, "action": "deny"}]}}
    async with rehearse(tmp_path, three_agents(session=deny)) as gateway:
        answer = await use(gateway, "sessions_send", agentId="bob", message="hi")
        assert (answer["status"], answer["code"]) == ("forbidden", "send_policy.denied")
        assert "session.sendPolicy.rules[0].action" in answer["fix"]
        assert await gateway.store.read(sessions.find, BOB) is None
        assert (await gateway.sessions.queries.exchanges(OWNER))["count"] == 0


async def test_a_requester_that_takes_no_messages_ends_the_loop(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "hi", ANN)
        await say(gateway, "hi", BOB)
        answer = await use(gateway, "sessions_send", ANN, sessionKey=BOB, message="say: yes")
        await exchange_ended(gateway, answer["exchangeId"])
        slow = await use(gateway, "sessions_send", EVE, sessionKey=BOB, message="say: yes", timeoutSeconds=0)
        await gateway.sessions.patch(OWNER, EVE, send_policy="deny")
        ended = await exchange_ended(gateway, slow["exchangeId"])
        assert ended["state"] == "done"
        assert ended.get("loopEnd") in ("policy", "reply_skip")  # by which of the two came first


@pytest.mark.promise("exchange.circle_is_refused", "exchange.circle_is_named")
async def test_a_session_without_a_reply_cannot_close_a_circle_of_waits(tmp_path: Path) -> None:
    """Ann waits for Bob, whose turn asks Ann: that is refused at once, and Bob can still answer."""
    scripts = {
        ANN: [calls("sessions_send", sessionKey=BOB, message="?"), "Ann is done."],
        BOB: [calls("sessions_send", sessionKey=ANN, message="??"), "Bob answers all the same."],
    }
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        turn = await say(gateway, "go", ANN)
        assert turn.reply == "Ann is done."
        [refusal] = [m for m in await transcript(gateway, BOB) if m["role"] == "toolResult"]
        assert '"code":"deadlock"' in refusal["content"][0]["text"]
        assert f"{BOB} waits for {ANN} waits for {BOB}" in refusal["content"][0]["text"]


@pytest.mark.promise("exchange.circle_is_refused", "exchange.circle_is_named")
async def test_a_circle_over_three_sessions_is_refused(tmp_path: Path) -> None:
    scripts = {
        ANN: [calls("sessions_send", sessionKey=BOB, message="1"), "Ann."],
        BOB: [calls("sessions_send", sessionKey=EVE, message="2"), "Bob."],
        EVE: [calls("sessions_send", sessionKey=ANN, message="3"), "Eve."],
    }
    async with rehearse(tmp_path, three_agents(scripts)) as gateway:
        assert (await say(gateway, "go", ANN)).reply == "Ann."
        [refusal] = [m for m in await transcript(gateway, EVE) if m["role"] == "toolResult"]
        circle = f"{EVE} waits for {ANN} waits for {BOB} waits for {EVE}"
        assert circle in refusal["content"][0]["text"]


@pytest.mark.promise(
    "exchange.waiting_for_itself_is_refused", "loop.not_with_itself", "announce.without_a_loop_too"
)
async def test_a_session_cannot_wait_for_itself_but_can_write_to_itself(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        refused = await use(gateway, "sessions_send", sessionKey="main", message="hi")
        assert (refused["status"], refused["code"]) == ("forbidden", "deadlock")
        written = await use(gateway, "sessions_send", sessionKey="main", message="say: hi", timeoutSeconds=0)
        assert written["status"] == "accepted"
        ended = await exchange_ended(gateway, written["exchangeId"])
        assert [s["step"] for s in ended["steps"]] == ["primary", "announce"]  # nobody else to reply to


async def test_a_wait_that_is_over_closes_no_circle(tmp_path: Path) -> None:
    gate = Gate()
    scripts = {BOB: [calls("hold"), "late", "REPLY_SKIP", "fine", "fine", "fine"]}
    async with rehearse(tmp_path, three_agents(scripts), tools=[gate.tool]) as gateway:
        late = await use(gateway, "sessions_send", sessionKey=BOB, message="hi", timeoutSeconds=0.02)
        assert late["status"] == "timeout"
        answer = await use(gateway, "sessions_send", EVE, sessionKey=ANN, message="say: yes")
        assert answer["status"] == "ok"


async def test_waits_of_a_process_that_died_still_count(tmp_path: Path) -> None:
    """The waits are rows: a send made right after a restart sees them, before any turn has gone on."""

    def waits(tx: Tx) -> None:
        ann, bob = Session.of(parse(ANN)), Session.of(parse(BOB))
        for session in (ann, bob):
            sessions.create(tx, session)
        asking = turns.accept(
            tx, Turn(session_key=ANN, session_id=ann.session_id, agent_id="ann", input="{}", turn_id="asking")
        )
        exchanges.begin(
            tx,
            Exchange(
                requester_key=ANN,
                target_key=BOB,
                request="?",
                turn_id="asked",
                caller_turn_id=asking.turn_id,
                wait_until_ms=2**60,
            ),
        )
        assert exchanges.awaited_by(tx, ANN) == [BOB]
        turns.abort(tx, asking.turn_id, "gone")
        assert exchanges.awaited_by(tx, ANN) == []  # whoever waited is gone, and so is the wait

    async with rehearse(tmp_path, three_agents()) as gateway:
        await gateway.store.write(waits)


@pytest.mark.promise("exchange.hop_limit", "exchange.hops_are_counted")
async def test_a_chain_of_agents_ends_at_the_hop_limit(tmp_path: Path) -> None:
    """Each asks the next without waiting, round and round."""
    scripts = {
        key: [*[calls("sessions_send", sessionKey=nxt, message="go on", timeoutSeconds=0), "Passed on."] * 6]
        for key, nxt in ((ANN, BOB), (BOB, EVE), (EVE, ANN))
    }
    session = {"agentToAgent": {"maxHops": 4, "maxPingPongTurns": 0}}
    async with rehearse(tmp_path, three_agents(scripts, session=session)) as gateway:
        await say(gateway, "go", ANN)
        hops = []
        for _ in range(4):
            page = await gateway.sessions.queries.exchanges(OWNER)
            for found in page["exchanges"]:
                await exchange_ended(gateway, found["id"])
            hops = sorted(e["hop"] for e in page["exchanges"])
        assert max(hops) == 4
        refused = [
            m["content"][0]["text"]
            for key in (ANN, BOB, EVE)
            for m in await transcript(gateway, key)
            if m["role"] == "toolResult" and m["isError"]
        ]
        assert any('"code":"hop_limit"' in text and "maxHops 5" in text for text in refused)


@pytest.mark.promise("exchange.nothing_doubled")
async def test_the_same_tool_call_is_one_message_for_ever(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        turn = await say(gateway, "hi", ANN)
        ann = await gateway.store.read(sessions.get, ANN)
        cause = Cause(ann, turn, "call-1")
        first = await gateway.sessions.send_as_agent(cause, SendTarget(session_key=BOB), "x", wait_s=0)
        again = await gateway.sessions.send_as_agent(cause, SendTarget(session_key=BOB), "x", wait_s=0)
        assert first[0].turn_id == again[0].turn_id
        assert (await gateway.sessions.queries.exchanges(OWNER))["count"] == 1


async def test_a_caller_that_vanishes_while_it_waits_leaves_the_answer_where_it_is(tmp_path: Path) -> None:
    gate = Gate()
    scripts = {BOB: [calls("hold"), "late", "REPLY_SKIP", "ANNOUNCE_SKIP"]}
    async with rehearse(tmp_path, three_agents(scripts), tools=[gate.tool]) as gateway:
        asking = await gateway.sessions.send(OWNER, ANN, f"ask {BOB}: ?")
        await gate.reached.wait()
        page = await gateway.sessions.queries.exchanges(OWNER)
        await gateway.sessions.abort(OWNER, ANN, turn_id=asking.turn_id)
        assert (await gateway.sessions.wait(asking.turn_id, LIMIT_S)).outcome == "cancelled"
        gate.open.set()
        ended = await exchange_ended(gateway, page["exchanges"][0]["id"])
        assert ended["steps"][0]["text"] == "late"
        assert ended["steps"][1]["sessionKey"] == ANN


async def test_two_callers_of_one_session_each_get_their_own_answer(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        one, two = await asyncio.gather(
            use(gateway, "sessions_send", ANN, agentId="bob", message="say: for ann"),
            use(gateway, "sessions_send", EVE, agentId="bob", message="say: for eve"),
        )
        assert (one["reply"], two["reply"]) == ("for ann", "for eve")


async def test_a_reply_of_five_megabytes_is_cut_and_kept_whole_where_it_was_said(tmp_path: Path) -> None:
    async with rehearse(
        tmp_path, three_agents({BOB: ["x" * 5_000_000, "REPLY_SKIP", "ANNOUNCE_SKIP"]})
    ) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="?")
        assert answer["status"] == "ok"
        assert len(answer["reply"]) < 40_000
        assert "5,000,000 characters left out" in answer["reply"]
        assert len((await texts(gateway, BOB, "assistant"))[0]) == 5_000_000
        assert (await exchange_ended(gateway, answer["exchangeId"]))["state"] == "done"


async def test_a_fan_out_loses_and_reorders_nothing(tmp_path: Path) -> None:
    """200 sends into 50 sessions, made at once by one answer of a model."""
    targets = [f"agent:bob:hook:{n}" for n in range(50)]
    step = {
        "toolCalls": [
            {
                "name": "sessions_send",
                "arguments": {"sessionKey": targets[n % 50], "message": f"say: {n}", "timeoutSeconds": 0},
            }
            for n in range(200)
        ]
    }
    settings = three_agents({ANN: [step, "Sent."]}, session={"agentToAgent": {"maxPingPongTurns": 0}})
    async with rehearse(tmp_path, settings) as gateway:
        for target in targets:
            await gateway.sessions.create(OWNER, target)
        assert (await say(gateway, "go", ANN)).reply == "Sent."
        page = await gateway.sessions.queries.exchanges(OWNER, limit=200)
        assert page["count"] == 200
        for found in page["exchanges"]:
            await exchange_ended(gateway, found["id"], 60)
        for n, target in enumerate(targets):
            told = [m["content"] for m in await transcript(gateway, target) if m["role"] == "user"]
            asked = [text for text in told if text.startswith("say:")]
            assert asked == [f"say: {n + 50 * i}" for i in range(4)]


async def test_a_call_id_that_is_used_for_another_message_is_another_message(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        turn = await say(gateway, "hi", ANN)
        cause = Cause(await gateway.store.read(sessions.get, ANN), turn, "call-1")
        first, _ = await gateway.sessions.send_as_agent(cause, SendTarget(session_key=BOB), "one", wait_s=0)
        second, _ = await gateway.sessions.send_as_agent(cause, SendTarget(session_key=BOB), "two", wait_s=0)
        assert first.turn_id != second.turn_id
