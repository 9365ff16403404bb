"""Asking a model: again after trouble that passes, the next one when one cannot answer."""

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
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that may be asked. It is opened when it is: one without a key spoils none before it."""

    info: ModelInfo
    open: Callable[[], Model]


async def call_model(
    choices: Sequence[ModelChoice],
    request: Request,
    emit: Emit,
    *,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Finished | Failed:
    """The answer of the first model that gives one. `emit` hears the pieces."""
    failure = Failed("refused", "no model is configured")
    for choice in choices:
        limit = request.max_tokens or choice.info.max_tokens
        asked = replace(request, model=choice.info.id, max_tokens=limit)
        tries = ATTEMPTS if choice is choices[-1] else 1  # somebody else is there: ask them rather than wait
        try:
            model = choice.open()
        except HobnobError as problem:
            failure = Failed("refused", " ".join(filter(None, (problem.message, problem.fix))))
            continue
        for attempt in range(tries):
            answer = await _once(model, asked, emit)
            if isinstance(answer, Finished):
                return answer
            failure = Failed(answer.kind, f"{choice.info.name}: {answer.message}", answer.retry_after_s)
            if answer.kind not in RETRYABLE:
                break
            if attempt + 1 < tries:
                await pause(_pause_s(attempt, answer.retry_after_s))
    return failure


async def _once(model: Model, request: Request, emit: Emit) -> Finished | Failed:
    told = False
    async with aclosing(model.stream(request)) as events:  # a turn that is stopped ends its call at once
        async for event in events:
            match event:
                case TextDelta(text):
                    await emit(Delta(text))
                    told = True
                case ThinkingDelta(text):
                    await emit(Delta(text, thinking=True))
                    told = True
                case Failed():
                    if told:
                        await emit(Delta("", restart=True))
                    return event
                case Finished():
                    return event
    return Failed("cut", "the model's stream ended without an answer")


def _pause_s(attempt: int, asked_for: float | None) -> float:
    pause = asked_for if asked_for is not None else _FIRST_PAUSE_S * 4**attempt
    return min(pause, _LONGEST_PAUSE_S) * random.uniform(1.0, 1.2)  # noqa: S311 - spreads retries, no secret
