"""Spans of the work that is under way, in the terms of OpenTelemetry. Without a scope nothing is recorded.

The span of a turn has an id that follows from the turn's id, so a turn that another turn causes knows its
parent from the store, also after a restart and on another node. `hobnob.trace_export` sends what is recorded.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

# Names of the GenAI conventions, which are still in development: ours to keep stable.
OPERATION, PROVIDER = "gen_ai.operation.name", "gen_ai.provider.name"
AGENT_ID, AGENT_NAME, CONVERSATION = "gen_ai.agent.id", "gen_ai.agent.name", "gen_ai.conversation.id"
REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
FINISH_REASONS, FIRST_CHUNK = "gen_ai.response.finish_reasons", "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE = "gen_ai.usage.cache_creation.input_tokens"
TOOL_NAME, TOOL_CALL = "gen_ai.tool.name", "gen_ai.tool.call.id"
INPUT_MESSAGES, OUTPUT_MESSAGES = "gen_ai.input.messages", "gen_ai.output.messages"
ERROR_TYPE = "error.type"
SESSION_KEY, RUN_ID, RUN_STATUS, RUN_STEP = "session.key", "run.id", "run.status", "run.step"
CHANNEL, EXCHANGE_ID, PARENT_KEY = "channel", "exchange.id", "spawn.parent_key"

Value = str | int | float | bool | list[str]


@dataclass(slots=True)
class Span:
    """One piece of work. Attributes that are None are left out when it is sent."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int = 0
    attributes: dict[str, Value | None] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What new spans belong to, and where they go. `with_text`: messages may be recorded."""

    trace_id: str
    span_id: str
    record: Callable[[Span], None]
    with_text: bool = False


_scope: ContextVar[Scope | None] = ContextVar("hobnob_trace", default=None)


def span_id(name: str) -> str:
    """The id of the span of a turn, exchange or delivery."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def trace_id(root: str) -> str:
    """The id of the trace that begins with a turn."""
    return hashlib.sha256(f"trace {root}".encode()).hexdigest()[:32]


def traceparent() -> str | None:
    """The W3C header for a request made now; None when nothing is traced."""
    scope = _scope.get()
    return f"00-{scope.trace_id}-{scope.span_id}-01" if scope is not None else None


def records_text() -> bool:
    scope = _scope.get()
    return scope is not None and scope.with_text


@contextmanager
def entered(scope: Scope) -> Iterator[None]:
    """Make spans part of this scope."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


@contextmanager
def span(name: str, **attributes: Value | None) -> Iterator[Span | None]:
    """Record the body as a span of the current scope; None when nothing is traced.

    Keyword arguments cannot have dots: set such attributes on the span.
    """
    outer = _scope.get()
    if outer is None:
        yield None
        return
    made = Span(name, outer.trace_id, secrets.token_hex(8), outer.span_id, time.time_ns())
    made.attributes |= attributes
    token = _scope.set(Scope(outer.trace_id, made.span_id, outer.record, outer.with_text))
    try:
        yield made
    except BaseException as error:
        made.error = made.error or type(error).__name__
        raise
    finally:
        _scope.reset(token)
        made.end_ns = time.time_ns()
        outer.record(made)
