"""Reading what providers send: however it is cut, and whatever is in it."""

import copy
import itertools
import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob.models.failures import CallFailed, from_response
from hobnob.models.remote import WIRE_FORMATS, _read
from hobnob.models.sse import EventParser

STREAM = (
    b': comment\r\nevent: a\r\ndata: {"n": 1}\r\n\r\ndata:{"n":\ndata: 2}\n\nid: 7\nretry: 5\n\n'
    b'data: {"n": 3}\n\n\n\ndata: {"n": 4}'
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
CHUNKS: dict[str, list[Any]] = {
    "openai-completions": [
        {"choices": [{"delta": {"content": "a", "reasoning": "b"}, "finish_reason": None}]},
        {"choices": [{"delta": {"content": [{"type": "thinking", "thinking": [{"text": "c"}]}]}}]},
        {
            "choices": [
                {
                    "delta": {
                        "tool_calls": [{"index": 0, "id": "i", "function": {"name": "n", "arguments": "{"}}]
                    }
                }
            ]
        },
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {
            "usage": {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 1},
            }
        },
    ],
    "openai-responses": [
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "r"}},
        {"type": "response.reasoning_text.delta", "delta": "b"},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {"type": "reasoning", "id": "r", "encrypted_content": "x"},
        },
        {
            "type": "response.output_item.added",
            "output_index": 1,
            "item": {"type": "function_call", "call_id": "i", "name": "n"},
        },
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{}"},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.completed", "response": {"usage": {"input_tokens": 1, "output_tokens": 2}}},
    ],
    "anthropic-messages": [
        {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "a"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "redacted_thinking", "data": "s"},
        },
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "i", "name": "n", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": "{"},
        },
        {"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "t"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ],
    "google-generative-ai": [
        {"candidates": [{"content": {"parts": [{"text": "a", "thought": True}, {"text": "b"}]}}]},
        {
            "candidates": [
                {
                    "content": {
                        "parts": [{"functionCall": {"name": "n", "args": {}}, "thoughtSignature": "s"}]
                    },
                    "finishReason": "STOP",
                }
            ],
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2},
        },
    ],
}


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_are_the_same_wherever_the_network_cuts_them(cuts: list[int]) -> None:
    parser, got = EventParser(), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in itertools.pairwise(edges):
        got += parser.feed(STREAM[start:end])
    assert [orjson.loads(data) for data in got + parser.end()] == [{"n": n} for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    "chunk", [b"x" * 60, b"data: " + b"x" * 60, b"data: xxxxxxxxxxxxxxxxxxxxxxxxx\n" * 3]
)
def test_an_event_larger_than_allowed_is_garbled(chunk: bytes) -> None:
    with pytest.raises(CallFailed) as failure:
        EventParser(max_event_bytes=50).feed(chunk)
    assert failure.value.kind == "garbled"


@pytest.mark.parametrize("api", WIRE_FORMATS)
@given(data=st.data())
def test_no_chunk_can_break_a_reader(api: Any, data: st.DataObject) -> None:
    chunks = copy.deepcopy(CHUNKS[api])
    for _ in range(data.draw(st.integers(0, 2))):
        *way, last = data.draw(st.sampled_from(sorted(paths(chunks), key=str)))
        node = chunks
        for step in way:
            node = node[step]
        node[last] = data.draw(json_values)
    reader = WIRE_FORMATS[api].Reader()
    try:
        for chunk in chunks:
            _read(reader, json.dumps(chunk).encode())
    except CallFailed:
        return
    message = reader.answer.message(api=api, provider="p", model="m")
    assert orjson.loads(orjson.dumps(message)) == message
    assert all(isinstance(v, int | float) for v in message["usage"].values())


def paths(node: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [p for step, inner in steps for p in [(*way, step), *paths(inner, (*way, step))]]


@given(
    st.integers(300, 599),
    json_values | st.dictionaries(st.just("error"), json_values),
    st.text(max_size=9) | st.sampled_from(["Wed, 99 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 0000 07:28:00 GMT"]),
)
def test_no_error_body_can_break_us(status: int, body: Any, wait: str) -> None:
    failure = from_response(status, {"Retry-After": wait}, json.dumps(body).encode())
    assert f"answered {status}: " in failure.message


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Your input exceeds the context window of this model.", "too_long"),
        ("This model's maximum prompt length is 131072 but the request contains 200000 tokens.", "too_long"),
        (
            "Prompt contains 40000 tokens and is too large for model with 32768 maximum context length",
            "too_long",
        ),
        ("the request exceeds the available context size, try increasing it", "too_long"),
        ("input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", "too_long"),
        ("max_tokens is too large: 100000. This model supports at most 16384 completion tokens.", "refused"),
        ("messages: text content blocks must be non-empty", "refused"),
        ("The model `gpt-9` does not exist or you do not have access to it.", "refused"),
    ],
)
def test_only_a_conversation_that_does_not_fit_is_too_long(message: str, kind: str) -> None:
    body = orjson.dumps({"error": {"message": message, "type": "invalid_request_error"}})
    assert from_response(400, {}, body).kind == kind
