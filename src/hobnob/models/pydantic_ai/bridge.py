"""Model calls through pydantic-ai. Imported on first use, by `model`: pydantic-ai is optional."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import orjson
from pydantic_ai import exceptions as pai_errors
from pydantic_ai import messages as pai
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

_SHAPE_ERRORS = (AttributeError, IndexError, KeyError, TypeError, ValueError)
# Errors of SDKs that pydantic-ai does not wrap, by class name: most SDKs are not installed.
_NO_CONNECTION = {"TransportError", "HTTPClientError", "ClientConnectionError", "APIConnectionError"}
_MISCONFIGURED = {"BotoCoreError"}  # no credentials, no region, ...
_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (pai_errors.ModelContextWindowExceededError, "too_long"),
    (pai_errors.ModelQuotaExceededError, "refused"),  # a retry does not refill the account
    (pai_errors.ModelRequestRejectedError, "refused"),
    (pai_errors.ModelRateLimitError, "overloaded"),
    (pai_errors.ModelUnavailableError, "overloaded"),
    (pai_errors.ModelServerError, "overloaded"),
    (pai_errors.ModelConnectionError, "unreachable"),
    (pai_errors.ModelRequestTimeout, "unreachable"),
    (pai_errors.ModelAPIError, "garbled"),
    (pai_errors.ContentFilterError, "refused"),
    (pai_errors.UnexpectedModelBehavior, "garbled"),
    (pai_errors.UserError, "refused"),
    (ImportError, "refused"),
    (OSError, "unreachable"),
)


def import_provider(name: str) -> None:
    """Import the SDK of a model's provider. Errors are ignored here: `create_model` reports them."""
    with suppress(Exception):
        infer_provider_class(parse_model_id(name)[0] or "")


def create_model(name: str, key: str, base_url: str, infer: Callable[..., Any] | None) -> Model:
    """Create a pydantic-ai model. Without a configured key or address, its SDK uses its own sources."""
    infer = infer or infer_model
    access = {name: value for name, value in (("api_key", key), ("base_url", base_url)) if value}
    try:
        model: Model = infer(name, partial(_provider, access)) if access else infer(name)
    except Exception as error:
        # The message ends with a hint about pydantic-ai's test model, which does not apply here.
        reason = str(error).partition(" To try Pydantic AI without")[0]
        raise CallFailed("refused", f"cannot be set up: {reason}") from error
    return model


def _provider(access: dict[str, str], name: str) -> Provider[Any]:
    if name.startswith("gateway/"):
        # Not the class of the upstream provider: that would send the key of pydantic-ai's gateway there.
        from pydantic_ai.providers.gateway import gateway_provider

        return gateway_provider(name.removeprefix("gateway/"), **access)
    return infer_provider_class(name)(**access)


class StreamedCall:
    """One model call: iterate `deltas`, then read `answer`."""

    def __init__(self, model: Model, request: Request, timeout_s: float) -> None:
        self.response = pai.ModelResponse(parts=[], state="incomplete")
        self._timeout_s = timeout_s
        self._offline = model.provider is None  # pydantic-ai's test models send no finish reason
        try:
            self._call = model_request_stream(
                model,
                messages_of(request, model.system),
                model_settings=_settings(request, model),
                model_request_parameters=_parameters(request),
                instrument=False,
            )
        except (*_SHAPE_ERRORS, pai_errors.UserError) as error:
            raise CallFailed("refused", f"the transcript does not fit {API}: {error!r}") from error

    async def deltas(self) -> AsyncGenerator[TextDelta | ThinkingDelta]:
        began = False
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._timeout_s):
                    stream = await stack.enter_async_context(self._call)
                stack.push_async_callback(_cancel, stream)
                events = aiter(stream)
                while event := await self._next(events):
                    began = True
                    if delta := _delta(event):
                        yield delta
                self.response = stream.get()
        except Exception as error:
            raise _failure(error, began) from error

    async def _next(self, events: AsyncIterator[Any]) -> Any:
        async with asyncio.timeout(self._timeout_s):
            return await anext(events, None)

    def answer(self) -> Answer:
        """The complete answer, after `deltas` is exhausted. Raises CallFailed."""
        reason = self.response.finish_reason
        if reason == "content_filter":
            raise CallFailed("refused", "blocked the answer (content filter)")
        if reason == "error":
            raise CallFailed("garbled", "ended the answer with an error")
        if self.response.state != "complete" or not (reason or self._offline):
            raise CallFailed("cut", "ended the stream before the answer was complete")
        return answer_of(self.response)


async def _cancel(stream: StreamedResponse) -> None:
    """Close the connection when the caller leaves early: not every SDK does. No effect after the end."""
    with suppress(Exception):
        await stream.cancel()


def _delta(event: Any) -> TextDelta | ThinkingDelta | None:
    match event:
        case pai.PartStartEvent(part=pai.TextPart(content=text)) if text:
            return TextDelta(text)
        case pai.PartStartEvent(part=pai.ThinkingPart(content=text)) if text:
            return ThinkingDelta(text)
        case pai.PartDeltaEvent(delta=pai.TextPartDelta(content_delta=text)) if text:
            return TextDelta(text)
        case pai.PartDeltaEvent(delta=pai.ThinkingPartDelta(content_delta=text)) if text:
            return ThinkingDelta(text)
    return None


def _settings(request: Request, model: Model) -> ModelSettings:
    settings = ModelSettings()
    if request.max_tokens:
        settings["max_tokens"] = request.max_tokens
    answers = [m for m in request.messages if m.get("role") == "assistant"]
    in_tool_loop = bool(answers) and request.messages[-1].get("role") == "toolResult"
    # With thinking on, Claude requires the current tool loop to begin with signed thinking. The answer of
    # another model has none, so thinking stays off until its tool loop ends.
    if request.thinking != "off" and not (
        in_tool_loop and not history.written_by(answers[-1], API, request.model)
    ):
        settings["thinking"] = request.thinking
    if "max_retries" not in model.unsupported_settings:
        settings["max_retries"] = 0  # retries are up to the caller
    return settings


def _parameters(request: Request) -> ModelRequestParameters:
    tools = [
        ToolDefinition(name=t.name, description=t.description, parameters_json_schema=t.parameters)
        for t in request.tools
    ]
    system = [pai.InstructionPart(request.system)] if request.system else None
    return ModelRequestParameters(function_tools=tools, instruction_parts=system)


def _failure(error: Exception, began: bool) -> CallFailed:
    """Map an exception to a failure; `began`: a part of the answer had arrived."""
    if isinstance(error, CallFailed):
        return error
    kind = next((kind for known, kind in _KINDS if isinstance(error, known)), None)
    if kind is None:
        names = {ancestor.__name__ for ancestor in type(error).__mro__}
        other: FailureKind = "refused" if names & _MISCONFIGURED else "garbled"
        kind = "unreachable" if names & _NO_CONNECTION else other
    if isinstance(error, pai_errors.ModelHTTPError):
        return _http_failure(error, kind)
    if isinstance(error, TimeoutError):
        return CallFailed("cut" if began else "unreachable", "sent nothing before the timeout")
    if kind == "unreachable" and began:
        kind = "cut"
    text = str(error) or repr(error)
    received = text.encode("utf-8", "replace")
    return CallFailed(kind, text, getattr(error, "retry_after", None), received=received)


def _http_failure(error: pai_errors.ModelHTTPError, kind: FailureKind) -> CallFailed:
    body = error.body.encode() if isinstance(error.body, str) else error.body
    if isinstance(body, dict) and isinstance(aws := body.get("Error"), dict):
        body = {"message": aws.get("Message"), "type": aws.get("Code")}
    if not isinstance(body, bytes):
        body = orjson.dumps(body, default=str) if body else b""
    parsed = failures.from_response(error.status_code, {}, body)
    # Without a category from pydantic-ai, the status decides.
    if type(error) is pai_errors.ModelHTTPError or parsed.kind == "too_long":
        kind = parsed.kind
    wait = error.retry_after if error.retry_after is not None else parsed.retry_after_s
    wait = wait if kind in ("overloaded", "unreachable") else None
    return CallFailed(kind, parsed.message, wait, received=body)
