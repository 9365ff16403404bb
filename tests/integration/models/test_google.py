"""Google generative AI on the wire."""

from typing import Any

import orjson
import pytest

from hobnob.models import TextDelta, ThinkingDelta, ToolSpec

NOW = ToolSpec("now", "Tells the time.", {"type": "object", "properties": {}})
USAGE = {
    "promptTokenCount": 1200,
    "cachedContentTokenCount": 1000,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 30,
    "totalTokenCount": 1250,
}


def chunk(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [candidate | ({"finishReason": finish} if finish else {})], **more}


def calls(name: str, **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args}}


async def test_text_is_streamed_and_kept(gemini: Any, provider: Any) -> None:
    provider.streams([chunk({"text": "Hel"}), chunk({"text": "lo"}, finish="STOP")])
    asked = await gemini.ask("Hi")
    assert asked.events[:-1] == [TextDelta("Hel"), TextDelta("lo")]
    assert asked.message["content"] == [{"type": "text", "text": "Hello"}]
    assert (asked.message["api"], asked.message["stopReason"]) == ("google-generative-ai", "stop")


async def test_the_request_has_the_key_in_a_header_and_not_in_the_address(gemini: Any, provider: Any) -> None:
    provider.streams([chunk({"text": "x"}, finish="STOP")])
    await gemini.ask("Hi", system="Be kind.", tools=[NOW], max_tokens=99, thinking="medium")
    seen = provider.seen[0]
    assert seen.path == "/models/gemini-2.5-flash:streamGenerateContent"
    assert (seen.query, seen.headers["x-goog-api-key"]) == ("alt=sse", "sk-very-secret-0123456789")
    assert seen.body == {
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        "systemInstruction": {"parts": [{"text": "Be kind."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "now",
                        "description": "Tells the time.",
                        "parametersJsonSchema": NOW.parameters,
                    }
                ]
            }
        ],
        "generationConfig": {
            "maxOutputTokens": 99,
            "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192},
        },
    }


@pytest.mark.parametrize(
    ("model", "level", "sent"),
    [
        ("gemini-3-pro", "medium", "high"),
        ("gemini-3-flash", "medium", "medium"),
        ("gemini-3-flash", "xhigh", "high"),
    ],
)
async def test_gemini_3_is_told_a_level_instead_of_a_budget(
    client: Any, provider: Any, model: str, level: str, sent: str
) -> None:
    provider.streams([chunk({"text": "x"}, finish="STOP")])
    await client("google", "google-generative-ai", model).ask("Hi", thinking=level)
    config = provider.body["generationConfig"]["thinkingConfig"]
    assert config == {"includeThoughts": True, "thinkingLevel": sent}


async def test_calls_get_ids_and_end_in_tool_use(gemini: Any, provider: Any) -> None:
    one, two = calls("weather", city="Bonn"), calls("now")
    provider.streams([chunk(one, two), chunk({"text": ""}, finish="STOP")])
    message = (await gemini.ask("?")).message
    named = [(c["name"], c["arguments"]) for c in message["content"]]
    assert named == [("weather", {"city": "Bonn"}), ("now", {})]
    assert len({c["id"] for c in message["content"]}) == 2
    assert message["stopReason"] == "toolUse"


@pytest.mark.parametrize(("args", "raw"), [("Bonn", "Bonn"), ([1], "[1]")])
async def test_arguments_that_are_no_object_are_kept_as_text(
    gemini: Any, provider: Any, args: Any, raw: str
) -> None:
    provider.streams([chunk({"functionCall": {"id": "a", "name": "t", "args": args}}, finish="STOP")])
    assert (await gemini.ask("?")).message["content"] == [
        {"type": "toolCall", "id": "a", "name": "t", "arguments": {}, "malformed": raw}
    ]


async def test_thinking_is_shown_and_the_signature_of_a_call_handed_back(gemini: Any, provider: Any) -> None:
    signed = {**calls("now"), "thoughtSignature": "SIG"}
    provider.streams([chunk({"text": "Hm.", "thought": True}), chunk(signed, finish="STOP")])
    first = await gemini.ask("?", thinking="low")
    assert first.events[:-1] == [ThinkingDelta("Hm.")]
    assert first.message["content"][0] == {"type": "thinking", "thinking": "Hm."}
    provider.streams([chunk({"text": "x"}, finish="STOP")])
    await gemini.ask("?", first.message)
    assert provider.body["contents"][1] == {"role": "model", "parts": [signed]}


async def test_usage_is_split_by_kind_and_priced(gemini: Any, provider: Any) -> None:
    provider.streams([chunk({"text": "x"}), chunk({"text": "y"}, finish="STOP", usageMetadata=USAGE)])
    counted = (await gemini.ask("?")).message["usage"]
    cost = counted.pop("cost")
    assert counted == {"input": 200, "output": 50, "cacheRead": 1000, "cacheWrite": 0, "totalTokens": 1250}
    # gemini-2.5-flash: 0.30 in, 2.50 out, by million tokens
    assert (cost["input"], cost["output"]) == pytest.approx((0.00006, 0.000125))
    assert cost["total"] == pytest.approx(cost["input"] + cost["output"] + cost["cacheRead"])


async def test_a_history_with_tools_and_images_reads_as_the_format_demands(
    gemini: Any, provider: Any
) -> None:
    picture = {"type": "image", "data": "QUJD", "mimeType": "image/png"}
    provider.streams([chunk({"text": "x"}, finish="STOP")])
    await gemini.ask(
        {"role": "user", "content": [{"type": "text", "text": "See"}, picture]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "I ask."},
                {"type": "toolCall", "id": "a", "name": "look", "arguments": {"at": "sky"}},
                {"type": "toolCall", "id": "b", "name": "now", "arguments": {}},
            ],
        },
        {"role": "toolResult", "toolCallId": "a", "toolName": "look", "content": [picture], "isError": False},
        {"role": "toolResult", "toolCallId": "b", "toolName": "now", "content": "broken", "isError": True},
        {"role": "user", "content": "And?"},
    )
    image = {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}
    assert provider.body["contents"] == [
        {"role": "user", "parts": [{"text": "See"}, image]},
        {"role": "model", "parts": [{"text": "I ask."}, calls("look", at="sky"), calls("now")]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "look", "response": {"output": ""}}},
                image,
                {"functionResponse": {"name": "now", "response": {"error": "broken"}}},
                {"text": "And?"},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (chunk(finish="SAFETY"), "refused"),
        ({"promptFeedback": {"blockReason": "OTHER"}}, "refused"),
        (chunk(finish="MALFORMED_FUNCTION_CALL"), "garbled"),
        ({"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}, "overloaded"),
    ],
)
async def test_an_answer_that_is_none_has_a_kind(gemini: Any, provider: Any, event: Any, kind: str) -> None:
    provider.streams([chunk({"text": "x"}), event])
    assert (await gemini.ask("?")).failure.kind == kind


async def test_an_answer_that_hit_the_limit_says_so(gemini: Any, provider: Any) -> None:
    provider.streams([chunk({"text": "x"}, finish="MAX_TOKENS")])
    assert (await gemini.ask("?")).message["stopReason"] == "length"


async def test_arguments_too_deep_to_be_written_spoil_only_their_call(gemini: Any, provider: Any) -> None:
    deep: Any = 1
    for _ in range(240):
        deep = [deep]
    text = orjson.dumps(chunk(calls("now", at=1), finish="STOP")).decode()
    deeper = text.replace('"at":1', '"at":' + "[" * 600 + "]" * 600)
    provider.streams([chunk(calls("now", at=deep)), f"data: {deeper}\n\n".encode()])
    first, second = (await gemini.ask("Hi")).message["content"]
    assert (first["arguments"], second["arguments"]) == ({}, {})
    assert first["malformed"].startswith('{"at":[[[') and "nested too deeply" in second["malformed"]
