"""Sends spans to an OpenTelemetry collector, as OTLP over HTTP with JSON.

Model and tool calls are recorded where they happen; turns, exchanges and deliveries are taken from the
changes that the store reports. A collector that is slow or away never slows a turn: spans are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar

import orjson

from hobnob import __version__, tracing
from hobnob.config.gateway import Tracing
from hobnob.events import Change, DeliveryChanged, ExchangeChanged, TurnChanged
from hobnob.store import Store, turns
from hobnob.tracing import Span, Value
from hobnob.types import Delivery, Exchange, Turn, now_ms

BATCH, MAX_QUEUED = 256, 8192
INTERVAL_S, SEND_TIMEOUT_S, FLUSH_S = 2.0, 10.0, 3.0
_MAX_CHAIN = 64  # turns that cause each other, from one back to the first
_MAX_KNOWN = 4096  # traces of turns kept in memory
_NS = 1_000_000
_log = logging.getLogger(__name__)
Item = Span | Turn | Exchange | Delivery


class Tracer:
    """Records spans and sends them in batches. Created by `open_tracer`."""

    def __init__(self, store: Store, settings: Tracing) -> None:
        self._store = store
        self._settings = settings
        self._queue: deque[Item] = deque(maxlen=MAX_QUEUED)
        self._traces: dict[str, str] = {}  # of turns, by turn id
        self._ended: deque[str] = deque(maxlen=BATCH)  # the last exchanges
        self._news = asyncio.Event()
        self._failing = False
        self._stopping = False
        store.watch(self._on_changes, own_only=True)

    async def scope(self, turn: Turn) -> tracing.Scope:
        """The scope of what happens in a turn."""
        trace, settings = await self._trace(turn.turn_id, turn), self._settings
        own = tracing.span_id(turn.turn_id)
        return tracing.Scope(trace, own, self.record, with_text=settings.include_text)

    def record(self, item: Item) -> None:
        """Queue a span, or what one is made of. The oldest is dropped when the queue is full."""
        self._queue.append(item)
        if len(self._queue) >= BATCH:
            self._news.set()

    def stop(self) -> None:
        self._stopping = True
        self._news.set()

    async def run(self) -> None:
        """Send what is recorded, every two seconds or when there is much, until stopped."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=SEND_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while not self._stopping:
                with suppress(TimeoutError):
                    async with asyncio.timeout(INTERVAL_S):
                        await self._news.wait()
                self._news.clear()
                await self._flush(http)

    async def _flush(self, http: Any) -> None:
        while self._queue:
            spans: list[Span] = []
            while self._queue and len(spans) < BATCH:
                spans.append(await self._span(self._queue.popleft()))
            await self._send(http, spans)

    async def _send(self, http: Any, spans: list[Span]) -> None:
        import aiohttp

        settings = self._settings
        headers = {name: secret.get_secret_value() for name, secret in settings.headers.items()}
        body = orjson.dumps(document(spans, settings.service_name))
        try:
            assert settings.endpoint is not None
            headers |= {"Content-Type": "application/json"}
            async with http.post(settings.endpoint, data=body, headers=headers) as response:
                problem = f"status {response.status}" if response.status >= 400 else None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            problem = f"{type(error).__name__}: {error}"
        if problem and not self._failing:
            _log.warning("traces not sent, %d spans dropped (%s): %s", len(spans), settings.endpoint, problem)
        elif self._failing and not problem:
            _log.info("traces are sent again")
        self._failing = problem is not None

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case TurnChanged(turn) if turn.status == "ended" and turn.started_at_ms is not None:
                    self.record(turn)
                case ExchangeChanged(exchange) if exchange.state != "open":
                    if exchange.exchange_id not in self._ended:  # it may change once more after its end
                        self._ended.append(exchange.exchange_id)
                        self.record(exchange)
                case DeliveryChanged(delivery) if delivery.state in ("delivered", "failed", "ambiguous"):
                    self.record(delivery)

    async def _span(self, item: Item) -> Span:
        match item:
            case Turn():
                return turn_span(item, await self._trace(item.turn_id, item))
            case Exchange():
                root = item.caller_turn_id or item.turn_id or item.exchange_id
                return exchange_span(item, await self._trace(root))
            case Delivery():
                return delivery_span(item, await self._trace(item.turn_id or item.delivery_id))
        return item

    async def _trace(self, turn_id: str, turn: Turn | None = None) -> str:
        """The trace of a turn: named after the first turn of the chain that caused it."""
        if turn_id in self._traces:
            return self._traces[turn_id]
        chain, root = [turn_id], turn_id
        turn = turn or await self._store.read_small(turns.find, turn_id)
        while turn is not None and turn.caused_by and len(chain) < _MAX_CHAIN:
            root = turn.caused_by
            if root in self._traces:
                break
            chain.append(root)
            turn = await self._store.read_small(turns.find, root)
        found = self._traces.get(root) or tracing.trace_id(root)
        for known in chain:
            self._traces[known] = found
        while len(self._traces) > _MAX_KNOWN:
            del self._traces[next(iter(self._traces))]
        return found


@asynccontextmanager
async def open_tracer(store: Store, settings: Tracing) -> AsyncIterator[Tracer | None]:
    """A tracer that sends to the configured collector, None when there is none."""
    if settings.endpoint is None:
        yield None
        return
    tracer = Tracer(store, settings)
    running = asyncio.create_task(tracer.run(), name="traces")
    try:
        yield tracer
    finally:
        tracer.stop()
        _, late = await asyncio.wait([running], timeout=FLUSH_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if late:
            _log.warning("some traces were not sent before the end")


def turn_span(turn: Turn, trace: str) -> Span:
    made = _made(f"invoke_agent {turn.agent_id}", trace, turn.turn_id, turn.started_at_ms, turn.ended_at_ms)
    made.parent_id = tracing.span_id(turn.caused_by) if turn.caused_by else None
    made.error = turn.outcome if turn.outcome not in ("ok", "no_output") else None
    made.attributes = {
        tracing.OPERATION: "invoke_agent",
        tracing.AGENT_ID: turn.agent_id,
        tracing.CONVERSATION: turn.session_id,
        tracing.SESSION_KEY: turn.session_key,
        tracing.RUN_ID: turn.turn_id,
        tracing.RUN_STATUS: turn.outcome,
        tracing.RUN_STEP: turn.step,
        tracing.EXCHANGE_ID: turn.exchange_id,
        tracing.INPUT_TOKENS: turn.input_tokens,
        tracing.OUTPUT_TOKENS: turn.output_tokens,
    }
    return made


def exchange_span(exchange: Exchange, trace: str) -> Span:
    made = _made(f"exchange {exchange.kind}", trace, exchange.exchange_id, exchange.created_at_ms, None)
    made.parent_id = tracing.span_id(exchange.caller_turn_id) if exchange.caller_turn_id else None
    made.error = exchange.state if exchange.state != "done" else None
    made.attributes = {
        tracing.EXCHANGE_ID: exchange.exchange_id,
        "exchange.state": exchange.state,
        "exchange.requester": exchange.requester_key,
        "exchange.target": exchange.target_key,
        "exchange.hop": exchange.hop,
    }
    return made


def delivery_span(delivery: Delivery, trace: str) -> Span:
    begun = delivery.created_at_ms
    made = _made(f"deliver {delivery.channel}", trace, delivery.delivery_id, begun, None)
    made.parent_id = tracing.span_id(delivery.turn_id) if delivery.turn_id else None
    made.error = delivery.state if delivery.state != "delivered" else None
    made.attributes = {
        tracing.CHANNEL: delivery.channel,
        tracing.SESSION_KEY: delivery.session_key,
        "delivery.state": delivery.state,
        "delivery.attempts": delivery.attempts,
    }
    return made


def _made(name: str, trace: str, own: str, start_ms: int | None, end_ms: int | None) -> Span:
    end = end_ms or now_ms()
    return Span(name, trace, tracing.span_id(own), None, (start_ms or end) * _NS, end * _NS)


def document(spans: list[Span], service: str) -> dict[str, Any]:
    """The spans as an OTLP request."""
    resource = {"service.name": service, "service.version": __version__}
    scope = {"name": "hobnob", "version": __version__}
    shown = [_otlp(each) for each in spans]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": shown}],
            }
        ]
    }


def _otlp(span: Span) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": 1,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes | ({tracing.ERROR_TYPE: span.error} if span.error else {})),
        "status": {"code": 2, "message": span.error} if span.error else {"code": 0},
    }
    return shown | ({"parentSpanId": span.parent_id} if span.parent_id else {})


def _attributes(values: Mapping[str, Value | None]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in values.items() if value is not None]


def _value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
    return {"stringValue": value}


class _Running(Protocol):
    turn: Turn


C = TypeVar("C", bound=_Running)
R = TypeVar("R")


def traced(runtime: Callable[[C], Awaitable[R]], tracer: Tracer) -> Callable[[C], Awaitable[R]]:
    """A runtime whose model and tool calls are recorded."""

    async def run(running: C) -> R:
        with tracing.entered(await tracer.scope(running.turn)):
            return await runtime(running)

    return run
