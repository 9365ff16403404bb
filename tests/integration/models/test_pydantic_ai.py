"""Models through pydantic-ai, with its own offline models in the provider's place."""

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx2
import pytest
from pydantic_ai import exceptions as theirs
from pydantic_ai import messages as said
from pydantic_ai import providers
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage

from hobnob.config.tree import Settings
from hobnob.models import Failed, Finished, ModelInfo, Request, TextDelta, ThinkingDelta, ToolSpec
from hobnob.models.catalog import open_models
from hobnob.models.http import Timeouts
from hobnob.models.pydantic_ai.model import PydanticAiModel
from hobnob.models.remote import ProviderAccess

ID = "bedrock:amazon.nova-pro-v1:0"
KEY = "sk-very-secret-0123456789"
ENV_KEY = "env-very-secret-9876543210"
CLOCK = ToolSpec("clock", "Tells the time.", {"type": "object", "properties": {"zone": {"type": "string"}}})


class Provider(FunctionModel):
    """pydantic-ai's function model, which can also say why it ended, what it read and who it is."""

    def __init__(self, *pieces: Any, **marks: Any) -> None:
        super().__init__(stream_function=self._speak, profile={"supports_thinking": True})
        self._pieces, self._marks = pieces, marks
        self.messages: list[said.ModelMessage] = []
        self.info: AgentInfo | None = None
        self.left = asyncio.Event()
        self.entered = 0

    async def _speak(self, messages: list[said.ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self.messages, self.info = messages, info
        try:
            for piece in self._pieces:
                if isinstance(piece, asyncio.Event):
                    await piece.wait()
                elif isinstance(piece, Exception):
                    raise piece
                elif callable(piece):
                    yield piece()
                else:
                    yield piece
        finally:
            self.left.set()

    @asynccontextmanager
    async def request_stream(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
        async with super().request_stream(*args, **more) as stream:
            kind = type(stream)
            stream.__class__ = type("Marked", (kind,), {})
            for name, value in self._marks.items():
                target = stream.__class__ if name.startswith("provider_") else stream
                setattr(target, name, value)
            yield stream

    async def __aenter__(self) -> Any:
        self.entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.entered -= 1


def access(**more: Any) -> ProviderAccess:
    given = {"name": "aws", "api": "pydantic-ai", "base_url": "", "slots": asyncio.Semaphore(8), "key": KEY}
    return ProviderAccess(**{**given, **more})


def model(provider: Any, **more: Any) -> PydanticAiModel:
    reasoning = more.pop("reasoning", True)
    info = ModelInfo(name=f"aws/{ID}", provider="aws", id=ID, max_tokens=1000, reasoning=reasoning)
    given = {"access": access(), "env": {"AWS_SECRET_ACCESS_KEY": ENV_KEY}}
    return PydanticAiModel(info, infer=lambda name, *_: provider, **{**given, **more})


def request(*messages: dict[str, Any] | str, **more: Any) -> Request:
    given = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages or ("Hi",)]
    return Request(model=ID, messages=given, **{"system": "", **more})


async def events_of(asked: Any, *messages: Any, **more: Any) -> list[Any]:
    async with aclosing(asked.stream(request(*messages, **more))) as stream:
        return [event async for event in stream]


async def answer(provider: Any, *messages: Any, **more: Any) -> dict[str, Any]:
    last = (await events_of(model(provider), *messages, **more))[-1]
    assert isinstance(last, Finished), last
    return last.message


async def failure(*pieces: Any, **marks: Any) -> Failed:
    last = (await events_of(model(Provider(*pieces, **marks))))[-1]
    assert isinstance(last, Failed), last
    return last


def tells(name: str, text: str, call_id: str = "call_1") -> dict[int, DeltaToolCall]:
    return {0: DeltaToolCall(name, text, tool_call_id=call_id)}


async def test_text_comes_in_pieces_and_then_as_a_message() -> None:
    events = await events_of(model(Provider("Hel", "lo", finish_reason="stop")))
    assert events[:2] == [TextDelta("Hel"), TextDelta("lo")]
    message = events[-1].message
    assert message.pop("timestamp") > 0 and message.pop("usage")["output"] > 0
    assert len(events) == 3 and message == {
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello"}],
        "api": "pydantic-ai",
        "provider": "aws",
        "model": ID,
        "stopReason": "stop",
    }


async def test_thinking_comes_as_thinking_and_is_kept_with_its_signature() -> None:
    thoughts = {0: DeltaThinkingPart(content="Hm, ")}, {0: DeltaThinkingPart(content="yes", signature="sig")}
    events = await events_of(model(Provider(*thoughts, "Yes.")))
    assert events[:3] == [ThinkingDelta("Hm, "), ThinkingDelta("yes"), TextDelta("Yes.")]
    assert events[-1].message["content"] == [
        {"type": "thinking", "thinking": "Hm, yes", "thinkingSignature": "sig"},
        {"type": "text", "text": "Yes."},
    ]


async def test_a_tool_call_in_pieces_is_put_together() -> None:
    pieces = [
        tells("clock", '{"zo'),
        {0: DeltaToolCall(json_args='ne": "CE')},
        {0: DeltaToolCall(json_args='T"}')},
    ]
    message = await answer(Provider(*pieces, finish_reason="tool_call"), tools=[CLOCK])
    assert message["content"] == [
        {"type": "toolCall", "id": "call_1", "name": "clock", "arguments": {"zone": "CET"}}
    ]
    assert message["stopReason"] == "toolUse"


async def test_two_tool_calls_stay_two() -> None:
    both = {
        0: DeltaToolCall("clock", '{"zone": "CET"}', tool_call_id="a"),
        1: DeltaToolCall("clock", "{}", tool_call_id="b"),
    }
    message = await answer(Provider("Both.", both), tools=[CLOCK])
    calls = [(p["id"], p["arguments"]) for p in message["content"] if p["type"] == "toolCall"]
    assert calls == [("a", {"zone": "CET"}), ("b", {})]
    assert message["stopReason"] == "toolUse"


async def test_arguments_that_are_no_json_are_kept_as_they_are() -> None:
    (call,) = (await answer(Provider(tells("clock", '{"zone": ')), tools=[CLOCK]))["content"]
    assert call["arguments"] == {} and call["malformed"] == '{"zone": '


async def test_pydantic_ais_own_test_model_calls_the_tools_it_is_given() -> None:
    (call,) = (await answer(TestModel(), tools=[CLOCK]))["content"]
    assert call["name"] == "clock" and isinstance(call["arguments"], dict)


async def test_the_model_hears_the_whole_history() -> None:
    picture = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"dots").decode()}
    provider = Provider("Done.")
    await answer(
        provider,
        {"role": "user", "content": [{"type": "text", "text": "Look"}, picture]},
        {
            "role": "assistant",
            "api": "anthropic-messages",
            "model": "claude",
            "content": [
                {"type": "thinking", "thinking": "private", "thinkingSignature": "theirs"},
                {"type": "text", "text": "I look."},
                {"type": "toolCall", "id": "a", "name": "clock", "arguments": {"zone": "CET"}},
                {"type": "toolCall", "id": "b|c", "name": "clock", "arguments": {}},
            ],
        },
        "Hurry",
        {"role": "toolResult", "toolCallId": "a", "toolName": "clock", "content": "12:00"},
        system="Be brief.",
        tools=[CLOCK],
    )
    first, spoken, second = provider.messages
    assert isinstance(first.parts[0], said.UserPromptPart)
    text, image = first.parts[0].content
    assert text == "Look" and isinstance(image, said.BinaryContent) and image.data == b"dots"
    says, one, two = spoken.parts
    assert isinstance(says, said.TextPart) and says.content == "I look."
    assert isinstance(one, said.ToolCallPart) and (one.tool_call_id, one.args) == ("a", {"zone": "CET"})
    told, lost, hurry = second.parts
    assert isinstance(told, said.ToolReturnPart) and (told.content, told.outcome) == ("12:00", "success")
    assert isinstance(lost, said.ToolReturnPart) and lost.outcome == "failed"
    assert isinstance(two, said.ToolCallPart) and lost.tool_call_id == two.tool_call_id
    assert isinstance(hurry, said.UserPromptPart) and hurry.content == "Hurry"
    assert provider.info and provider.info.instructions == "Be brief."
    (tool,) = provider.info.function_tools
    assert (tool.name, tool.description) == ("clock", "Tells the time.")
    assert tool.parameters_json_schema["properties"] == {"zone": {"type": "string"}}


async def test_what_a_model_said_comes_back_to_it_as_it_said_it() -> None:
    thought = {7: DeltaThinkingPart(content="Hm", signature="sig")}
    message = await answer(Provider(thought, tells("clock", '{"zone": "CET"}')), tools=[CLOCK])
    again = Provider("12:00")
    result = {
        "role": "toolResult",
        "toolCallId": "call_1",
        "toolName": "clock",
        "content": "noon",
        "isError": True,
    }
    await answer(again, "Hi", message, result, thinking="high")
    (spoken,) = (m for m in again.messages if isinstance(m, said.ModelResponse))
    thinking, call = spoken.parts
    assert isinstance(thinking, said.ThinkingPart)
    assert (thinking.content, thinking.signature, thinking.provider_name) == ("Hm", "sig", "function")
    assert isinstance(call, said.ToolCallPart) and call.args == {"zone": "CET"}
    (heard,) = again.messages[-1].parts
    assert isinstance(heard, said.ToolReturnPart) and (heard.content, heard.outcome) == ("noon", "failed")


async def test_what_a_provider_keeps_next_to_a_call_comes_back_with_it() -> None:
    class Signs(Provider):
        @asynccontextmanager
        async def request_stream(self, *args: Any, **more: Any) -> AsyncIterator[Any]:
            async with super().request_stream(*args, **more) as stream:
                whole = stream.get

                def get() -> said.ModelResponse:
                    response = whole()
                    part = response.parts[0]
                    part.provider_details, part.provider_name = {"thought_signature": "s"}, "function"
                    return response

                stream.get = get  # type: ignore[method-assign]
                yield stream

    message = await answer(Signs(tells("clock", "{}")), tools=[CLOCK])
    again, other = Provider("ok"), Provider("ok")
    await answer(again, "Hi", message)
    await answer(other, "Hi", {**message, "model": "another"})
    (mine,) = again.messages[1].parts
    (foreign,) = other.messages[1].parts
    assert mine.provider_details == {"thought_signature": "s"} and mine.provider_name == "function"
    assert foreign.provider_details is None


async def test_a_conversation_cut_off_at_an_answer_still_begins_with_a_user() -> None:
    provider = Provider("ok")
    before = {"role": "assistant", "content": [{"type": "text", "text": "Earlier"}]}
    await answer(provider, before, before, "Hi")
    kinds = [type(m) for m in provider.messages]
    assert kinds == [said.ModelRequest, said.ModelResponse, said.ModelRequest]


@pytest.mark.parametrize(
    ("reasoning", "level", "sent"), [(True, "high", "high"), (True, "off", None), (False, "high", None)]
)
async def test_thinking_and_the_limit_are_sent(reasoning: bool, level: Any, sent: str | None) -> None:
    provider = Provider("ok")
    await events_of(model(provider, reasoning=reasoning), thinking=level, max_tokens=5000)
    assert provider.info and provider.info.model_settings
    assert provider.info.model_request_parameters.thinking == sent
    assert provider.info.model_settings["max_tokens"] == 1000
    assert provider.info.model_settings["max_retries"] == 0


async def test_no_thinking_is_asked_for_within_another_models_tool_loop() -> None:
    call = {"type": "toolCall", "id": "a", "name": "clock", "arguments": {}}
    result = {"role": "toolResult", "toolCallId": "a", "toolName": "clock", "content": "12:00"}
    for writer, level in ((ID, "high"), ("another", None)):
        provider = Provider("ok")
        spoken = {"role": "assistant", "api": "pydantic-ai", "model": writer, "content": [call]}
        await answer(provider, "Hi", spoken, result, thinking="high")
        assert provider.info and provider.info.model_request_parameters.thinking == level


async def test_usage_is_counted_once_and_priced_by_the_provider_that_answered() -> None:
    usage = RequestUsage(input_tokens=1000, output_tokens=100, cache_read_tokens=300, cache_write_tokens=200)
    url = "https://bedrock-runtime.us-east-1.amazonaws.com"
    who = {"provider_name": "bedrock", "provider_url": url, "_model_name": "amazon.nova-pro-v1:0"}
    provider = Provider("Hi", finish_reason="stop", _usage=usage, **who)
    told = (await answer(provider))["usage"]
    cost = told.pop("cost")
    output = told.pop("output")
    assert output >= 100  # the function model adds its own guess
    assert told == {"input": 500, "cacheRead": 300, "cacheWrite": 200, "totalTokens": 1000 + output}
    assert cost["total"] > cost["input"] > 0


async def test_a_model_without_a_known_price_has_no_cost() -> None:
    assert "cost" not in (await answer(Provider("Hi")))["usage"]


async def test_an_answer_at_its_limit_says_so() -> None:
    assert (await answer(Provider("Hel", finish_reason="length")))["stopReason"] == "length"


def status(code: int, body: object = None, **more: Any) -> theirs.ModelHTTPError:
    return theirs.ModelHTTPError(code, "m", body, **more)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (status(429), "overloaded"),
        (status(503), "overloaded"),
        (status(529), "overloaded"),
        (status(400, {"message": "no such parameter"}), "refused"),
        (status(401), "refused"),
        (status(403), "refused"),
        (status(404), "refused"),
        (status(502), "unreachable"),
        (status(400, {"message": "prompt is too long: 2 tokens > 1 maximum"}), "too_long"),
        (status(400, b'{"error": "input exceeds the context window"}'), "too_long"),
        (
            theirs.ModelHTTPError.for_category(
                theirs.ModelQuotaExceededError, status_code=429, model_name="m", body="empty account"
            ),
            "refused",
        ),
        (theirs.ModelContextWindowExceededError("m", "too much"), "too_long"),
        (theirs.ModelRateLimitError("m", "slow down"), "overloaded"),
        (theirs.ModelConnectionError("m", "refused", phase="connect"), "unreachable"),
        (theirs.ModelTimeoutError("m", "slow"), "unreachable"),
        (theirs.ModelAPIError("m", "cannot be decoded"), "garbled"),
        (ConnectionResetError("reset"), "unreachable"),
        (httpx2.ConnectError("no route"), "unreachable"),
        (type("NoCredentials", (type("BotoCoreError", (Exception,), {}),), {})("Who are you?"), "refused"),
        (theirs.ContentFilterError("not that"), "refused"),
        (theirs.UserError("set FOO"), "refused"),
        (theirs.UnexpectedModelBehavior("what?", "<html>"), "garbled"),
        (ZeroDivisionError("a bug in an SDK"), "garbled"),
    ],
    ids=lambda x: x if isinstance(x, str) else f"{type(x).__name__}-{getattr(x, 'status_code', '')}",
)
async def test_whatever_goes_wrong_is_a_failure_of_the_right_kind(error: Exception, kind: str) -> None:
    failed = await failure(error)
    assert failed.kind == kind
    assert failed.message.startswith("aws: ")


async def test_amazons_way_to_put_an_error_is_understood() -> None:
    said_by_aws = {"Code": "ValidationException", "Message": "Input is too long for requested model."}
    failed = await failure(status(400, {"Error": said_by_aws, "ResponseMetadata": {"HTTPStatusCode": 400}}))
    assert failed == Failed("too_long", "aws: answered 400: Input is too long for requested model.")


async def test_a_real_provider_that_ends_without_a_reason_is_cut() -> None:
    class Sdk(providers.Provider[None]):
        name = "some"  # type: ignore[assignment]
        base_url = "http://127.0.0.1:1"  # type: ignore[assignment]
        client = None

    class Online(Provider):
        provider = Sdk()  # type: ignore[assignment]

    assert (await events_of(model(Online("Hel"))))[-1].kind == "cut"
    assert isinstance((await events_of(model(Online("Hel", finish_reason="stop"))))[-1], Finished)


async def test_a_provider_that_says_when_to_come_back_is_believed() -> None:
    assert (await failure(status(429, headers={"Retry-After": "7"}))).retry_after_s == 7


@pytest.mark.parametrize(
    "error", [theirs.ModelConnectionError("m", "dropped", phase="read"), httpx2.ReadError("dropped")]
)
async def test_a_connection_lost_in_the_middle_is_cut(error: Exception) -> None:
    events = await events_of(model(Provider("Hel", error)))
    assert events[0] == TextDelta("Hel")
    assert events[-1].kind == "cut" and len(events) == 2


@pytest.mark.parametrize(
    ("marks", "kind"),
    [
        ({"state": "incomplete"}, "cut"),
        ({"finish_reason": "content_filter"}, "refused"),
        ({"finish_reason": "error"}, "garbled"),
    ],
)
async def test_an_answer_that_did_not_end_well_is_a_failure(marks: Any, kind: str) -> None:
    assert (await failure("Hel", **marks)).kind == kind


@pytest.mark.parametrize(("pieces", "kind"), [([], "unreachable"), (["Hel"], "cut")])
async def test_a_provider_that_falls_silent_is_given_up(pieces: list[str], kind: str) -> None:
    patient = model(Provider(*pieces, asyncio.Event()), timeouts=Timeouts(first_byte_s=0.2))
    assert (await events_of(patient))[-1].kind == kind


async def test_a_transcript_that_cannot_be_read_is_refused() -> None:
    broken = {"role": "user", "content": [{"type": "image", "mimeType": "image/png", "data": "x"}]}
    (failed,) = await events_of(model(Provider("Hi")), broken)
    assert failed.kind == "refused"


async def test_no_key_is_shown() -> None:
    failed = await failure(status(401, {"message": f"bad key {KEY} {ENV_KEY} {'x' * 450} {KEY}"}))
    assert KEY[:12] not in failed.message and ENV_KEY not in failed.message and "***" in failed.message
    own = model(Provider("Hi"))
    await events_of(own)
    assert KEY not in f"{own!r}{vars(own)['_access']!r}"


async def test_leaving_early_ends_the_call_and_gives_its_place_to_the_next() -> None:
    slots = asyncio.Semaphore(1)
    provider = Provider("Hel", asyncio.Event())
    async with aclosing(model(provider, access=access(slots=slots)).stream(request())) as stream:
        assert await anext(stream) == TextDelta("Hel")
        assert slots.locked() and not provider.left.is_set()
    assert provider.left.is_set() and not slots.locked()


async def test_a_cancelled_call_is_cancelled_and_leaves_nothing_behind() -> None:
    slots = asyncio.Semaphore(1)
    provider = Provider("Hel", asyncio.Event())
    begun = asyncio.Event()

    async def ask() -> None:
        async with aclosing(model(provider, access=access(slots=slots)).stream(request())) as stream:
            async for _ in stream:
                begun.set()

    task = asyncio.create_task(ask())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert provider.left.is_set() and not slots.locked()


async def test_a_provider_gets_at_most_its_number_of_calls_at_a_time() -> None:
    shared = access(slots=asyncio.Semaphore(1))
    gate = asyncio.Event()
    first = Provider("a", gate)
    second = Provider(lambda: f"first is over: {first.left.is_set()}")

    async def next_in_line() -> list[Any]:
        gate.set()  # the first can go on, but not before this task has run into its limit
        return await events_of(model(second, access=shared))

    async with (
        asyncio.TaskGroup() as tasks,
        aclosing(model(first, access=shared).stream(request())) as stream,
    ):
        await anext(stream)
        waiting = tasks.create_task(next_in_line())
        assert isinstance([event async for event in stream][-1], Finished)
    assert waiting.result()[0] == TextDelta("first is over: True")


async def test_the_model_is_made_once_and_closed_in_the_end() -> None:
    made: list[str] = []
    provider = Provider("Hi")

    def infer(name: str, *_: Callable[..., Any]) -> Provider:
        made.append(name)
        return provider

    info = ModelInfo(name=f"aws/{ID}", provider="aws", id=ID)
    asked = PydanticAiModel(info, access(), env={}, infer=infer)
    await asyncio.gather(events_of(asked), events_of(asked))
    assert made == [ID] and provider.entered == 1
    await asked.close()
    assert provider.entered == 0
    (failed,) = await events_of(asked)
    assert failed.kind == "unreachable" and made == [ID]


async def test_closing_the_models_closes_these_too() -> None:
    settings = Settings.model_validate({"models": {"providers": {"any": {"api": "pydantic-ai"}}}})
    async with open_models(settings, {}) as models:
        asked = models.model("any/test")
        assert isinstance((await events_of(asked))[-1], Finished)
    assert (await events_of(asked))[-1].kind == "unreachable"


async def test_a_provider_of_that_api_needs_no_address_and_no_key(catalog: Any) -> None:
    models = await catalog({"mistral": {"api": "pydantic-ai", "models": [{"id": "test"}]}})
    (*_, last) = await events_of(models.model("mistral/test"))
    assert isinstance(last, Finished)
    assert (last.message["provider"], last.message["model"]) == ("mistral", "test")
    assert "mistral/test" in [info.name for info in models.known()]


async def test_a_provider_of_that_api_without_listed_models_takes_any_id(catalog: Any) -> None:
    models = await catalog({"any": {"api": "pydantic-ai"}})
    assert models.info(f"any/{ID}").id == ID
    (failed,) = await events_of(models.model("any/nobody:x"))
    assert failed.kind == "refused" and "nobody:x" in failed.message


@pytest.mark.parametrize("given", [{}, {"apiKey": KEY, "baseUrl": "http://127.0.0.1:1"}])
async def test_an_sdk_that_is_not_installed_is_named(catalog: Any, given: Any) -> None:
    models = await catalog({"co": {"api": "pydantic-ai", **given}})
    (failed,) = await events_of(models.model("co/cohere:command-r"))
    assert failed.kind == "refused" and "pydantic-ai-slim[cohere]" in failed.message


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    return done.stdout.strip()


def test_the_catalog_does_not_import_pydantic_ai() -> None:
    names = "m == 'pydantic_ai' or m.startswith('pydantic_ai.')"
    assert python(f"import sys, hobnob.models.catalog; print(any({names} for m in sys.modules))") == "False"


def test_without_the_package_the_call_says_what_to_install() -> None:
    code = """
import asyncio, sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pydantic_ai":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from hobnob.config.tree import Settings
from hobnob.models import Request
from hobnob.models.catalog import open_models

async def main():
    settings = Settings.model_validate({"models": {"providers": {"aws": {"api": "pydantic-ai"}}}})
    async with open_models(settings, {}) as models:
        request = Request(model="test", system="", messages=[{"role": "user", "content": "Hi"}])
        for _ in range(2):
            print([event async for event in models.model("aws/test").stream(request)])

asyncio.run(main())
"""
    for line in python(code).splitlines():
        assert line.startswith("[Failed(kind='refused'") and "pip install 'hobnob[pydantic-ai]'" in line
