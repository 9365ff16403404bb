"""OpenAI responses on the wire."""

from typing import Any

import pytest

from hobnob.models import TextDelta, ThinkingDelta, ToolSpec

NOW = ToolSpec("now", "Tells the time.", {"type": "object", "properties": {}})
USAGE = {
    "input_tokens": 1200,
    "input_tokens_details": {"cached_tokens": 1000},
    "output_tokens": 50,
    "output_tokens_details": {"reasoning_tokens": 30},
    "total_tokens": 1250,
}


def text(piece: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": piece}


def added(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def arguments(index: int, piece: str) -> dict[str, Any]:
    return {"type": "response.function_call_arguments.delta", "output_index": index, "delta": piece}


def completed(**more: Any) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"id": "r1", "status": "completed", **more}}


CREATED = {"type": "response.created", "response": {"id": "r1", "status": "in_progress"}}


async def test_text_is_streamed_and_kept(responses: Any, provider: Any) -> None:
    message = {"type": "message", "role": "assistant", "content": []}
    provider.streams([CREATED, added(0, **message), text("Hel"), text("lo"), done(0, **message), completed()])
    asked = await responses.ask("Hi")
    assert asked.events[:-1] == [TextDelta("Hel"), TextDelta("lo")]
    assert asked.message["content"] == [{"type": "text", "text": "Hello"}]
    assert (asked.message["api"], asked.message["stopReason"]) == ("openai-responses", "stop")


async def test_the_request_stores_nothing_and_carries_everything(responses: Any, provider: Any) -> None:
    provider.streams([completed()])
    await responses.ask(
        "Hi", system="Be kind.", tools=[NOW], max_tokens=99, thinking="xhigh", session_id="s1"
    )
    seen = provider.seen[0]
    assert (seen.path, seen.headers["Authorization"]) == ("/responses", "Bearer sk-very-secret-0123456789")
    assert seen.body == {
        "model": "gpt-5",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "stream": True,
        "store": False,
        "instructions": "Be kind.",
        "tools": [
            {
                "type": "function",
                "name": "now",
                "description": "Tells the time.",
                "parameters": NOW.parameters,
                "strict": False,
            }
        ],
        "max_output_tokens": 99,
        "reasoning": {"effort": "xhigh", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "s1",
    }


async def test_a_tool_call_in_pieces_is_put_together(responses: Any, provider: Any) -> None:
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather"}
    provider.streams(
        [
            added(0, **call, arguments=""),
            arguments(0, '{"ci'),
            arguments(0, 'ty":"Bonn"}'),
            done(0, **call, arguments='{"city":"Bonn"}'),
            completed(),
        ]
    )
    message = (await responses.ask("?")).message
    assert message["content"] == [
        {"type": "toolCall", "id": "call_1", "name": "weather", "arguments": {"city": "Bonn"}}
    ]
    assert message["stopReason"] == "toolUse"


async def test_two_calls_side_by_side_are_kept_apart(responses: Any, provider: Any) -> None:
    one = {"type": "function_call", "call_id": "a", "name": "weather"}
    two = {"type": "function_call", "call_id": "b", "name": "time"}
    provider.streams(
        [
            added(0, **one),
            added(1, **two),
            arguments(1, '{"zone":'),
            arguments(0, '{"city":"Bonn"}'),
            arguments(1, '"CET"}'),
            completed(),
        ]
    )
    assert (await responses.ask("?")).message["content"] == [
        {"type": "toolCall", "id": "a", "name": "weather", "arguments": {"city": "Bonn"}},
        {"type": "toolCall", "id": "b", "name": "time", "arguments": {"zone": "CET"}},
    ]


async def test_arguments_that_are_no_object_are_kept_as_text(responses: Any, provider: Any) -> None:
    provider.streams(
        [added(0, type="function_call", call_id="a", name="t"), arguments(0, '{"x": '), completed()]
    )
    assert (await responses.ask("?")).message["content"] == [
        {"type": "toolCall", "id": "a", "name": "t", "arguments": {}, "malformed": '{"x": '}
    ]


async def test_thinking_is_shown_signed_and_handed_back(responses: Any, provider: Any) -> None:
    summary = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0}
    call = {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"}
    provider.streams(
        [
            added(0, type="reasoning", id="rs_1"),
            {**summary, "delta": "Hm"},
            {"type": "response.reasoning_summary_part.added", "output_index": 0, "summary_index": 1},
            {**summary, "delta": "m."},
            done(0, type="reasoning", id="rs_1", encrypted_content="XYZ", summary=[]),
            added(1, **call),
            done(1, **call),
            completed(),
        ]
    )
    first = await responses.ask("?", thinking="low")
    assert first.events[:-1] == [ThinkingDelta("Hm"), ThinkingDelta("\n\n"), ThinkingDelta("m.")]
    provider.streams([completed()])
    await responses.ask("?", first.message)
    assert provider.body["input"][1:] == [
        {
            "type": "reasoning",
            "id": "rs_1",
            "encrypted_content": "XYZ",
            "summary": [{"type": "summary_text", "text": "Hm\n\nm."}],
        },
        {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "a",
            "output": "There is no result: the call was interrupted.",
        },
    ]


async def test_thinking_that_nothing_follows_is_left_out(responses: Any, provider: Any) -> None:
    signed = {"type": "thinking", "thinking": "Hm.", "thinkingSignature": '{"id":"rs_1"}'}
    own = {"role": "assistant", "api": "openai-responses", "model": "gpt-5", "content": [signed]}
    provider.streams([completed()])
    await responses.ask("one", own, "two")
    assert [item["role"] for item in provider.body["input"]] == ["user", "user"]


async def test_usage_is_split_by_kind_and_priced(responses: Any, provider: Any) -> None:
    provider.streams([text("x"), completed(usage=USAGE)])
    counted = (await responses.ask("?")).message["usage"]
    cost = counted.pop("cost")
    assert counted == {"input": 200, "output": 50, "cacheRead": 1000, "cacheWrite": 0, "totalTokens": 1250}
    # gpt-5: 1.25 in, 0.125 from the cache, 10 out, by million tokens
    expected = {"input": 0.00025, "output": 0.0005, "cacheRead": 0.000125, "cacheWrite": 0, "total": 0.000875}
    assert cost == pytest.approx(expected)


async def test_a_history_with_tools_and_images_reads_as_the_format_demands(
    responses: Any, provider: Any
) -> None:
    picture = {"type": "image", "data": "QUJD", "mimeType": "image/png"}
    provider.streams([completed()])
    await responses.ask(
        {"role": "user", "content": [{"type": "text", "text": "See"}, picture]},
        {
            "role": "assistant",
            "api": "anthropic-messages",
            "model": "claude",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "from another model"},
                {"type": "text", "text": "I ask."},
                {"type": "toolCall", "id": "a", "name": "look", "arguments": {"at": "sky"}},
                {"type": "toolCall", "id": "b", "name": "look", "arguments": {}},
            ],
        },
        {"role": "toolResult", "toolCallId": "a", "toolName": "look", "content": [picture], "isError": False},
        {"role": "toolResult", "toolCallId": "b", "toolName": "look", "content": "nothing", "isError": True},
    )
    shown = {"type": "input_image", "image_url": "data:image/png;base64,QUJD"}
    assert provider.body["input"] == [
        {"role": "user", "content": [{"type": "input_text", "text": "See"}, shown]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I ask."}]},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"at":"sky"}'},
        {"type": "function_call", "call_id": "b", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [shown]},
        {"type": "function_call_output", "call_id": "b", "output": "nothing"},
    ]


async def test_an_answer_that_hit_the_limit_says_so(responses: Any, provider: Any) -> None:
    details = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    provider.streams([text("x"), {"type": "response.incomplete", "response": details}])
    assert (await responses.ask("?")).message["stopReason"] == "length"


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "oops"}}},
            "overloaded",
        ),
        ({"type": "error", "code": "rate_limit_exceeded", "message": "oops"}, "overloaded"),
        ({"type": "error", "code": "invalid_prompt", "message": "oops"}, "refused"),
        ({"type": "error", "code": "context_length_exceeded", "message": "oops"}, "too_long"),
    ],
)
async def test_an_error_within_the_stream_has_a_kind(
    responses: Any, provider: Any, event: Any, kind: str
) -> None:
    provider.streams([CREATED, event])
    failure = (await responses.ask("?")).failure
    assert (failure.kind, failure.message) == (kind, "openai: failed in mid-stream: oops")
