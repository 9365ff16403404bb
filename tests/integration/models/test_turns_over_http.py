"""Whole turns of a real gateway against a provider on the wire."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from hobnob.keys import parse
from hobnob.requests import HistoryQuery
from hobnob.runtimes import model_calls
from hobnob.store import entries, sessions
from hobnob.testing import OWNER, rehearse, say
from hobnob.tools import Context, tool
from hobnob.types import Session

DONE = b"data: [DONE]\n\n"


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "gpt-4o", "choices": [choice]}


def usage() -> dict[str, Any]:
    counts = {"prompt_tokens": 1000, "completion_tokens": 100}
    return {"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": counts}


def settings(provider: Any, window: int | None = None) -> dict[str, Any]:
    entry = {"id": "gpt-4o"} | ({"contextWindow": window} if window else {})
    openai = {"baseUrl": provider.url, "api": "openai-completions", "apiKey": "k", "models": [entry]}
    return {
        "agents": {"defaults": {"model": "openai/gpt-4o"}},
        "models": {"providers": {"openai": openai}},
    }


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries are about what comes next, not about waiting for it."""
    monkeypatch.setattr(model_calls, "_FIRST_PAUSE_S", 0.0)


@tool()
async def shout(context: Context, word: str) -> str:
    """Say a word loudly."""
    return word.upper()


async def test_a_turn_with_a_tool_call_in_pieces_and_its_cost(tmp_path: Path, provider: Any) -> None:
    function: dict[str, Any] = {"name": "shout", "arguments": '{"wo'}
    first = [{"index": 0, "id": "c1", "type": "function", "function": function}]
    second = [{"index": 0, "function": {"arguments": 'rd": "hey"}'}}]
    provider.streams([delta(tool_calls=first), delta(tool_calls=second), delta("tool_calls"), usage(), DONE])
    provider.streams([delta(content="It said HEY."), delta("stop"), usage(), DONE])
    async with rehearse(tmp_path, settings(provider), tools=[shout]) as gateway:
        turn = await say(gateway, "shout hey")
        assert (turn.outcome, turn.reply) == ("ok", "It said HEY.")
        session = await gateway.store.read(sessions.get, "agent:main:main")
        assert (session.input_tokens, session.output_tokens) == (2000, 200)
        assert session.cost_usd > 0
    result = provider.body["messages"][-1]
    assert (result["role"], result["content"]) == ("tool", "HEY")
    assert "shout" in [tool["function"]["name"] for tool in provider.body["tools"]]


async def test_broken_arguments_are_told_to_the_model_which_repairs_them(
    tmp_path: Path, provider: Any
) -> None:
    broken = [{"index": 0, "id": "c1", "function": {"name": "shout", "arguments": '{"word": '}}]
    mended = [{"index": 0, "id": "c2", "function": {"name": "shout", "arguments": '{"word": "hey"}'}}]
    provider.streams([delta(tool_calls=broken), delta("tool_calls"), DONE])
    provider.streams([delta(tool_calls=mended), delta("tool_calls"), DONE])
    provider.streams([delta(content="Done."), delta("stop"), DONE])
    async with rehearse(tmp_path, settings(provider), tools=[shout]) as gateway:
        assert (await say(gateway, "shout hey")).reply == "Done."
    told = [m["content"] for m in provider.body["messages"] if m["role"] == "tool"]
    refused = orjson.loads(told[0])
    assert (refused["status"], refused["received"]) == ("error", '{"word": ')
    assert "are not a JSON object" in refused["error"]
    assert told[1] == "HEY"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ('{"word": ' * 150 + "1" + "}" * 150, "nested deeper than 100 levels"),
        ('{"word": ' * 600 + "1" + "}" * 600, "nested deeper than 100 levels"),
        ('{"word": ' * 5000 + "1" + "}" * 5000, "not a JSON object: depth limit exceeded"),
        ('{"word": [' + "[]," * 300_000 + "[]]}", "more than 250,000 objects and lists"),
        ('["hey"]', "not a JSON object"),
        ('"hey"', "not a JSON object"),
        ("7" * 100_000, "not a JSON object"),
    ],
    ids=["150 deep", "600 deep", "5000 deep", "wide", "a list", "a text", "a number"],
)
async def test_unusable_arguments_fail_their_call_and_not_the_turn(
    tmp_path: Path, provider: Any, arguments: str, why: str
) -> None:
    calls = [{"index": n, "id": f"c{n}", "function": {"name": "shout"}} for n in (1, 2)]
    given = [(1, arguments[at : at + 100_000]) for at in range(0, len(arguments), 100_000)]
    pieces = [{"index": n, "function": {"arguments": text}} for n, text in [*given, (2, '{"word": "hey"}')]]
    deltas = [delta(tool_calls=[piece]) for piece in pieces]
    provider.streams([delta(tool_calls=calls), *deltas, delta("tool_calls"), DONE])
    provider.streams([delta(content="Done."), delta("stop"), DONE])
    async with rehearse(tmp_path, settings(provider), tools=[shout]) as gateway:
        turn = await say(gateway, "shout hey")
        assert (turn.outcome, turn.reply) == ("ok", "Done.")
        page = await gateway.sessions.queries.history(OWNER, "main", HistoryQuery(include_tools=True))
        assert len(orjson.dumps(page)) < 20_000
    told = {m["tool_call_id"]: m["content"] for m in provider.body["messages"] if m["role"] == "tool"}
    refused = orjson.loads(told["c1"])
    assert refused["status"] == "error" and why in refused["error"]
    assert len(refused["received"]) <= 500
    assert told["c2"] == "HEY"


async def test_a_cut_stream_is_tried_again_and_nothing_is_said_twice(tmp_path: Path, provider: Any) -> None:
    provider.streams([delta(content="Half an ans")], then="cut")
    provider.answers(503, {"error": {"message": "busy"}})
    provider.streams([delta(content="The answer."), delta("stop"), DONE])
    async with rehearse(tmp_path, settings(provider)) as gateway:
        turn = await say(gateway, "go")
        assert (turn.outcome, turn.reply) == ("ok", "The answer.")
        session = await gateway.store.read(sessions.get, "agent:main:main")
        kept = await gateway.store.read(entries.history, session.session_id)
        assert [e.role for e in kept] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (401, {"error": {"message": "bad key"}}, "application/json", "bad key"),
        (200, b"<html>hello</html>", "text/html", "openai/gpt-4o"),
        (400, {"error": {"message": "no such thing"}}, "application/json", "no such thing"),
    ],
)
async def test_what_the_provider_says_reaches_the_person(
    tmp_path: Path, provider: Any, status: int, body: Any, kind: str, says: str
) -> None:
    for _ in range(model_calls.ATTEMPTS):
        provider.answers(status, body, kind=kind)
    async with rehearse(tmp_path, settings(provider)) as gateway:
        turn = await say(gateway, "go")
        assert turn.outcome == "failed"
        assert says in str(turn.error)


async def test_a_long_conversation_is_cut_and_the_model_is_told_how_much_it_misses(
    tmp_path: Path, provider: Any
) -> None:
    provider.streams([delta(content="Fine."), delta("stop"), DONE])
    cut = settings(provider, window=4000)
    cut["agents"]["defaults"]["compaction"] = {"enabled": False}  # else the older part is summarised
    async with rehearse(tmp_path, cut) as gateway:
        session = await gateway.store.write(sessions.create, Session.of(parse("agent:main:main")))

        def fill(tx: Any) -> None:
            for i in range(1000):
                role = "user" if i % 2 == 0 else "assistant"
                entries.append(tx, session.session_id, {"role": role, "content": f"message {i} " + "x" * 80})

        await gateway.store.write(fill)
        assert (await say(gateway, "and now?")).reply == "Fine."
    system, *shown = provider.body["messages"]
    assert shown[0]["role"] == "user"
    assert shown[-1]["content"] == "and now?"
    assert len(shown) < 150
    assert f"{1001 - len(shown)} earlier messages are not shown" in system["content"]


async def test_a_huge_tool_result_does_not_push_the_conversation_out(tmp_path: Path, provider: Any) -> None:
    @tool()
    async def flood(context: Context) -> str:
        """Return a megabyte."""
        return "x" * 1_000_000

    call = [{"index": 0, "id": "c1", "function": {"name": "flood", "arguments": "{}"}}]
    provider.streams([delta(content="Noted."), delta("stop"), DONE])
    provider.streams([delta(tool_calls=call), delta("tool_calls"), DONE])
    provider.streams([delta(content="Done."), delta("stop"), DONE])
    async with rehearse(tmp_path, settings(provider), tools=[flood]) as gateway:
        await say(gateway, "remember the milk")
        assert (await say(gateway, "flood")).reply == "Done."
    system, *shown = provider.body["messages"]
    assert shown[0]["content"] == "remember the milk"
    assert "characters left out" in shown[-1]["content"]
    assert "not shown" not in system["content"]
