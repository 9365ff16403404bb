"""Calls a model, with retries after transient failures and fallback to the next model."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from hobnob import redact, tracing
from hobnob.errors import HobnobError
from hobnob.models import RETRYABLE, Failed, Finished, Model, ModelInfo, Request, TextDelta, ThinkingDelta
from hobnob.records import Struct, replace
from hobnob.runtimes import Delta, Emit
from hobnob.runtimes.meter import Meter
from hobnob.types import text_of

ATTEMPTS = 3
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_TEXT_CHARS = 4_000  # of a message in a trace


class ModelChoice(Struct, frozen=True):
    """A model to try. `open` is called on its turn, so a missing key does not affect the models before it."""

    info: ModelInfo
    open: Callable[[], Model]


async def call_model(
    choices: Sequence[ModelChoice],
    request: Request,
    emit: Emit,
    *,
    meter: Meter | None = None,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Finished | Failed:
    """Return the answer of the first model that succeeds, else the last failure. Deltas go to `emit`.

    Raises BudgetExceeded if `meter` finds that a budget does not allow the call.
    """
    failure = Failed("refused", "no model is configured")
    for choice in choices:
        limit = request.max_tokens or choice.info.max_tokens
        model_request = replace(request, model=choice.info.id, max_tokens=limit)
        attempts = ATTEMPTS if choice is choices[-1] else 1  # a fallback is faster than a retry
        try:
            model = choice.open()
        except HobnobError as problem:
            failure = Failed("refused", " ".join(filter(None, (problem.message, problem.fix))))
            continue
        for attempt in range(attempts):
            with tracing.span(f"chat {choice.info.id}") as span:
                answer = await _metered(meter, model, model_request, emit, span)
                if span is not None:
                    _describe(span, choice.info, model_request, answer)
            if isinstance(answer, Finished):
                return answer
            failure = Failed(answer.kind, f"{choice.info.name}: {answer.message}", answer.retry_after_s)
            if answer.kind not in RETRYABLE:
                break
            if attempt + 1 < attempts:
                await pause(_pause_s(attempt, answer.retry_after_s))
    return failure


async def _metered(
    meter: Meter | None, model: Model, request: Request, emit: Emit, span: tracing.Span | None
) -> Finished | Failed:
    """One call, within the budgets that cover it."""
    if meter is None:
        return await _attempt(model, request, emit, span)
    async with meter.call(model, request) as limited:
        answer = await _attempt(model, limited, emit, span)
    if isinstance(answer, Failed):
        await meter.failed(answer)
    return answer


async def _attempt(
    model: Model, request: Request, emit: Emit, span: tracing.Span | None
) -> Finished | Failed:
    emitted = False
    async with aclosing(model.stream(request)) as events:  # cancelling the turn ends the call at once
        async for event in events:
            if span is not None and tracing.FIRST_CHUNK not in span.attributes:
                span.attributes[tracing.FIRST_CHUNK] = (time.time_ns() - span.start_ns) / 1e9
            match event:
                case TextDelta(text):
                    await emit(Delta(text))
                    emitted = True
                case ThinkingDelta(text):
                    await emit(Delta(text, thinking=True))
                    emitted = True
                case Failed():
                    if emitted:
                        await emit(Delta("", restart=True))
                    return event
                case Finished():
                    return event
    return Failed("cut", "the stream of the model ended without a last event")


def _describe(span: tracing.Span, info: ModelInfo, request: Request, answer: Finished | Failed) -> None:
    """Set the attributes of a model call."""
    message = answer.message if isinstance(answer, Finished) else {}
    usage = message.get("usage") or {}
    span.error = answer.kind if isinstance(answer, Failed) else None
    span.attributes |= {
        tracing.OPERATION: "chat",
        tracing.PROVIDER: info.provider,
        tracing.REQUEST_MODEL: info.id,
        tracing.RESPONSE_MODEL: message.get("model"),
        tracing.CONVERSATION: request.session_id,
        tracing.FINISH_REASONS: [str(message["stopReason"])] if message.get("stopReason") else None,
        tracing.INPUT_TOKENS: usage.get("input"),
        tracing.OUTPUT_TOKENS: usage.get("output"),
        tracing.CACHE_READ: usage.get("cacheRead"),
        tracing.CACHE_WRITE: usage.get("cacheWrite"),
    }
    if tracing.records_text():
        said = text_of(request.messages[-1]) if request.messages else ""
        span.attributes[tracing.INPUT_MESSAGES] = redact.excerpt(said, _TEXT_CHARS)
        span.attributes[tracing.OUTPUT_MESSAGES] = redact.excerpt(text_of(message), _TEXT_CHARS)


def _pause_s(attempt: int, retry_after_s: float | None) -> float:
    pause = retry_after_s if retry_after_s is not None else _FIRST_PAUSE_S * 4**attempt
    return min(pause, _MAX_PAUSE_S) * random.uniform(1.0, 1.2)  # noqa: S311 - jitter, not a secret
