"""Where services that speak one format differ, by their address."""

from typing import Any

from hobnob.models import Request
from hobnob.models.failures import CallFailed
from hobnob.models.formats import openai_chat

ASKED: list[dict[str, Any]] = [
    {"role": "user", "content": "?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "toolCall", "id": "call_from_elsewhere", "name": "now", "arguments": {}},
        ],
    },
    {"role": "toolResult", "toolCallId": "call_from_elsewhere", "toolName": "now", "content": "noon"},
]


def body(base_url: str) -> dict[str, Any]:
    request = Request(model="m", system="", messages=ASKED, thinking="xhigh", max_tokens=9, session_id="s1")
    return openai_chat.build_request(request, base_url, "k").body


def test_openai_takes_all_levels_and_a_key_for_its_cache() -> None:
    sent = body("https://api.openai.com/v1")
    assert (sent["max_completion_tokens"], sent["reasoning_effort"]) == (9, "xhigh")
    assert sent["prompt_cache_key"] == "s1" and "max_tokens" not in sent


def test_openrouter_takes_the_level_in_an_object() -> None:
    assert body("https://openrouter.ai/api/v1")["reasoning"] == {"effort": "xhigh"}


def test_mistral_refuses_stream_options_and_long_ids() -> None:
    sent = body("https://api.mistral.ai/v1")
    assert "stream_options" not in sent
    called = sent["messages"][1]["tool_calls"][0]["id"]
    assert len(called) == 9 and called.isalnum()
    assert sent["messages"][2]["tool_call_id"] == called


def test_deepseek_wants_the_thinking_of_its_tool_calls_back() -> None:
    assert body("https://api.deepseek.com/v1")["messages"][1]["reasoning_content"] == "Hm."
    assert "reasoning_content" not in body("http://127.0.0.1:8000/v1")["messages"][1]


def test_a_key_that_is_no_secret_does_not_blot_out_the_message() -> None:
    failure = CallFailed("refused", "model not found, try pulling it: ollama pull m").event(
        "ollama", "ollama"
    )
    assert failure.message == "ollama: model not found, try pulling it: ollama pull m"
