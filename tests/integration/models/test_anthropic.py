"""Anthropic messages on the wire."""

from typing import Any

import pytest

from hobnob.models import TextDelta, ThinkingDelta, ToolSpec

NOW = ToolSpec("now", "Tells the time.", {"type": "object", "properties": {}})
START = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "role": "assistant",
        "content": [],
        "usage": {
            "input_tokens": 100,
            "cache_creation_input_tokens": 300,
            "cache_read_input_tokens": 1000,
            "output_tokens": 1,
        },
    },
}
STOP = {"type": "message_stop"}
KEEP = {"cache_control": {"type": "ephemeral"}}


def block(index: int, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def end(reason: str = "end_turn") -> list[dict[str, Any]]:
    ending = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": ending, "usage": {"output_tokens": 50}}, STOP]


def tool(index: int, call_id: str, *pieces: str) -> list[dict[str, Any]]:
    return [
        block(index, type="tool_use", id=call_id, name="weather", input={}),
        *(delta(index, "input_json_delta", partial_json=p) for p in ("", *pieces)),
        {"type": "content_block_stop", "index": index},
    ]


async def test_text_is_streamed_and_kept(claude: Any, provider: Any) -> None:
    words = [delta(0, "text_delta", text="Hel"), delta(0, "text_delta", text="lo")]
    provider.streams([START, {"type": "ping"}, block(0, type="text", text=""), *words, *end()])
    asked = await claude.ask("Hi")
    assert asked.events[:-1] == [TextDelta("Hel"), TextDelta("lo")]
    assert asked.message["content"] == [{"type": "text", "text": "Hello"}]
    assert (asked.message["api"], asked.message["stopReason"]) == ("anthropic-messages", "stop")


async def test_the_request_marks_what_is_worth_keeping_in_the_cache(claude: Any, provider: Any) -> None:
    provider.streams([START, *end()])
    await claude.ask("Hi", system="Be kind.", tools=[NOW], max_tokens=9000, thinking="low")
    seen = provider.seen[0]
    assert (seen.path, seen.headers["x-api-key"]) == ("/v1/messages", "sk-very-secret-0123456789")
    assert seen.headers["anthropic-version"] == "2023-06-01"
    assert seen.body == {
        "model": "claude-sonnet-4-5",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", **KEEP}]}],
        "max_tokens": 9000,
        "stream": True,
        "system": [{"type": "text", "text": "Be kind.", **KEEP}],
        "tools": [{"name": "now", "description": "Tells the time.", "input_schema": NOW.parameters}],
        "thinking": {"type": "enabled", "budget_tokens": 2048},
    }


async def test_the_address_may_end_in_v1(claude: Any, provider: Any) -> None:
    provider.streams([START, *end()])
    await claude.ask("Hi", settings={"baseUrl": f"{provider.url}/v1/"})
    assert provider.seen[0].path == "/v1/messages"


async def test_a_tool_call_in_pieces_is_put_together(claude: Any, provider: Any) -> None:
    provider.streams([START, *tool(0, "toolu_1", '{"ci', 'ty":"Bonn"}'), *end("tool_use")])
    message = (await claude.ask("?")).message
    assert message["content"] == [
        {"type": "toolCall", "id": "toolu_1", "name": "weather", "arguments": {"city": "Bonn"}}
    ]
    assert message["stopReason"] == "toolUse"


async def test_two_calls_in_one_answer_are_kept_apart(claude: Any, provider: Any) -> None:
    provider.streams([START, *tool(0, "a", '{"city":"Bonn"}'), *tool(1, "b"), *end("tool_use")])
    calls = (await claude.ask("?")).message["content"]
    assert [(c["id"], c["arguments"]) for c in calls] == [("a", {"city": "Bonn"}), ("b", {})]


async def test_arguments_that_are_no_object_are_kept_as_text(claude: Any, provider: Any) -> None:
    provider.streams([START, *tool(0, "a", '{"city": "Bo'), *end("max_tokens")])
    message = (await claude.ask("?")).message
    assert message["content"][0] == {
        "type": "toolCall",
        "id": "a",
        "name": "weather",
        "arguments": {},
        "malformed": '{"city": "Bo',
    }
    assert message["stopReason"] == "length"


async def test_thinking_is_shown_signed_and_handed_back(claude: Any, provider: Any) -> None:
    provider.streams(
        [
            START,
            block(0, type="thinking", thinking="", signature=""),
            delta(0, "thinking_delta", thinking="Hm"),
            delta(0, "thinking_delta", thinking="m."),
            delta(0, "signature_delta", signature="SIG"),
            block(1, type="redacted_thinking", data="HIDDEN"),
            *tool(2, "a", "{}"),
            *end("tool_use"),
        ]
    )
    first = await claude.ask("?", thinking="low")
    assert first.events[:-1] == [ThinkingDelta("Hm"), ThinkingDelta("m.")]
    assert first.message["content"][:2] == [
        {"type": "thinking", "thinking": "Hmm.", "thinkingSignature": "SIG"},
        {"type": "thinking", "thinking": "", "thinkingSignature": "HIDDEN", "redacted": True},
    ]
    provider.streams([START, *end()])
    await claude.ask("?", first.message, thinking="low")
    assert provider.body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hmm.", "signature": "SIG"},
        {"type": "redacted_thinking", "data": "HIDDEN"},
        {"type": "tool_use", "id": "a", "name": "weather", "input": {}},
    ]
    assert provider.body["thinking"] == {"type": "enabled", "budget_tokens": 2048}


async def test_thinking_pauses_within_a_tool_loop_that_began_without_it(claude: Any, provider: Any) -> None:
    provider.streams([START, *end()])
    call = {"type": "toolCall", "id": "a", "name": "now", "arguments": {}}
    answer = {"role": "assistant", "content": [{"type": "thinking", "thinking": "unsigned"}, call]}
    await claude.ask("?", answer, thinking="high")
    assert "thinking" not in provider.body
    assert [b["type"] for b in provider.body["messages"][1]["content"]] == ["tool_use"]


async def test_usage_is_split_by_kind_and_priced(claude: Any, provider: Any) -> None:
    provider.streams([START, *end()])
    counted = (await claude.ask("?")).message["usage"]
    cost = counted.pop("cost")
    assert counted == {"input": 100, "output": 50, "cacheRead": 1000, "cacheWrite": 300, "totalTokens": 1450}
    # claude-sonnet-4-5: 3 in, 15 out, 0.30 from the cache, 3.75 into it, by million tokens
    parts = {"input": 0.0003, "output": 0.00075, "cacheRead": 0.0003, "cacheWrite": 0.001125}
    assert cost == pytest.approx(parts | {"total": 0.002475})


async def test_all_results_of_one_answer_are_one_message(claude: Any, provider: Any) -> None:
    picture = {"type": "image", "data": "QUJD", "mimeType": "image/png"}
    provider.streams([START, *end()])
    await claude.ask(
        {"role": "assistant", "content": [{"type": "text", "text": "Welcome."}]},
        {"role": "user", "content": [{"type": "text", "text": "See"}, picture]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I ask."},
                {"type": "text", "text": ""},
                {"type": "toolCall", "id": "a", "name": "look", "arguments": {"at": "sky"}},
                {"type": "toolCall", "id": "b|odd id", "name": "look", "arguments": {}},
            ],
        },
        {"role": "toolResult", "toolCallId": "a", "toolName": "look", "content": [picture], "isError": False},
        {"role": "user", "content": "Hurry!"},
        {
            "role": "toolResult",
            "toolCallId": "b|odd id",
            "toolName": "look",
            "content": "no",
            "isError": True,
        },
        {"role": "toolResult", "toolCallId": "orphan", "toolName": "look", "content": "?", "isError": False},
    )
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    messages = provider.body["messages"]
    odd = messages[3]["content"][2]["id"]
    assert odd.startswith("call_")
    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "(The conversation begins.)"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Welcome."}]},
        {"role": "user", "content": [{"type": "text", "text": "See"}, image]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I ask."},
                {"type": "tool_use", "id": "a", "name": "look", "input": {"at": "sky"}},
                {"type": "tool_use", "id": odd, "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [image]},
                {
                    "type": "tool_result",
                    "tool_use_id": odd,
                    "content": [{"type": "text", "text": "no"}],
                    "is_error": True,
                },
                {"type": "text", "text": "Hurry!", **KEEP},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("level", "limit", "thinking", "sent_limit"),
    [
        ("off", None, None, 8192),
        ("minimal", None, 1024, 9216),
        ("xhigh", None, 32_768, 40_960),
        ("high", 4096, 3072, 4096),
        ("high", 1500, None, 1500),
    ],
)
async def test_a_thinking_budget_fits_into_the_limit(
    claude: Any, provider: Any, level: str, limit: int | None, thinking: int | None, sent_limit: int
) -> None:
    provider.streams([START, *end()])
    await claude.ask("?", thinking=level, max_tokens=limit)
    assert provider.body.get("thinking", {}).get("budget_tokens") == thinking
    assert provider.body["max_tokens"] == sent_limit


@pytest.mark.parametrize("model", ["claude-opus-4-6", "claude-opus-4-7-20260401", "claude-sonnet-5"])
async def test_later_models_are_told_how_hard_to_think(client: Any, provider: Any, model: str) -> None:
    later = client("anthropic", "anthropic-messages", model)
    provider.streams([START, *end()])
    await later.ask("?", thinking="minimal")
    assert provider.body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert provider.body["output_config"] == {"effort": "low"}
    provider.streams([START, *end()])
    await later.ask("?")
    assert not {"thinking", "output_config"} & provider.body.keys()
    assert provider.body["max_tokens"] == 32_000


@pytest.mark.parametrize(
    "model",
    [
        "claude-3-7-sonnet-latest",
        "claude-sonnet-4-20250514",
        "claude-opus-4-1",
        "claude-haiku-4-5-20251001",
        "kimi-k2",
    ],
)
async def test_earlier_and_other_models_get_a_thinking_budget(client: Any, provider: Any, model: str) -> None:
    provider.streams([START, *end()])
    await client("anthropic", "anthropic-messages", model).ask("?", thinking="low")
    assert provider.body["thinking"] == {"type": "enabled", "budget_tokens": 2048}


@pytest.mark.parametrize(
    ("code", "kind"),
    [("overloaded_error", "overloaded"), ("api_error", "overloaded"), ("invalid_request_error", "refused")],
)
async def test_an_error_within_the_stream_has_a_kind(
    claude: Any, provider: Any, code: str, kind: str
) -> None:
    provider.streams([START, {"type": "error", "error": {"type": code, "message": "oops"}}])
    failure = (await claude.ask("?")).failure
    assert (failure.kind, failure.message) == (kind, "anthropic: failed in mid-stream: oops")
