"""Turns in a real gateway on the rehearsal model."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import LIMIT_S

from hobnob.errors import BadInput, NotAllowed, UnknownAgent
from hobnob.events import AnswerDelta, EntryAppended, ToolStarted, TurnChanged
from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.models import TextDelta
from hobnob.models.rehearsal import Rehearsal
from hobnob.sessions import InboundMessage
from hobnob.store import entries, sessions, turns
from hobnob.store.costs import usage as usage_rows
from hobnob.testing import OWNER, calls, rehearse, say, script
from hobnob.tools import Context, Tool, tool
from hobnob.types import Session


async def transcript(gateway: Gateway, key: str = "agent:main:main") -> list[dict[str, Any]]:
    session = await gateway.store.read(sessions.get, key)
    history = await gateway.store.read(entries.history, session.session_id, limit=1000)
    assert [e.seq for e in history] == list(range(1, len(history) + 1))
    return [e.message for e in history]


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [m["role"] for m in messages]


def texts(messages: list[dict[str, Any]]) -> list[str]:
    return [
        m["content"] if isinstance(m["content"], str) else "".join(p.get("text", "") for p in m["content"])
        for m in messages
    ]


@tool()
async def shout(context: Context, word: str, times: int = 1) -> dict[str, Any]:
    """Say a word loudly."""
    return {"shouted": word.upper() * times, "by": context.session.key}


@pytest.mark.promise("outcome.completed", "transcript.usage")
async def test_a_message_becomes_a_turn_that_is_answered_and_kept(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        turn = await say(gateway, "what is 2 + 2?")
        assert (turn.outcome, turn.reply) == ("ok", "2 + 2 = 4")
        kept = await transcript(gateway)
        assert roles(kept) == ["user", "assistant"]
        assert kept[1]["usage"]["totalTokens"] > 0
        session = await gateway.store.read(sessions.get, "agent:main:main")
        assert (session.status, session.model) == ("done", "rehearsal/rehearsal")
        assert session.total_tokens == kept[1]["usage"]["totalTokens"]
        day = usage_rows.today()
        assert [u.calls for u in await gateway.store.read(usage_rows.between, day, day)] == [1]


@pytest.mark.promise(
    "tools.numbers_may_be_text", "transcript.roles", "transcript.text_and_calls", "transcript.stop_reason"
)
async def test_a_turn_calls_tools_and_each_result_is_kept(tmp_path: Path) -> None:
    settings = script(calls("shout", "Let me shout.", word="hey", times="2"), "Done.")
    async with rehearse(tmp_path, settings, tools=[shout]) as gateway:
        turn = await say(gateway, "go")
        assert turn.reply == "Done."
        user, call, result, answer = await transcript(gateway)
        assert roles([user, call, result, answer]) == ["user", "assistant", "toolResult", "assistant"]
        assert [part["type"] for part in call["content"]] == ["text", "toolCall"]
        assert (call["stopReason"], answer["stopReason"]) == ("toolUse", "stop")
        assert result["toolCallId"] == call["content"][1]["id"]
        assert json.loads(texts([result])[0]) == {"shouted": "HEYHEY", "by": "agent:main:main"}


@pytest.mark.promise("transcript.answers_committed_at_once", "transcript.results_committed_at_once")
async def test_each_step_is_in_the_transcript_before_the_next_one_begins(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    class Watching(Rehearsal):
        async def stream(self, request: Any) -> Any:
            seen.append(roles(await transcript(gateway)))
            async for event in super().stream(request):
                yield event

    @tool()
    async def look(context: Context) -> str:
        """Read the transcript."""
        seen.append(roles(await transcript(gateway)))
        return "seen"

    async with rehearse(tmp_path, script(calls("look"), "Done."), tools=[look]) as gateway:
        gateway.models._models["rehearsal/rehearsal"] = Watching(gateway.config.settings)
        assert (await say(gateway, "go")).reply == "Done."
    assert seen == [["user"], ["user", "assistant"], ["user", "assistant", "toolResult"]]


@pytest.mark.promise("tools.unknown_parameters_are_refused", "tools.wrong_types_are_refused")
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (calls("shuot", word="x"), "Did you mean shout?"),
        (calls("shout"), "word is required"),
        (calls("shout", wrod="x"), "did you mean word?"),
        (calls("shout", word="x", times="many"), "times: "),
    ],
)
async def test_a_wrong_tool_call_is_explained_to_the_model_which_goes_on(
    tmp_path: Path, call: Any, said: str
) -> None:
    async with rehearse(tmp_path, script(call, "Sorry."), tools=[shout]) as gateway:
        assert (await say(gateway, "go")).reply == "Sorry."
        result = (await transcript(gateway))[2]
        assert result["isError"] is True
        assert said in texts([result])[0]


async def test_a_tool_that_raises_hangs_or_returns_too_much_does_not_end_the_turn(tmp_path: Path) -> None:
    @tool()
    async def raises(context: Context) -> None:
        """Fail."""
        raise ValueError("planned")

    @tool(timeout_s=0.05)
    async def hangs(context: Context) -> None:
        """Never return."""
        await asyncio.Event().wait()

    @tool()
    async def floods(context: Context) -> str:
        """Return 50 MB."""
        return "x" * 50_000_000

    steps = [calls("raises"), calls("hangs"), calls("floods"), "Still here."]
    async with rehearse(tmp_path, script(*steps), tools=[raises, hangs, floods]) as gateway:
        assert (await say(gateway, "go")).reply == "Still here."
        kept = [m for m in await transcript(gateway) if m["role"] == "toolResult"]
        assert "ValueError: planned" in texts(kept)[0]
        assert "did not finish" in texts(kept)[1]
        assert len(texts(kept)[2]) == 50_000_000


async def test_tools_run_side_by_side_unless_one_must_run_alone(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)
    alone = []

    @tool()
    async def meet(context: Context) -> str:
        """Wait for the other call."""
        async with asyncio.timeout(LIMIT_S):
            await both.wait()
        return "met"

    @tool(parallel=False)
    async def solo(context: Context) -> str:
        """Be alone."""
        alone.append(both.n_waiting)
        return "alone"

    step = {"toolCalls": [{"name": n} for n in ("meet", "solo", "meet")]}
    async with rehearse(tmp_path, script(step, "ok"), tools=[meet, solo]) as gateway:
        assert (await say(gateway, "go")).reply == "ok"
        assert alone == [0]
        assert roles(await transcript(gateway)).count("toolResult") == 3


@pytest.mark.promise("send.waits_its_turn")
async def test_turns_of_a_session_keep_their_order_and_sessions_run_side_by_side(tmp_path: Path) -> None:
    meeting = asyncio.Barrier(4)

    @tool()
    async def meet(context: Context) -> str:
        """Wait until turns of four sessions are here."""
        async with asyncio.timeout(LIMIT_S):
            await meeting.wait()
        return "met"

    settings = {"models": {"rehearsal": {"scripts": {f"hook:{i}": [calls("meet"), "met"] for i in range(4)}}}}
    async with rehearse(tmp_path, settings, tools=[meet]) as gateway:
        accepted = [
            await gateway.sessions.send(OWNER, f"hook:{i}", text)
            for text in ("first", "second", "third")
            for i in range(4)
        ]
        for turn in accepted:
            assert (await gateway.sessions.wait(turn.turn_id, LIMIT_S)).outcome == "ok"
        for i in range(4):
            said = [m for m in await transcript(gateway, f"agent:main:hook:{i}") if m["role"] == "user"]
            assert texts(said) == ["first", "second", "third"]


def counting(limit: int) -> tuple[Tool, SimpleNamespace]:
    """A tool that waits until `limit` turns are in it, and what it has seen."""
    seen, full = SimpleNamespace(running=0, most=0), asyncio.Barrier(limit)

    @tool()
    async def count(context: Context) -> str:
        """Count how many are here."""
        seen.running += 1
        seen.most = max(seen.most, seen.running)
        async with asyncio.timeout(LIMIT_S):
            await full.wait()
        seen.running -= 1
        return "counted"

    return count, seen


@pytest.mark.parametrize(("lane", "limit"), [("main", 4), ("subagent", 3), ("cron", 2)])
async def test_as_many_turns_run_at_a_time_as_their_lane_allows_and_no_more(
    tmp_path: Path, lane: Any, limit: int
) -> None:
    count, seen = counting(limit)
    limits = {
        "agents": {"defaults": {"maxConcurrent": 4, "subagents": {"maxConcurrent": 3}}},
        "cron": {"maxConcurrentRuns": 2},
    }
    async with rehearse(
        tmp_path, script(calls("count"), "ok", session="*") | limits, tools=[count]
    ) as gateway:
        await asyncio.gather(*(say(gateway, "go", f"hook:{i}", pool=lane) for i in range(12)))
        assert seen.most == limit


async def test_a_turn_that_waits_for_another_lends_it_its_slot(tmp_path: Path) -> None:
    opened: list[Gateway] = []

    @tool()
    async def ask_other(context: Context) -> str:
        """Wait for a turn of another session."""
        async with context.waiting():
            return str((await say(opened[0], "what is 1 + 1?", "hook:other")).reply)

    settings = script(calls("ask_other"), "Heard.") | {"agents": {"defaults": {"maxConcurrent": 1}}}
    async with rehearse(tmp_path, settings, tools=[ask_other]) as gateway:
        opened.append(gateway)
        assert (await say(gateway, "go")).reply == "Heard."
        assert texts(await transcript(gateway))[2] == "1 + 1 = 2"


@pytest.fixture
def gate() -> tuple[asyncio.Event, asyncio.Event]:
    """A turn has come to the tool; it may go on."""
    return asyncio.Event(), asyncio.Event()


def holding(gate: tuple[asyncio.Event, asyncio.Event]) -> Any:
    arrived, go_on = gate

    @tool()
    async def hold(context: Context) -> str:
        """Wait until told to go on."""
        arrived.set()
        await go_on.wait()
        return "held"

    return hold


@pytest.mark.promise("outcome.cancelled")
async def test_an_aborted_turn_ends_with_the_reason_and_keeps_what_it_said(tmp_path: Path, gate: Any) -> None:
    async with rehearse(tmp_path, script(calls("hold", "Working on it.")), tools=[holding(gate)]) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", "go")
        await gate[0].wait()
        waiting = await gateway.sessions.send(OWNER, "main", "more")
        await gateway.sessions.abort(OWNER, "main", reason="enough")
        ended = await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        assert (ended.outcome, ended.error) == ("cancelled", "enough")
        assert (await gateway.sessions.wait(waiting.turn_id, LIMIT_S)).outcome == "cancelled"
        assert "Working on it." in texts(await transcript(gateway))
        assert (await gateway.store.read(sessions.get, "agent:main:main")).aborted_last_run
        assert (await say(gateway, "say after")).reply is not None


async def test_an_abort_is_heard_however_early_it_comes(tmp_path: Path, gate: Any) -> None:
    settings = script(calls("hold"), session="*")
    async with rehearse(tmp_path, settings, tools=[holding(gate)]) as gateway:
        for number in range(120):
            turn = await gateway.sessions.send(OWNER, f"hook:{number}", "go")
            for _ in range(number % 12):
                await asyncio.sleep(0)
            await gateway.sessions.abort(OWNER, f"hook:{number}", reason="enough")
            assert (await gateway.sessions.wait(turn.turn_id, LIMIT_S)).outcome == "cancelled"


async def test_turns_that_are_stopped_while_they_wait_neither_keep_nor_add_a_slot(tmp_path: Path) -> None:
    arrived = asyncio.Semaphore(0)
    count, seen = counting(2)

    @tool()
    async def wait_for_ever(context: Context) -> str:
        """Wait, with the slot lent."""
        async with context.waiting():
            arrived.release()
            await asyncio.Event().wait()
        return "never"

    waiting = {"toolCalls": [{"name": "wait_for_ever"}, {"name": "wait_for_ever"}]}
    scripts = {f"hook:{i}": [waiting] for i in range(6)} | {"*": [calls("count"), "ok"]}
    settings = {"models": {"rehearsal": {"scripts": scripts}}, "agents": {"defaults": {"maxConcurrent": 2}}}
    async with rehearse(tmp_path, settings, tools=[wait_for_ever, count]) as gateway:
        stopped = [await gateway.sessions.send(OWNER, f"hook:{i}", "go") for i in range(6)]
        for _ in range(12):
            await arrived.acquire()
        for i, turn in enumerate(stopped):
            await gateway.sessions.abort(OWNER, f"hook:{i}")
            assert (await gateway.sessions.wait(turn.turn_id, LIMIT_S)).outcome == "cancelled"
        await asyncio.gather(*(say(gateway, "go", f"cron:{i}") for i in range(8)))
        assert seen.most == 2


@pytest.mark.promise("outcome.timed_out")
async def test_a_turn_that_takes_too_long_is_stopped(tmp_path: Path, gate: Any) -> None:
    async with rehearse(tmp_path, script(calls("hold")), tools=[holding(gate)]) as gateway:
        turn = await say(gateway, "go", timeout_s=1)
        assert turn.outcome == "timed_out"
        assert "1 seconds" in str(turn.error)


async def test_input_that_steers_reaches_the_running_turn_before_its_next_model_call(
    tmp_path: Path, gate: Any
) -> None:
    async with rehearse(tmp_path, script(calls("hold"), "Both done."), tools=[holding(gate)]) as gateway:
        first = await gateway.sessions.send(OWNER, "main", "go")
        await gate[0].wait()
        second = await gateway.sessions.send(OWNER, "main", InboundMessage("and faster", mode="steer"))
        gate[1].set()
        assert (await gateway.sessions.wait(second.turn_id, LIMIT_S)).turn_id == first.turn_id
        kept = await transcript(gateway)
        assert roles(kept) == ["user", "assistant", "toolResult", "user", "assistant"]
        assert texts(kept)[3] == "and faster"


async def test_input_that_interrupts_ends_the_running_turn(tmp_path: Path, gate: Any) -> None:
    async with rehearse(tmp_path, script(calls("hold"), "New plan."), tools=[holding(gate)]) as gateway:
        first = await gateway.sessions.send(OWNER, "main", "go")
        await gate[0].wait()
        second = await gateway.sessions.send(OWNER, "main", InboundMessage("stop, do this", mode="interrupt"))
        assert (await gateway.sessions.wait(first.turn_id, LIMIT_S)).outcome == "cancelled"
        assert (await gateway.sessions.wait(second.turn_id, LIMIT_S)).reply == "New plan."


async def test_input_that_collects_is_answered_in_one_turn(tmp_path: Path, gate: Any) -> None:
    settings = script(calls("hold"), "One.", "Two and three.") | {"messages": {"queue": {"mode": "collect"}}}
    async with rehearse(tmp_path, settings, tools=[holding(gate)]) as gateway:
        await gateway.sessions.send(OWNER, "main", "one")
        await gate[0].wait()
        two = await gateway.sessions.send(OWNER, "main", "two")
        three = await gateway.sessions.send(OWNER, "main", "three")
        gate[1].set()
        ended = [await gateway.sessions.wait(t.turn_id, LIMIT_S) for t in (two, three)]
        assert [t.reply for t in ended] == ["Two and three."] * 2
        assert texts(await transcript(gateway))[-3:] == ["two", "three", "Two and three."]


async def test_the_same_idempotency_key_gives_the_same_turn_also_after_a_restart(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        first = await say(gateway, "say once", idempotency_key="k1")
    async with rehearse(tmp_path) as gateway:
        again = await say(gateway, "say once", idempotency_key="k1")
        assert (again.turn_id, again.reply) == (first.turn_id, "once")
        assert roles(await transcript(gateway)) == ["user", "assistant"]


@pytest.mark.promise("outcome.completed", "outcome.failed", "outcome.no_output")
@pytest.mark.parametrize(
    ("steps", "outcome", "error"),
    [
        ([{"error": "no such key"}], "failed", "no such key"),
        ([{"text": ""}], "no_output", None),
        ([{"text": "  "}], "no_output", None),
        ([{"error": "busy", "times": 2}, "Now."], "ok", None),
        ([{"error": "busy", "times": 3}, "Now."], "failed", "busy"),
    ],
)
async def test_outcomes_are_honest(tmp_path: Path, steps: Any, outcome: str, error: str | None) -> None:
    async with rehearse(tmp_path, script(*steps)) as gateway:
        turn = await say(gateway, "go")
        assert turn.outcome == outcome
        assert (error or "") in (turn.error or "")


@pytest.mark.promise("outcome.failed")
async def test_a_turn_that_never_comes_to_an_answer_is_stopped_and_not_ok(tmp_path: Path) -> None:
    settings = script(*[calls("shout", word="x")] * 10) | {"agents": {"defaults": {"maxSteps": 3}}}
    async with rehearse(tmp_path, settings, tools=[shout]) as gateway:
        turn = await say(gateway, "go")
        assert turn.outcome == "failed"
        assert "maxSteps" in str(turn.error)


async def test_a_fallback_model_answers_when_the_first_cannot(tmp_path: Path) -> None:
    model = {"primary": "local/gone", "fallbacks": ["rehearsal/rehearsal"]}
    settings = {
        "agents": {"defaults": {"model": model}},
        "models": {"providers": {"local": {"baseUrl": "http://127.0.0.1:9", "models": [{"id": "gone"}]}}},
    }
    async with rehearse(tmp_path, settings) as gateway:
        assert (await say(gateway, "say hello")).reply == "hello"


async def test_an_unknown_model_fails_the_turn_with_the_valid_ones(tmp_path: Path) -> None:
    async with rehearse(tmp_path, {"agents": {"defaults": {"model": "nowhere/x"}}}) as gateway:
        turn = await say(gateway, "go")
        assert turn.outcome == "failed"
        assert "nowhere/x" in str(turn.error)


async def test_a_failed_turn_leaves_its_reason_in_the_transcript_and_the_status(tmp_path: Path) -> None:
    secret = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8x" * 2
    async with rehearse(tmp_path, script({"error": f"The key {secret} is wrong."}, "Fine.")) as gateway:
        turn = await say(gateway, "go")
        page = await gateway.sessions.queries.history(OWNER, "main")
        reason = page["messages"][-1]["errorMessage"]
        assert (page["messages"][-1]["role"], page["messages"][-1]["stopReason"]) == ("assistant", "error")
        assert reason == turn.error
        assert "is wrong" in reason
        assert secret not in reason
        status = await gateway.sessions.queries.status(OWNER, "main")
        assert (status["status"], status["lastError"]) == ("failed", reason)
        again = await say(gateway, "go")  # the model is not shown the failure as an answer of its own
        assert again.outcome == "failed"
    async with rehearse(tmp_path, script("Fine.")) as gateway:
        assert (await say(gateway, "go")).reply == "Fine."
        assert "lastError" not in await gateway.sessions.queries.status(OWNER, "main")


async def test_a_message_that_cannot_be_accepted_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = {"session": {"sendPolicy": {"rules": [{"match": {"keyPrefix": "cron:"}, "action": "deny"}]}}}
    async with rehearse(tmp_path, settings) as gateway:
        with pytest.raises(BadInput):
            await gateway.sessions.send(OWNER, "main", "  ")
        with pytest.raises(UnknownAgent, match="configured: main"):
            await gateway.sessions.send(OWNER, "agent:ghost:main", "hi")
        with pytest.raises(NotAllowed) as refusal:
            await gateway.sessions.send(OWNER, "cron:1", "hi")
        assert refusal.value.rule == "send_policy.denied"
        assert await gateway.store.read(sessions.page) == []
        assert await gateway.store.read(turns.open_turns) == []


async def test_listeners_hear_a_turn_as_it_happens(tmp_path: Path) -> None:
    async with rehearse(tmp_path, script(calls("shout", word="a"), "One two."), tools=[shout]) as gateway:
        heard = gateway.hub.subscribe()
        await say(gateway, "go")
        kinds: list[Any] = []
        pieces: list[str] = []
        while "ended" not in kinds:
            event = await heard.next()
            kinds.append(event.turn.status if isinstance(event, TurnChanged) else type(event))
            if isinstance(event, AnswerDelta):
                pieces.append(event.text)
        assert [k for k in kinds if isinstance(k, str)] == ["queued", "running", "ended"]
        # the input, the call, the tool, its result, the answer
        assert [k for k in kinds if k in (EntryAppended, ToolStarted)] == [
            EntryAppended,
            EntryAppended,
            ToolStarted,
            EntryAppended,
            EntryAppended,
        ]
        assert "".join(pieces) == "One two."


async def test_a_listener_that_does_not_keep_up_loses_its_subscription_only(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        slow = gateway.hub.subscribe(size=3)
        assert (await say(gateway, "say one")).outcome == "ok"
        assert (await say(gateway, "say two")).outcome == "ok"
        assert slow.lagged
        assert len([event async for event in slow]) == 3


async def test_a_long_answer_that_comes_at_once_is_heard_whole(tmp_path: Path) -> None:
    words = " ".join(map(str, range(5000)))
    async with rehearse(tmp_path) as gateway:
        heard = gateway.hub.subscribe(size=10)
        assert (await say(gateway, f"say {words}")).reply == words
        assert not heard.lagged
        pieces = []
        while True:
            event = await heard.next()
            if isinstance(event, TurnChanged) and event.turn.status == "ended":
                break
            pieces.append(event.text if isinstance(event, AnswerDelta) else "")
        assert "".join(pieces) == words


async def test_a_long_conversation_is_cut_with_a_note_and_not_silently(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        session = await gateway.store.write(sessions.create, Session.of(parse("agent:main:main")))

        def fill(tx: Any) -> None:
            for i in range(20_000):
                role = "user" if i % 2 == 0 else "assistant"
                entries.append(tx, session.session_id, {"role": role, "content": f"{i} " + "x" * 60})

        await gateway.store.write(fill)
        turn = await say(gateway, "what is 3 * 3?")
        assert turn.reply == "3 * 3 = 9"


async def test_a_shutdown_gives_turns_back_and_the_next_start_goes_on(tmp_path: Path, gate: Any) -> None:
    settings = script(calls("hold", "Starting."), "Finished.")
    async with rehearse(tmp_path, settings, tools=[holding(gate)]) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", "go")
        await gate[0].wait()
    gate[1].set()
    async with rehearse(tmp_path, settings, tools=[holding(gate)]) as gateway:
        ended = await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        assert (ended.outcome, ended.reply, ended.crashes) == ("ok", "Finished.", 0)
        kept = await transcript(gateway)
        assert roles(kept) == ["user", "assistant", "toolResult", "assistant"]
        assert "Interrupted" in texts(kept)[2]


async def test_a_deleted_session_ends_its_turn_and_whoever_waits_hears_of_it(
    tmp_path: Path, gate: Any
) -> None:
    async with rehearse(tmp_path, script(calls("hold")), tools=[holding(gate)]) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", "go")
        await gate[0].wait()
        waiting = asyncio.ensure_future(gateway.sessions.wait(turn.turn_id, LIMIT_S))
        await asyncio.sleep(0)
        await gateway.store.write(sessions.delete, "agent:main:main")
        assert (await waiting).error == "The session was deleted."
        gate[1].set()
        assert (await say(gateway, "again")).reply == "hold: held"


async def test_what_was_said_when_a_turn_is_stopped_is_kept(tmp_path: Path) -> None:
    """The piece of an answer that was never finished, not a step that was."""

    class Babbling:
        async def stream(self, request: Any) -> Any:
            yield TextDelta("Once upon ")
            yield TextDelta("a time")
            said.set()
            await asyncio.Event().wait()

    said = asyncio.Event()
    async with rehearse(tmp_path) as gateway:
        gateway.models._models["rehearsal/rehearsal"] = Babbling()
        turn = await gateway.sessions.send(OWNER, "main", "go")
        await said.wait()
        await gateway.sessions.abort(OWNER, "main")
        ended = await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        assert (ended.outcome, ended.reply) == ("cancelled", "Once upon a time")
        last = (await transcript(gateway))[-1]
        assert (texts([last]), last["stopReason"]) == (["Once upon a time"], "aborted")


async def test_the_next_turn_leaves_the_calls_of_a_stopped_one_alone(tmp_path: Path) -> None:
    arrived, ran = asyncio.Event(), []

    @tool(repeatable=True)
    async def knock(context: Context) -> str:
        """Wait at the door."""
        ran.append(context.turn.turn_id)
        arrived.set()
        await asyncio.Event().wait()
        return "never"

    async with rehearse(tmp_path, script(calls("knock"), "Fine."), tools=[knock]) as gateway:
        first = await gateway.sessions.send(OWNER, "main", "go")
        await arrived.wait()
        await gateway.sessions.abort(OWNER, "main")
        assert (await say(gateway, "never mind")).reply == "Fine."
        assert ran == [first.turn_id]
        assert roles(await transcript(gateway)) == ["user", "assistant", "user", "assistant"]


async def test_running_turns_get_their_grace_and_then_are_given_back(tmp_path: Path, gate: Any) -> None:
    settings = script(calls("hold"), "In time.")
    async with rehearse(tmp_path, settings, tools=[holding(gate)], grace_s=LIMIT_S) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", "go")
        await gate[0].wait()
        asyncio.get_running_loop().call_later(0.05, gate[1].set)
    async with rehearse(tmp_path) as gateway:
        assert (await gateway.store.read(turns.get, turn.turn_id)).reply == "In time."


async def test_a_shutdown_in_a_hurry_gives_turns_back_without_counting_a_crash(
    tmp_path: Path, gate: Any
) -> None:
    settings = script(calls("hold"), "Later.")
    async with (
        asyncio.timeout(LIMIT_S),
        rehearse(tmp_path, settings, tools=[holding(gate)], grace_s=60) as gateway,
    ):
        turn = await gateway.sessions.send(OWNER, "main", "go")
        await gate[0].wait()
        gateway.runner.skip_grace()
    gate[1].set()
    async with rehearse(tmp_path, settings, tools=[holding(gate)]) as gateway:
        ended = await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        assert (ended.reply, ended.crashes) == ("Later.", 0)


async def test_a_shutdown_right_behind_a_send_does_not_start_the_turn(tmp_path: Path) -> None:
    settings = script({"text": "Slow.", "delayMs": 60_000})
    async with asyncio.timeout(LIMIT_S):
        for _ in range(5):
            async with rehearse(tmp_path, settings) as gateway:
                turn = await gateway.sessions.send(OWNER, "main", "go")
    async with rehearse(tmp_path) as gateway:
        assert (await gateway.store.read(turns.get, turn.turn_id)).crashes == 0


async def test_a_turn_accepted_while_its_session_is_asked_for_another_is_not_forgotten(
    tmp_path: Path, gate: Any
) -> None:
    async with rehearse(tmp_path, script(calls("hold"), "*"), tools=[holding(gate)]) as gateway:
        for number in range(20):
            key = f"hook:{number}"
            first, second = await asyncio.gather(
                gateway.sessions.send(OWNER, key, "say a"), gateway.sessions.send(OWNER, key, "say b")
            )
            await gateway.sessions.abort(OWNER, key, turn_id=first.turn_id)
            third = await gateway.sessions.send(OWNER, key, "say c")
            for turn in (first, second, third):
                assert (await gateway.sessions.wait(turn.turn_id, LIMIT_S)).status == "ended"


async def test_a_turn_that_is_broken_off_from_within_fails_once(tmp_path: Path) -> None:
    class Breaking:
        asked = 0

        async def stream(self, request: Any) -> Any:
            Breaking.asked += 1
            raise asyncio.CancelledError
            yield

    async with rehearse(tmp_path) as gateway:
        gateway.models._models["rehearsal/rehearsal"] = Breaking()
        assert (await say(gateway, "go")).outcome == "failed"
        assert Breaking.asked == 1


async def test_odd_results_and_odd_ends_of_tools_are_results(tmp_path: Path) -> None:
    @tool()
    async def keys_that_are_numbers(context: Context) -> Any:
        """Odd."""
        return {1: "one", (2, 3): object()}

    @tool()
    async def half_a_character(context: Context) -> str:
        """Odd."""
        return "file\udcff"

    @tool()
    async def leaves(context: Context) -> str:
        """Odd."""
        raise SystemExit(1)

    @tool()
    async def cancelled_inside(context: Context) -> str:
        """Odd."""
        raise asyncio.CancelledError

    @tool()
    async def times_out_inside(context: Context) -> str:
        """Odd."""
        raise TimeoutError("the line was dead")

    tools = [keys_that_are_numbers, half_a_character, leaves, cancelled_inside, times_out_inside]
    step = {"toolCalls": [{"name": t.name} for t in tools]}
    async with rehearse(tmp_path, script(step, "Still here."), tools=tools) as gateway:
        assert (await say(gateway, "go")).reply == "Still here."
        results = {
            m["toolName"]: texts([m])[0] for m in await transcript(gateway) if m["role"] == "toolResult"
        }
        assert set(results) == {t.name for t in tools}
        assert results["half_a_character"] == "file?"
        assert "SystemExit" in results["leaves"]
        assert "by its own code" in results["cancelled_inside"]
        assert "the line was dead" in results["times_out_inside"]


async def test_a_fallback_without_a_key_spoils_nothing(tmp_path: Path) -> None:
    model = {"primary": "rehearsal/rehearsal", "fallbacks": ["anthropic/claude"]}
    async with rehearse(tmp_path, {"agents": {"defaults": {"model": model}}}) as gateway:
        assert (await say(gateway, "say hi")).reply == "hi"


async def test_a_missing_key_says_which_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rehearse(tmp_path, {"agents": {"defaults": {"model": "anthropic/claude"}}}) as gateway:
        turn = await say(gateway, "hi")
        assert "ANTHROPIC_API_KEY" in str(turn.error)
    assert "Traceback" not in caplog.text


async def test_the_input_of_a_failed_turn_is_sent_again_once_per_key(tmp_path: Path) -> None:
    settings = script({"error": "the model is gone", "times": 3}, "Here I am.")
    async with rehearse(tmp_path, settings) as gateway:
        assert (await say(gateway, "/not a command of ours")).outcome == "failed"
        again = [await gateway.sessions.resend(OWNER, "main", 1, "retry-1") for _ in range(2)]
        assert again[0].turn_id == again[1].turn_id == "retry-1"
        assert (await gateway.sessions.wait("retry-1", LIMIT_S)).reply == "Here I am."
        assert roles(await transcript(gateway)) == ["user", "assistant", "user", "assistant"]
        for seq in (2, 9):
            with pytest.raises(BadInput, match="not an input of this session"):
                await gateway.sessions.resend(OWNER, "main", seq, f"retry-{seq}")


async def test_a_message_of_another_session_is_not_sent_again_by_a_person(tmp_path: Path) -> None:
    settings = script("ask agent:main:other: hi")
    async with rehearse(tmp_path, settings) as gateway:
        session = await gateway.store.write(sessions.create, Session.of(parse("agent:main:other")))
        source = {"kind": "inter_session", "sourceSessionKey": "agent:main:main"}
        message = {"role": "user", "content": "hi", "provenance": source}
        await gateway.store.write(entries.append, session.session_id, message)
        with pytest.raises(BadInput, match="came from another session") as refused:
            await gateway.sessions.resend(OWNER, session.key, 1, "retry")
        assert "Ask for it again where it was sent" in str(refused.value.fix)
