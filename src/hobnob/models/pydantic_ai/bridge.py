"""Calls through pydantic-ai. Only `models.pydantic_ai` imports this, and only when it has to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import orjson
from pydantic_ai import exceptions as theirs
from pydantic_ai import messages as say
from pydantic_ai.direct import model_request_stream
from pydantic_ai.models import (
    Model,
    ModelRequestParameters,
    StreamedResponse,
    infer_model,
    parse_model_id,
)
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from hobnob.models import FailureKind, Request, TextDelta, ThinkingDelta, failures, history
from hobnob.models.answer import Answer
from hobnob.models.failures import CallFailed
from hobnob.models.pydantic_ai import API
from hobnob.models.pydantic_ai.messages import answer_of, messages_of

_MISFITS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
# SDKs' own errors where pydantic-ai lets them through. By name: most of these packages are not installed.
_NO_CONNECTION = {"TransportError", "HTTPClientError", "ClientConnectionError", "APIConnectionError"}
_NOT_SET_UP = {"BotoCoreError"}  # no credentials, no region, ...
_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (theirs.ModelContextWindowExceededError, "too_long"),
    (theirs.ModelQuotaExceededError, "refused"),  # waiting does not fill an account
    (theirs.ModelRequestRejectedError, "refused"),
    (theirs.ModelRateLimitError, "overloaded"),
    (theirs.ModelUnavailableError, "overloaded"),
    (theirs.ModelServerError, "overloaded"),
    (theirs.ModelConnectionError, "unreachable"),
    (theirs.ModelRequestTimeout, "unreachable"),
    (theirs.ModelAPIError, "garbled"),
    (theirs.ContentFilterError, "refused"),
    (theirs.UnexpectedModelBehavior, "garbled"),
    (theirs.UserError, "refused"),
    (ImportError, "refused"),
    (OSError, "unreachable"),
)


def import_provider(name: str) -> None:
    """Import the SDK of a model's provider. What is wrong with it is said when the model is made."""
    with suppress(Exception):
        infer_provider_class(parse_model_id(name)[0] or "")


def made(name: str, key: str, base_url: str, infer: Callable[..., Any] | None) -> Model:
    """The model of that name. Without a key or an address of ours, its SDK looks for them by itself."""
    infer = infer or infer_model
    given = {name: value for name, value in (("api_key", key), ("base_url", base_url)) if value}
    try:
        model: Model = infer(name, partial(_provider, given)) if given else infer(name)
    except Exception as error:
        # The hint at the end is about their test model.
        said = str(error).partition(" To try Pydantic AI without")[0]
        raise CallFailed("refused", f"cannot be set up: {said}") from error
    return model


def _provider(given: dict[str, str], name: str) -> Provider[Any]:
    if name.startswith("gateway/"):
        # Not the class of the provider behind it: that would send the gateway's key there.
        from pydantic_ai.providers.gateway import gateway_provider

        return gateway_provider(name.removeprefix("gateway/"), **given)
    return infer_provider_class(name)(**given)


class Asked:
    """One call: its deltas, and after them the response."""

    def __init__(self, model: Model, request: Request, patience_s: float) -> None:
        self.response = say.ModelResponse(parts=[], state="incomplete")
        self._patience_s = patience_s
        self._offline = model.provider is None  # such models end without giving a reason
        try:
            self._call = model_request_stream(
                model,
                messages_of(request, model.system),
                model_settings=_settings(request, model),
                model_request_parameters=_parameters(request),
                instrument=False,
            )
        except (*_MISFITS, theirs.UserError) as error:
            raise CallFailed("refused", f"the transcript cannot be sent: {error!r}") from error

    async def deltas(self) -> AsyncGenerator[TextDelta | ThinkingDelta]:
        began = False
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._patience_s):
                    stream = await stack.enter_async_context(self._call)
                stack.push_async_callback(_end, stream)
                events = aiter(stream)
                while event := await self._next(events):
                    began = True
                    if delta := _delta(event):
                        yield delta
                self.response = stream.get()
        except Exception as error:
            raise failure(error, began) from error

    async def _next(self, events: AsyncIterator[Any]) -> Any:
        async with asyncio.timeout(self._patience_s):
            return await anext(events, None)

    def answer(self) -> Answer:
        """The response, once it is whole."""
        reason = self.response.finish_reason
        if reason == "content_filter":
            raise CallFailed("refused", "withheld the answer (content filter)")
        if reason == "error":
            raise CallFailed("garbled", "ended the answer with an error")
        if self.response.state != "complete" or not (reason or self._offline):
            raise CallFailed("cut", "ended the stream before the answer")
        return answer_of(self.response)


async def _end(stream: StreamedResponse) -> None:
    """Hang up when we leave early; not every SDK does so by itself. After the end, this does nothing."""
    with suppress(Exception):
        await stream.cancel()


def _delta(event: Any) -> TextDelta | ThinkingDelta | None:
    match event:
        case say.PartStartEvent(part=say.TextPart(content=text)) if text:
            return TextDelta(text)
        case say.PartStartEvent(part=say.ThinkingPart(content=text)) if text:
            return ThinkingDelta(text)
        case say.PartDeltaEvent(delta=say.TextPartDelta(content_delta=text)) if text:
            return TextDelta(text)
        case say.PartDeltaEvent(delta=say.ThinkingPartDelta(content_delta=text)) if text:
            return ThinkingDelta(text)
    return None


def _settings(request: Request, model: Model) -> ModelSettings:
    settings = ModelSettings()
    if request.max_tokens:
        settings["max_tokens"] = request.max_tokens
    answers = [m for m in request.messages if m.get("role") == "assistant"]
    in_a_loop = bool(answers) and request.messages[-1].get("role") == "toolResult"
    # Claude wants the tool loop it is in to begin with thinking it signed; another model's has none.
    if request.thinking != "off" and not (
        in_a_loop and not history.written_by(answers[-1], API, request.model)
    ):
        settings["thinking"] = request.thinking
    if "max_retries" not in model.unsupported_settings:
        settings["max_retries"] = 0  # whoever asked decides about trying again
    return settings


def _parameters(request: Request) -> ModelRequestParameters:
    tools = [
        ToolDefinition(name=t.name, description=t.description, parameters_json_schema=t.parameters)
        for t in request.tools
    ]
    system = [say.InstructionPart(request.system)] if request.system else None
    return ModelRequestParameters(function_tools=tools, instruction_parts=system)


def failure(error: Exception, began: bool) -> CallFailed:
    """The failure that an exception is; `began` says that some of the answer had come."""
    if isinstance(error, CallFailed):
        return error
    kind = next((kind for known, kind in _KINDS if isinstance(error, known)), None)
    if kind is None:
        names = {ancestor.__name__ for ancestor in type(error).__mro__}
        refused: FailureKind = "refused" if names & _NOT_SET_UP else "garbled"
        kind = "unreachable" if names & _NO_CONNECTION else refused
    if isinstance(error, theirs.ModelHTTPError):
        return _answered(error, kind)
    if isinstance(error, TimeoutError):
        return CallFailed("cut" if began else "unreachable", "was silent for too long")
    if kind == "unreachable" and began:
        kind = "cut"
    return CallFailed(kind, str(error) or repr(error), getattr(error, "retry_after", None))


def _answered(error: theirs.ModelHTTPError, kind: FailureKind) -> CallFailed:
    body = error.body.encode() if isinstance(error.body, str) else error.body
    if isinstance(body, dict) and isinstance(aws := body.get("Error"), dict):
        body = {"message": aws.get("Message"), "type": aws.get("Code")}
    if not isinstance(body, bytes):
        body = orjson.dumps(body, default=str) if body else b""
    read = failures.from_answer(error.status_code, {}, body)
    # Without a category of theirs, the status decides.
    if type(error) is theirs.ModelHTTPError or read.kind == "too_long":
        kind = read.kind
    wait = error.retry_after if error.retry_after is not None else read.retry_after_s
    return CallFailed(kind, read.message, wait if kind in ("overloaded", "unreachable") else None)
