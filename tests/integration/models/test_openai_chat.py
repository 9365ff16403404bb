"""OpenAI chat completions on the wire."""

from typing import Any

import pytest

from hobnob.models import TextDelta, ThinkingDelta, ToolSpec

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 1200, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 1000}}
WEATHER = ToolSpec(
    "weather", "Tells the weather.", {"type": "object", "properties": {"city": {"type": "string"}}}
)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "gpt-4o", "choices": [choice]}


def piece(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    name = more.pop("name", None)
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"index": index, "function": function, **more}


def usage(**counts: Any) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": counts}


async def test_text_is_streamed_and_kept(chat: Any, provider: Any) -> None:
    provider.streams(
        [delta(role="assistant", content=""), delta(content="Hel"), delta(content="lo"), delta("stop"), DONE]
    )
    asked = await chat.ask("Hi")
    assert asked.events[:-1] == [TextDelta("Hel"), TextDelta("lo")]
    message = asked.message
    assert message.pop("timestamp") > 1_700_000_000_000
    assert message == {
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello"}],
        "api": "openai-completions",
        "provider": "openai",
        "model": "gpt-4o",
        "usage": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0},
        "stopReason": "stop",
    }


async def test_the_request_carries_system_tools_and_limits(chat: Any, provider: Any) -> None:
    provider.streams([delta("stop"), DONE])
    await chat.ask("Hi", system="Be kind.", tools=[WEATHER], max_tokens=99)
    seen = provider.seen[0]
    assert (seen.path, seen.headers["Authorization"]) == (
        "/chat/completions",
        "Bearer sk-very-secret-0123456789",
    )
    assert seen.body == {
        "model": "gpt-4o",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "Tells the weather.",
                    "parameters": WEATHER.parameters,
                },
            }
        ],
        "max_tokens": 99,
    }


async def test_a_tool_call_in_pieces_is_put_together(chat: Any, provider: Any) -> None:
    provider.streams(
        [
            delta(tool_calls=[piece(0, "", id="call_1", type="function", name="weather")]),
            delta(tool_calls=[piece(0, '{"ci')]),
            delta(tool_calls=[piece(0, 'ty":"Bonn"}')]),
            delta("tool_calls"),
            DONE,
        ]
    )
    message = (await chat.ask("Weather?")).message
    assert message["content"] == [
        {"type": "toolCall", "id": "call_1", "name": "weather", "arguments": {"city": "Bonn"}}
    ]
    assert message["stopReason"] == "toolUse"


async def test_two_calls_side_by_side_are_kept_apart(chat: Any, provider: Any) -> None:
    provider.streams(
        [
            delta(content="Both:"),
            delta(tool_calls=[piece(0, "", id="a", name="weather"), piece(1, "", id="b", name="time")]),
            delta(tool_calls=[piece(1, '{"zone":'), piece(0, '{"city":"Bonn"}')]),
            delta(tool_calls=[piece(1, '"CET"}')]),
            delta("tool_calls"),
            DONE,
        ]
    )
    assert (await chat.ask("?")).message["content"] == [
        {"type": "text", "text": "Both:"},
        {"type": "toolCall", "id": "a", "name": "weather", "arguments": {"city": "Bonn"}},
        {"type": "toolCall", "id": "b", "name": "time", "arguments": {"zone": "CET"}},
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        [
            {"id": "a", "function": {"name": "t", "arguments": "{}"}},
            {"id": "b", "function": {"name": "t", "arguments": "{}"}},
        ],
        [piece(0, "{}", id="a", name="t"), piece(0, "{}", id="b", name="t")],
        [piece(0, {}, id="a", name="t"), piece(1, {"x": 1}, id="b", name="t")],  # type: ignore[arg-type]
    ],
    ids=["no index", "always index 0", "arguments as an object"],
)
async def test_calls_are_kept_apart_although_the_service_is_sloppy(
    chat: Any, provider: Any, pieces: Any
) -> None:
    provider.streams([*(delta(tool_calls=[p]) for p in pieces), delta("stop"), DONE])
    message = (await chat.ask("?")).message
    assert [part["id"] for part in message["content"]] == ["a", "b"]
    assert not any("malformed" in part for part in message["content"])
    assert message["stopReason"] == "toolUse"


@pytest.mark.parametrize("raw", ['{"city": "Bo', "[1, 2]", "Bonn", "null"])
async def test_arguments_that_are_no_object_are_kept_as_text(chat: Any, provider: Any, raw: str) -> None:
    provider.streams([delta(tool_calls=[piece(0, raw, id="a", name="weather")]), delta("tool_calls"), DONE])
    assert (await chat.ask("?")).message["content"] == [
        {"type": "toolCall", "id": "a", "name": "weather", "arguments": {}, "malformed": raw}
    ]


async def test_a_call_without_an_id_gets_one(chat: Any, provider: Any) -> None:
    provider.streams([delta(tool_calls=[piece(0, "", name="now")]), delta("tool_calls"), DONE])
    call = (await chat.ask("?")).message["content"][0]
    assert call["id"].startswith("call_") and call["arguments"] == {}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_thinking_is_told_apart_from_text(chat: Any, provider: Any, field: str) -> None:
    provider.streams(
        [delta(**{field: "Hm"}), delta(**{field: "m."}), delta(content="42"), delta("stop"), DONE]
    )
    asked = await chat.ask("?")
    assert asked.events[:-1] == [ThinkingDelta("Hm"), ThinkingDelta("m."), TextDelta("42")]
    assert asked.message["content"] == [
        {"type": "thinking", "thinking": "Hmm."},
        {"type": "text", "text": "42"},
    ]


async def test_usage_is_split_by_kind_and_priced(chat: Any, provider: Any) -> None:
    provider.streams([delta(content="x"), delta("stop"), usage(**USAGE), DONE])
    counted = (await chat.ask("?")).message["usage"]
    cost = counted.pop("cost")
    assert counted == {"input": 200, "output": 50, "cacheRead": 1000, "cacheWrite": 0, "totalTokens": 1250}
    # gpt-4o: 2.50 in, 1.25 from the cache, 10 out, by million tokens
    expected = {"input": 0.0005, "output": 0.0005, "cacheRead": 0.00125, "cacheWrite": 0, "total": 0.00225}
    assert cost == pytest.approx(expected)


async def test_a_model_without_a_known_price_has_no_cost(client: Any, provider: Any) -> None:
    provider.streams([delta("stop"), usage(**USAGE), DONE])
    unlisted = client("openai", "openai-completions", "no-such-model")
    assert "cost" not in (await unlisted.ask("?")).message["usage"]


async def test_a_history_with_tools_and_images_reads_as_the_format_demands(chat: Any, provider: Any) -> None:
    provider.streams([delta("stop"), DONE])
    await chat.ask(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See"},
                {"type": "image", "data": "QUJD", "mimeType": "image/png"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "I ask."},
                {"type": "toolCall", "id": "a", "name": "weather", "arguments": {"city": "Bonn"}},
                {"type": "toolCall", "id": "b", "name": "weather", "arguments": {}},
            ],
        },
        {"role": "user", "content": "Hurry!"},
        {
            "role": "toolResult",
            "toolCallId": "b",
            "toolName": "weather",
            "content": [{"type": "text", "text": "no city"}],
            "isError": True,
        },
        {
            "role": "toolResult",
            "toolCallId": "a",
            "toolName": "weather",
            "content": [
                {"type": "text", "text": "rain"},
                {"type": "image", "data": "QUJD", "mimeType": "image/png"},
            ],
            "isError": False,
        },
    )
    assert provider.body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
            ],
        },
        {
            "role": "assistant",
            "content": "I ask.",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Bonn"}'},
                },
                {"id": "b", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain\n(an image, which cannot be shown here)"},
        {"role": "tool", "tool_call_id": "b", "content": "no city"},
        {"role": "user", "content": "Hurry!"},
    ]


@pytest.mark.parametrize(("finish", "stop"), [("length", "length"), ("stop", "stop"), ("eos", "stop")])
async def test_the_reason_for_the_end_is_kept(chat: Any, provider: Any, finish: str, stop: str) -> None:
    provider.streams([delta(content="x"), delta(finish), DONE])
    assert (await chat.ask("?")).message["stopReason"] == stop


async def test_the_last_word_may_be_missing_when_the_reason_is_there(chat: Any, provider: Any) -> None:
    provider.streams([delta(content="x"), delta("stop")])
    assert (await chat.ask("?")).message["content"] == [{"type": "text", "text": "x"}]


async def test_a_withheld_answer_is_a_refusal(chat: Any, provider: Any) -> None:
    provider.streams([delta(content="x"), delta("content_filter"), DONE])
    assert (await chat.ask("?")).failure.kind == "refused"


@pytest.mark.parametrize(("level", "effort"), [("minimal", "low"), ("medium", "medium"), ("xhigh", "high")])
async def test_a_thinking_level_is_sent_in_the_words_of_the_service(
    chat: Any, provider: Any, level: str, effort: str
) -> None:
    provider.streams([delta("stop"), DONE])
    await chat.ask("?", thinking=level)
    assert provider.body["reasoning_effort"] == effort


async def test_a_model_that_does_not_think_is_not_told_to(chat: Any, provider: Any) -> None:
    provider.streams([delta("stop"), DONE])
    entry = {"id": "gpt-4o", "maxTokens": 500}
    await chat.ask("?", thinking="high", max_tokens=9000, settings={"models": [entry]})
    assert "reasoning_effort" not in provider.body
    assert provider.body["max_tokens"] == 500
