"""The model interface: `Model.stream` takes a `Request` and yields events.

It never raises. It yields deltas, then exactly one last event: `Finished` with the assistant message in the
transcript format, or `Failed` with the kind of failure, which decides whether a retry can help. Closing the
generator early ends the call to the provider.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import orjson

from hobnob.config.fields import Thinking
from hobnob.records import Struct

FailureKind = Literal[
    "overloaded",  # busy or rate limited: retry later (429, 503, 529)
    "unreachable",  # no connection, or a timeout before the answer began
    "cut",  # the stream ended before the answer was complete
    "refused",  # the provider rejected the key, the model or the request
    "too_long",  # the conversation exceeds the model's context window
    "garbled",  # the response is not in the wire format: HTML, invalid chunks
]
RETRYABLE: frozenset[FailureKind] = frozenset({"overloaded", "unreachable", "cut", "garbled"})


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool definition as models receive it. `wire` keeps it encoded, by wire format."""

    name: str
    description: str
    parameters: dict[str, Any]
    wire: dict[str, orjson.Fragment] = field(default_factory=dict, init=False, repr=False, compare=False)

    def encoded(self, api: str, encode: Callable[[ToolSpec], dict[str, Any]]) -> orjson.Fragment:
        """The definition as JSON, encoded once per wire format: most tools are the same in every call."""
        if (found := self.wire.get(api)) is None:
            found = self.wire[api] = orjson.Fragment(orjson.dumps(encode(self)))
        return found


class ModelInfo(Struct, frozen=True, kw_only=True):
    """A model that can be selected. `name` is `provider/id`; limits that are not configured are None."""

    name: str
    provider: str
    id: str
    context_window: int | None = None
    max_tokens: int | None = None
    reasoning: bool = False


class Request(Struct, frozen=True, kw_only=True):
    """One model call. `messages` are in the transcript format, oldest first; `model` is the provider's id."""

    model: str
    system: str
    messages: list[dict[str, Any]]
    tools: Sequence[ToolSpec] = ()
    thinking: Thinking = "off"
    max_tokens: int | None = None
    session_id: str | None = None
    session_key: str | None = None


class TextDelta(Struct, frozen=True):
    text: str


class ThinkingDelta(Struct, frozen=True):
    text: str


class Finished(Struct, frozen=True):
    """The complete answer: `{role, content, api, provider, model, usage, stopReason, timestamp}`.

    A tool call whose arguments are not a JSON object has `arguments: {}` and the raw text under `malformed`.
    """

    message: dict[str, Any]


class Failed(Struct, frozen=True):
    kind: FailureKind
    message: str
    retry_after_s: float | None = None


Event = TextDelta | ThinkingDelta | Finished | Failed


class Model(Protocol):
    def stream(self, request: Request) -> AsyncGenerator[Event]: ...


@runtime_checkable
class Priced(Protocol):
    """A model whose price may be known."""

    async def prices(self, model: str, input_tokens: int) -> tuple[float, float] | None:
        """US dollars: what this much input costs at most, and one token of the answer."""
        ...
