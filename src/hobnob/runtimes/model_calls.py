"""Calls a model, with retries after transient failures and fallback to the next model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from hobnob.errors import HobnobError
from hobnob.models import RETRYABLE, Failed, Finished, Model, ModelInfo, Request, TextDelta, ThinkingDelta
from hobnob.runtimes import Delta, Emit

ATTEMPTS = 3
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model to try. `open` is called on its turn, so a missing key does not affect the models before it."""

    info: ModelInfo
    open: Callable[[], Model]


async def call_model(
    choices: Sequence[ModelChoice],
    request: Request,
    emit: Emit,
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Finished | Failed:
    """Return the answer of the first model that succeeds, else the last failure. Deltas go to `emit`."""
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
            answer = await _attempt(model, model_request, emit)
            if isinstance(answer, Finished):
                return answer
            failure = Failed(answer.kind, f"{choice.info.name}: {answer.message}", answer.retry_after_s)
            if answer.kind not in RETRYABLE:
                break
            if attempt + 1 < attempts:
                await pause(_pause_s(attempt, answer.retry_after_s))
    return failure


async def _attempt(model: Model, request: Request, emit: Emit) -> Finished | Failed:
    emitted = False
    async with aclosing(model.stream(request)) as events:  # cancelling the turn ends the call at once
        async for event in events:
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


def _pause_s(attempt: int, retry_after_s: float | None) -> float:
    pause = retry_after_s if retry_after_s is not None else _FIRST_PAUSE_S * 4**attempt
    return min(pause, _MAX_PAUSE_S) * random.uniform(1.0, 1.2)  # noqa: S311 - jitter, not a secret
