"""Conversations that no longer fit: summaries, their failures, overflow, crashes."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import append_messages, transcript

from hobnob import crashpoints
from hobnob.gateway import Gateway
from hobnob.models import Failed, Request
from hobnob.models.rehearsal import Rehearsal
from hobnob.store import sessions
from hobnob.testing import rehearse, say
from hobnob.types import text_of

MAIN = "agent:main:main"
FILLER = "lorem ipsum " * 60  # about 200 tokens


def small(window: int = 2000, scripts: dict[str, Any] | None = None, **compaction: Any) -> dict[str, Any]:
    defaults = {"contextTokens": window, "compaction": {"keepRecentTokens": 300} | compaction}
    return {"agents": {"defaults": defaults}, "models": {"rehearsal": {"scripts": scripts or {}}}}


async def fill(gateway: Gateway, count: int = 12) -> None:
    for number in range(count):
        await say(gateway, f"say Fact {number}. {FILLER}")


def compactions(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [m for m in messages if "compaction" in m]


@pytest.mark.promise("life.compaction")
async def test_what_no_longer_fits_is_summarised_and_stays_in_the_transcript(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, small()) as gateway:
        await fill(gateway)
        kept = await transcript(gateway, MAIN)
        found = compactions(kept)
        assert found and len(kept) == 2 * 12 + len(found)
        last = found[-1]["compaction"]
        assert last["covers"] == [1, last["firstKeptSeq"] - 1] and last["tokensBefore"] > 1500
        turns_sent = [r for r in model_requests if r.session_key == MAIN]
        first, *rest = turns_sent[-1].messages
        assert text_of(first).startswith(
            f"[Summary of the earlier conversation, messages 1 to {last['covers'][1]}.]"
        )
        assert (
            text_of(rest[0]).startswith("say Fact")
            and "earlier messages are not shown" not in turns_sent[-1].system
        )


@pytest.mark.promise("life.compaction")
async def test_the_summary_is_used_after_a_restart_without_another_one(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, small()) as gateway:
        await fill(gateway)
        before = len(compactions(await transcript(gateway, MAIN)))
    async with rehearse(tmp_path, small()) as gateway:
        model_requests.clear()
        await say(gateway, "say Hello.")
        assert text_of(model_requests[-1].messages[0]).startswith("[Summary of the earlier conversation")
        assert len(compactions(await transcript(gateway, MAIN))) - before in (0, 1)


@pytest.mark.promise("life.compaction")
async def test_an_earlier_summary_is_part_of_the_next_one(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    script = {"compaction": [f"The {n}. summary, which is long enough." for n in ("first",)]}
    async with rehearse(tmp_path, small(scripts=script)) as gateway:
        await fill(gateway, 20)
        summaries = [r for r in model_requests if r.session_key == "agent:main:compaction"]
        assert len(summaries) > 1
        assert "The first. summary" in text_of(summaries[1].messages[0])


async def test_the_cost_of_a_summary_is_known(tmp_path: Path) -> None:
    async with rehearse(tmp_path, small()) as gateway:
        await fill(gateway)
        found = compactions(await transcript(gateway, MAIN))
        assert all(m["usage"]["input"] > 0 for m in found)
        assert (await gateway.store.read(sessions.get, MAIN)).input_tokens >= sum(
            m["usage"]["input"] for m in found
        )


@pytest.mark.promise("life.failed_summaries")
@pytest.mark.parametrize("step", [{"error": "no credit"}, ""])
async def test_a_summary_that_fails_leaves_a_marker_and_the_turn_goes_on(tmp_path: Path, step: Any) -> None:
    async with rehearse(tmp_path, small(scripts={"compaction": [step] * 50})) as gateway:
        await fill(gateway)
        (first, *_) = compactions(await transcript(gateway, MAIN))
        assert first["compaction"]["failed"]
        assert "could not be summarised and are left out" in text_of(first)
        assert (await say(gateway, "say Hello.")).outcome == "ok"


async def test_with_compaction_off_messages_are_left_out_and_counted(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, small(enabled=False)) as gateway:
        await fill(gateway)
        assert compactions(await transcript(gateway, MAIN)) == []
        assert "earlier messages are not shown to you" in model_requests[-1].system


@pytest.mark.promise("life.calls_keep_results")
async def test_a_tool_call_and_its_result_stay_together(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, small()) as gateway:
        for _ in range(10):
            await say(gateway, 'call sessions_list {"limit": 1}')
            await say(gateway, f"say {FILLER}")
        assert compactions(await transcript(gateway, MAIN))
        for request in model_requests:
            open_calls: set[str] = set()
            for message in request.messages:
                if message["role"] == "toolResult":
                    assert message["toolCallId"] in open_calls
                elif message["role"] == "assistant" and isinstance(message["content"], list):
                    open_calls |= {p["id"] for p in message["content"] if p["type"] == "toolCall"}


@pytest.mark.promise("life.overflow")
async def test_a_conversation_that_the_provider_finds_too_long_is_compacted_and_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Rehearsal.stream
    refused: list[int] = []

    async def choosy(self: Rehearsal, request: Request) -> Any:
        if request.session_key == MAIN and len(request.messages) > 8:
            refused.append(len(request.messages))
            yield Failed("too_long", "prompt is too long")
            return
        async for event in stream(self, request):
            yield event

    monkeypatch.setattr(Rehearsal, "stream", choosy)
    async with rehearse(tmp_path, small(window=8000)) as gateway:
        for number in range(8):
            assert (await say(gateway, f"say Fact {number}. {FILLER}")).outcome == "ok"
        assert refused and compactions(await transcript(gateway, MAIN))


async def test_the_command_compacts_now_with_a_focus(tmp_path: Path, model_requests: list[Request]) -> None:
    async with rehearse(tmp_path, small(window=100_000)) as gateway:
        await fill(gateway, 4)
        turn = await say(gateway, "/compact the names of people")
        assert turn.reply is not None and turn.reply.startswith(
            "The older part of the conversation is summarised"
        )
        assert '"the names of people"' in model_requests[-1].system
        assert len(compactions(await transcript(gateway, MAIN))) == 1
        model_requests.clear()
        await say(gateway, "say Hello.")
        assert text_of(model_requests[0].messages[0]).startswith("[Summary")


async def test_there_may_be_nothing_to_compact(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        assert (await say(gateway, "/compact")).reply == "There is nothing to summarise yet."


async def test_a_very_long_session_is_summarised_in_parts_from_its_beginning(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, small(window=3000)) as gateway:
        await say(gateway, "say Hello.")
        session = await gateway.store.read(sessions.get, MAIN)
        pairs = [
            {"role": role, "content": f"Old {n}. {FILLER}"}
            for n in range(150)
            for role in ("user", "assistant")
        ]
        await append_messages(gateway, session, *pairs)
        model_requests.clear()
        await say(gateway, "say And now?")
        summaries = [r for r in model_requests if r.session_key == "agent:main:compaction"]
        assert len(summaries) > 1
        assert "Old 0." in text_of(summaries[0].messages[0])


async def test_however_many_parts_it_takes_everything_is_summarised(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, small(window=1000)) as gateway:
        await say(gateway, "say Hello.")
        session = await gateway.store.read(sessions.get, MAIN)
        old = [{"role": ("user", "assistant")[n % 2], "content": f"Old {n}. {FILLER}"} for n in range(400)]
        for first in range(0, len(old), 100):
            await append_messages(gateway, session, *old[first : first + 100])
        model_requests.clear()
        await say(gateway, "/compact")
        parts = [text_of(r.messages[0]) for r in model_requests if r.session_key == "agent:main:compaction"]
        assert len(parts) > 64
        (found,) = compactions(await transcript(gateway, MAIN))
        assert all(
            any(f"Old {n}. " in part for part in parts) for n in range(found["compaction"]["covers"][1] - 2)
        )
        assert "failed" not in found["compaction"]


async def test_a_message_larger_than_the_window_is_summarised_from_its_beginning(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, small(window=2000)) as gateway:
        await say(gateway, "say Hello.")
        session = await gateway.store.read(sessions.get, MAIN)
        await append_messages(gateway, session, {"role": "user", "content": "start " + "x" * 100_000})
        await say(gateway, "say And now?")
        parts = [text_of(r.messages[0]) for r in model_requests if r.session_key == "agent:main:compaction"]
        assert parts and max(map(len, parts)) < 10_000 and "characters left out" in parts[-1]


@pytest.mark.promise("life.compaction_survives_a_kill")
def test_a_kill_between_two_parts_repeats_no_model_call(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    home = tmp_path / "home"
    home.mkdir()

    async def begin() -> None:
        async with rehearse(home, small(enabled=False)) as gateway:
            await fill(gateway, 16)

    async def live(point: str | None) -> list[dict[str, Any]]:
        stream = Rehearsal.stream

        def counting(self: Rehearsal, request: Request) -> Any:
            if request.session_key == "agent:main:compaction":
                with calls.open("a") as file:
                    file.write(f"{hash(text_of(request.messages[0]))}\n")
            return stream(self, request)

        Rehearsal.stream = counting  # type: ignore[assignment]
        try:
            async with rehearse(home, small()) as gateway:
                crashpoints.armed = point
                await say(gateway, "say Done.", idempotency_key="once")
                return await transcript(gateway, MAIN)
        finally:
            Rehearsal.stream = stream  # type: ignore[method-assign]

    asyncio.run(begin())
    pid = os.fork()
    if pid == 0:
        asyncio.run(live("after-summary-part:2"))
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert len(calls.read_text().split()) == 2
    messages = asyncio.run(live(None))
    made = calls.read_text().split()
    assert len(made) > 2 and len(set(made)) == len(made)
    (found,) = compactions(messages)
    assert found["usage"]["input"] > 0


@pytest.mark.promise("life.compaction_survives_a_kill")
@pytest.mark.parametrize("point", crashpoints.COMPACTION_POINTS)
def test_a_kill_during_a_compaction_loses_and_repeats_nothing(tmp_path: Path, point: str) -> None:
    async def begin() -> None:
        async with rehearse(tmp_path, small(enabled=False)) as gateway:
            await fill(gateway, 8)

    async def live() -> list[dict[str, Any]]:
        async with rehearse(tmp_path, small()) as gateway:
            await say(gateway, "say Done.", idempotency_key="once")
            return await transcript(gateway, MAIN)

    asyncio.run(begin())
    pid = os.fork()
    if pid == 0:
        crashpoints.armed = point
        asyncio.run(live())
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    messages = asyncio.run(live())
    assert len(compactions(messages)) == 1
    assert [text_of(m) for m in messages].count("say Done.") == 1
    assert [text_of(m) for m in messages].count("Done.") == 1
