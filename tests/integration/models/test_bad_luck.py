"""What can go wrong between us and a provider, in each wire format."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest
from tests.waiting import LIMIT_S

from hobnob.models import RETRYABLE, Failed, Finished, TextDelta
from hobnob.models.http import Timeouts

KEY = "sk-very-secret-0123456789"
HTML = b"<html><head><title>Bad Gateway</title></head><body><h1>502</h1>nginx</body></html>"
FAST = Timeouts(first_byte_s=0.5, idle_s=0.5)


@dataclass(frozen=True)
class WireFormat:
    """One provider's words: an answer that begins, its end, and how it puts errors."""

    fixture: str
    begin: list[Any]
    end: list[Any]
    errors: dict[str, tuple[int, Any]]


def _openai_error(message: str, kind: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


OPENAI_ERRORS = {
    "key": (
        401,
        _openai_error(f"Incorrect API key provided: {KEY}.", "invalid_request_error", "invalid_api_key"),
    ),
    "long": (
        400,
        _openai_error(
            "This model's maximum context length is 128000 tokens.",
            "invalid_request_error",
            "context_length_exceeded",
        ),
    ),
    "busy": (429, _openai_error("Rate limit reached.", "requests", "rate_limit_exceeded")),
    "down": (503, _openai_error("The engine is currently overloaded.", "server_error", None)),
    "bad": (400, _openai_error("Unknown parameter: 'x'.", "invalid_request_error", "unknown_parameter")),
}


def _anthropic_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def _google_error(code: int, status: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status}}


WIRE_FORMATS = [
    WireFormat(
        "chat",
        [{"choices": [{"index": 0, "delta": {"content": "Hel"}, "finish_reason": None}]}],
        [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, b"data: [DONE]\n\n"],
        OPENAI_ERRORS,
    ),
    WireFormat(
        "responses",
        [{"type": "response.output_text.delta", "output_index": 0, "delta": "Hel"}],
        [{"type": "response.completed", "response": {"status": "completed"}}],
        OPENAI_ERRORS,
    ),
    WireFormat(
        "claude",
        [
            {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        ],
        [
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        ],
        {
            "key": (401, _anthropic_error("authentication_error", f"invalid x-api-key {KEY}")),
            "long": (
                400,
                _anthropic_error(
                    "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"
                ),
            ),
            "busy": (
                429,
                _anthropic_error("rate_limit_error", "Number of requests has exceeded your limit."),
            ),
            "down": (529, _anthropic_error("overloaded_error", "Overloaded")),
            "bad": (400, _anthropic_error("invalid_request_error", "max_tokens: 100000 > 8192")),
        },
    ),
    WireFormat(
        "gemini",
        [{"candidates": [{"content": {"role": "model", "parts": [{"text": "Hel"}]}}]}],
        [{"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP"}]}],
        {
            "key": (401, _google_error(401, "UNAUTHENTICATED", f"API key {KEY} not valid.")),
            "long": (
                400,
                _google_error(
                    400,
                    "INVALID_ARGUMENT",
                    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                ),
            ),
            "busy": (429, [_google_error(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota.")]),
            "down": (503, _google_error(503, "UNAVAILABLE", "The model is overloaded.")),
            "bad": (400, _google_error(400, "INVALID_ARGUMENT", "Invalid value at 'tools'.")),
        },
    ),
]


@pytest.fixture(params=WIRE_FORMATS, ids=lambda s: s.fixture)
def wire_format(request: pytest.FixtureRequest) -> WireFormat:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def any_model(request: pytest.FixtureRequest, wire_format: WireFormat) -> Any:
    return request.getfixturevalue(wire_format.fixture)


async def test_a_stream_cut_in_the_middle_is_cut(
    any_model: Any, provider: Any, wire_format: WireFormat
) -> None:
    provider.streams(wire_format.begin, then="cut")
    asked = await any_model.ask("Hi")
    assert asked.events[0] == TextDelta("Hel")
    assert asked.failure.kind == "cut"


async def test_a_stream_that_ends_without_saying_why_is_cut(
    any_model: Any, provider: Any, wire_format: WireFormat
) -> None:
    provider.streams(wire_format.begin)
    assert (await any_model.ask("Hi")).failure.kind == "cut"


async def test_an_empty_stream_is_cut(any_model: Any, provider: Any) -> None:
    provider.streams([])
    assert (await any_model.ask("Hi")).failure.kind == "cut"


async def test_silence_in_the_middle_is_cut(any_model: Any, provider: Any, wire_format: WireFormat) -> None:
    provider.streams(wire_format.begin, then="hang")
    asked = await any_model.ask("Hi", timeouts=Timeouts(idle_s=0.5))
    assert [type(e) for e in asked.events] == [TextDelta, Failed]
    assert asked.failure.kind == "cut"
    await provider.seen[0].gone.wait()


@pytest.mark.parametrize(
    "chunk",
    [
        b"data: {broken\n\n",
        b"data: []\n\n",
        b"data: 7\n\n",
        b'data: {"choices": 5, "candidates": 5}\n\n',
        b'data: {"choices": [{"delta": {"content": 5}}], "candidates": [{"content": {"parts": [5]}}]}\n\n',
    ],
)
async def test_a_chunk_of_another_shape_is_garbled(
    any_model: Any, provider: Any, wire_format: WireFormat, chunk: bytes
) -> None:
    provider.streams([*wire_format.begin, chunk, *wire_format.end])
    asked = await any_model.ask("Hi")
    assert (asked.events[0], asked.failure.kind) == (TextDelta("Hel"), "garbled")


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "text/plain", "text/event-stream"])
async def test_a_web_page_with_status_200_is_garbled(any_model: Any, provider: Any, kind: str) -> None:
    provider.answers(200, HTML, kind=kind)
    failure = (await any_model.ask("Hi")).failure
    assert failure.kind == "garbled"
    assert "check baseUrl" in failure.message and "nginx" not in failure.message


async def test_a_web_page_with_an_error_status_is_summarised(any_model: Any, provider: Any) -> None:
    provider.answers(502, HTML, kind="text/html")
    failure = (await any_model.ask("Hi")).failure
    summary = f"Bad Gateway, with {len(HTML)} bytes that are no JSON error; the debug log shows them"
    assert failure == Failed("unreachable", f"{any_model.name}: answered 502: {summary}")


TRACE = f"""Traceback (most recent call last):
  File "/srv/engine/worker.py", line 7, in answer
    raise KeyError({KEY!r})
KeyError: {KEY!r}"""


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (500, f"<html><pre>{TRACE}</pre></html>".encode(), "text/html", "Internal Server Error"),
        (500, TRACE.encode(), "text/plain", "Internal Server Error"),
        (500, {"error": {"message": f"worker died: {TRACE}"}}, "application/json", "worker died:"),
        (400, {"detail": TRACE}, "application/json", "a stack trace"),
        (200, {"error": {"message": f"worker died: {TRACE}"}}, "application/json", "worker died:"),
        (200, TRACE.encode(), "text/html", "event stream"),
        (200, TRACE.encode(), "text/event-stream", "event stream"),
    ],
)
async def test_a_stack_trace_stays_in_the_debug_log_without_the_key(
    any_model: Any,
    provider: Any,
    caplog: pytest.LogCaptureFixture,
    status: int,
    body: Any,
    kind: str,
    says: str,
) -> None:
    provider.answers(status, body, kind=kind)
    with caplog.at_level("DEBUG", "hobnob.models"):
        failure = (await any_model.ask("Hi")).failure
    assert says in failure.message
    assert "worker.py" not in failure.message and "Traceback" not in failure.message
    assert ("Traceback" if kind == "text/event-stream" else "worker.py") in caplog.text
    assert KEY not in caplog.text


async def test_an_error_in_a_stream_is_shown_without_its_stack_trace(
    any_model: Any, provider: Any, wire_format: WireFormat
) -> None:
    error = {"type": "error", "error": {"type": "server_error", "message": f"worker died: {TRACE}"}}
    provider.streams([*wire_format.begin, error])
    failure = (await any_model.ask("Hi")).failure
    assert failure.message == f"{any_model.name}: failed in mid-stream: worker died:"


async def test_a_content_type_of_many_parameters_costs_no_time(chat: Any, provider: Any) -> None:
    loop = asyncio.get_running_loop()
    provider.answers(500, {"error": {"message": "no"}}, kind="application/json; " + ";" * 7000)
    asking = asyncio.ensure_future(chat.ask("Hi"))
    longest, seen_at = 0.0, loop.time()
    while not asking.done():
        await asyncio.sleep(0)
        longest, seen_at = max(longest, loop.time() - seen_at), loop.time()
    assert (await asking).failure.message.endswith("answered 500: no")
    assert longest < 1  # the parser of the HTTP client takes two seconds


async def test_a_wrong_key_is_refused_in_the_providers_words_without_the_key(
    any_model: Any, provider: Any, wire_format: WireFormat
) -> None:
    provider.answers(*wire_format.errors["key"])
    failure = (await any_model.ask("Hi")).failure
    assert (failure.kind, failure.retry_after_s) == ("refused", None)
    assert "answered 401: " in failure.message and "***" in failure.message
    assert KEY not in repr(failure)


async def test_a_conversation_that_does_not_fit_is_too_long(
    any_model: Any, provider: Any, wire_format: WireFormat
) -> None:
    provider.answers(*wire_format.errors["long"])
    assert (await any_model.ask("Hi")).failure.kind == "too_long"


async def test_a_request_that_is_wrong_is_refused(
    any_model: Any, provider: Any, wire_format: WireFormat
) -> None:
    provider.answers(*wire_format.errors["bad"])
    failure = (await any_model.ask("Hi")).failure
    assert failure.kind == "refused" and failure.kind not in RETRYABLE


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry_After": "17"}, 17.0),
        ({"Retry_After_Ms": "250"}, 0.25),
        ({}, None),
        ({"Retry_After": "soon"}, None),
    ],
)
async def test_too_many_requests_say_when_to_come_back(
    any_model: Any, provider: Any, wire_format: WireFormat, headers: Any, wait: float | None
) -> None:
    provider.answers(*wire_format.errors["busy"], **headers)
    failure = (await any_model.ask("Hi")).failure
    assert (failure.kind, failure.retry_after_s) == ("overloaded", wait)


async def test_a_date_to_come_back_at_is_a_number_of_seconds(chat: Any, provider: Any) -> None:
    provider.answers(429, {}, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT")
    assert (await chat.ask("Hi")).failure.retry_after_s == 0.0


async def test_google_says_in_the_body_when_to_come_back(gemini: Any, provider: Any) -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}
    provider.answers(429, {"error": {"code": 429, "message": "quota", "details": [detail]}})
    assert (await gemini.ask("Hi")).failure.retry_after_s == 34.5


async def test_an_empty_account_is_no_reason_to_wait(chat: Any, provider: Any) -> None:
    provider.answers(
        429, _openai_error("You exceeded your quota.", "insufficient_quota", "insufficient_quota")
    )
    assert (await chat.ask("Hi")).failure.kind == "refused"


async def test_an_overloaded_provider_is_overloaded(
    any_model: Any, provider: Any, wire_format: WireFormat
) -> None:
    status, body = wire_format.errors["down"]
    provider.answers(status, body)
    failure = (await any_model.ask("Hi")).failure
    assert failure.kind == "overloaded" and f"answered {status}: " in failure.message


async def test_an_error_in_a_200_that_is_no_stream_is_read(
    any_model: Any, provider: Any, wire_format: WireFormat
) -> None:
    provider.answers(200, wire_format.errors["long"][1])
    assert (await any_model.ask("Hi")).failure.kind == "too_long"


async def test_a_provider_that_does_not_begin_is_unreachable(any_model: Any, provider: Any) -> None:
    provider.is_silent()
    assert (await any_model.ask("Hi", timeouts=FAST)).failure.kind == "unreachable"
    await provider.seen[0].gone.wait()


async def test_headers_alone_are_no_beginning(any_model: Any, provider: Any) -> None:
    provider.streams([], then="hang")
    assert (await any_model.ask("Hi", timeouts=FAST)).failure.kind == "unreachable"


async def test_a_server_that_is_not_there_is_unreachable(any_model: Any, unused_tcp_port: int) -> None:
    address = f"http://u:pw@127.0.0.1:{unused_tcp_port}"
    failure = (await any_model.ask("Hi", settings={"baseUrl": address, "apiKey": ""})).failure
    assert failure.kind == "unreachable"
    assert f"127.0.0.1:{unused_tcp_port}" in failure.message and "pw" not in failure.message


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://127.0.0.1", "http://[::1", "http://a b/"])
async def test_an_address_that_is_none_is_refused(any_model: Any, url: str) -> None:
    assert (await any_model.ask("Hi", settings={"baseUrl": url})).failure.kind in ("refused", "unreachable")


async def test_a_server_that_does_not_speak_http_is_garbled_or_gone(any_model: Any) -> None:
    async def mumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example ready\r\n")
        writer.close()

    async with await asyncio.start_server(mumble, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        failure = (await any_model.ask("Hi", settings={"baseUrl": f"http://127.0.0.1:{port}"})).failure
    assert failure.kind in ("garbled", "unreachable")


async def test_a_redirect_is_not_followed(any_model: Any, provider: Any) -> None:
    provider.answers(307, b"", Location="http://127.0.0.1:1/elsewhere")
    failure = (await any_model.ask("Hi")).failure
    assert failure.kind == "refused" and "baseUrl" in failure.message


@pytest.mark.parametrize("key", ["two\nlines", "umläut", "line\r\nX-Evil: 1"])
async def test_a_key_that_cannot_be_a_header_is_not_shown(any_model: Any, provider: Any, key: str) -> None:
    provider.answers(401, {"error": {"message": "no"}})
    failure = (await any_model.ask("Hi", settings={"apiKey": key})).failure
    assert failure.kind == "refused" and key not in failure.message
    assert not any("X-Evil" in seen.headers for seen in provider.seen)


async def test_an_endless_error_body_is_read_in_part(any_model: Any, provider: Any) -> None:
    provider.floods(400)
    failure = (await any_model.ask("Hi")).failure
    assert failure.kind == "refused" and len(failure.message) < 1000
    await provider.seen[0].gone.wait()


async def test_a_line_that_never_ends_is_garbled(chat: Any, provider: Any) -> None:
    provider.streams([b"data: " + b"x" * (17 * 1024 * 1024)], then="hang")
    assert (await chat.ask("Hi")).failure.kind == "garbled"


async def test_a_transcript_that_cannot_be_written_is_refused(any_model: Any) -> None:
    assert (await any_model.ask("half a pair: \ud800")).failure.kind == "refused"
    assert (await any_model.ask({"role": "user", "content": [{"type": "image"}]})).failure.kind == "refused"


async def test_leaving_early_ends_the_call(any_model: Any, provider: Any, wire_format: WireFormat) -> None:
    provider.streams(wire_format.begin, then="hang")
    model = await any_model.model()
    async with aclosing(model.stream(any_model.request())) as stream:
        async for event in stream:
            assert event == TextDelta("Hel")
            break
    await provider.seen[0].gone.wait()


async def test_just_breaking_off_the_loop_ends_the_call_too(
    any_model: Any, provider: Any, wire_format: WireFormat
) -> None:
    provider.streams(wire_format.begin, then="hang")
    model = await any_model.model()
    async for _ in model.stream(any_model.request()):
        break
    async with asyncio.timeout(LIMIT_S):
        assert await provider.seen[0].gone.wait()


async def test_a_cancelled_task_ends_the_call_and_is_cancelled(any_model: Any, provider: Any) -> None:
    provider.is_silent()
    task = asyncio.ensure_future(any_model.ask("Hi"))
    await provider.has_seen(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await provider.seen[0].gone.wait()


async def test_every_cut_into_bytes_gives_the_same_answer(
    any_model: Any, provider: Any, wire_format: WireFormat
) -> None:
    from orjson import dumps

    raw = b"".join(
        e if isinstance(e, bytes) else b": note\r\ndata:" + dumps(e) + b"\r\n\r\n"
        for e in wire_format.begin + wire_format.end
    )
    provider.streams([raw[i : i + 1] for i in range(len(raw))])
    asked = await any_model.ask("Hi")
    assert isinstance(asked.last, Finished)
    assert asked.message["content"] == [{"type": "text", "text": "Hel"}]
