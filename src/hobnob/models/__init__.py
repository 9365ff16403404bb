"""The model socket: one request in, a stream of events out.

`Model.stream` never raises. It yields deltas and then exactly one last event: `Finished` with the assistant
message as the transcript keeps it, or `Failed` with the kind of failure, which says whether trying again can
help. Leaving the iteration early ends the call to the provider.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hobnob.config.fields import Thinking

FailureKind = Literal[
    "overloaded",  # the provider says: later (429, 503, 529)
    "unreachable",  # no connection, or no answer in time
    "cut",  # the stream ended before the answer did
    "refused",  # the key, the model or the request is not accepted
    "too_long",  # the conversation does not fit the model's window
    "garbled",  # what came back is not the wire format: HTML, broken chunks
]
RETRYABLE: frozenset[FailureKind] = frozenset({"overloaded", "unreachable", "cut", "garbled"})


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model one can choose. `name` is `provider/id`; what nobody told us is None."""

    name: str
    provider: str
    id: str
    context_window: int | None = None
    max_tokens: int | None = None
    reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model call. `messages` are in the transcript format, oldest first; `model` is the provider's id."""

    model: str
    system: str
    messages: list[dict[str, Any]]
    tools: list[ToolSpec] = field(default_factory=list)
    thinking: Thinking = "off"
    max_tokens: int | None = None
    session_id: str | None = None
    session_key: str | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The whole answer: `{role, content, api, provider, model, usage, stopReason, timestamp}`.

    A tool call whose arguments were not a JSON object has `arguments: {}` and the text under `malformed`.
    """

    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    kind: FailureKind
    message: str
    retry_after_s: float | None = None


Event = TextDelta | ThinkingDelta | Finished | Failed


class Model(Protocol):
    def stream(self, request: Request) -> AsyncGenerator[Event]: ...
