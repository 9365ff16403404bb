"""The OpenAI chat completions API: an agent appears as a model, a session as a conversation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol

import anyio
import orjson
from starlette.responses import Response

from hobnob.api import routing
from hobnob.api.formats import completions
from hobnob.api.formats.completions import (
    CompletionRequest,
    CompletionWriter,
    ParsedCompletion,
    StreamedText,
)
from hobnob.api.routing import HttpCall, Payload, route
from hobnob.errors import HobnobError, NotFound, SessionNotFound, TurnFailed
from hobnob.events import AnswerDelta, EntryAppended, TurnChanged
from hobnob.hub import Subscription
from hobnob.sessions import InboundMessage, TurnOptions
from hobnob.types import Turn

KEEPALIVE_S = 15.0


@route("GET", "/v1/models", scope="operator.read")
async def models(call: HttpCall) -> Payload:
    """The agents, as models."""
    return {"object": "list", "data": [*_models(call).values()]}


@route("GET", "/v1/models/{model:path}", scope="operator.read")
async def one_model(call: HttpCall, model: str) -> Payload:
    """One agent, as a model."""
    found = _models(call).get(model)
    if found is None:
        raise NotFound(f"There is no model {model!r}.", fix="GET /v1/models lists them.")
    return found


def _models(call: HttpCall) -> dict[str, Payload]:
    """The models a caller may use, by id."""
    created, agents = call.services.started_at_ms // 1000, call.operator.agents
    return {
        name: {"id": name, "object": "model", "created": created, "owned_by": completions.OWN}
        for name, agent in completions.models(call.services.config.settings).items()
        if agents is None or agent in agents
    }


@route("POST", "/v1/chat/completions", scope="operator.write", body=CompletionRequest)
async def chat_completions(call: HttpCall, body: CompletionRequest) -> Response:
    """One turn of an agent in OpenAI's chat completions format; with `stream`, as server-sent events.

    The model is `hobnob`, `hobnob/<agentId>` or `agent:<agentId>`. The session is that of the header
    `X-Hobnob-Session-Key`, else one for the `user`, else a new one for this request.
    """
    request = completions.parse(call.services.config.settings, body, call.http.headers)
    with_usage = body.stream_options is not None and body.stream_options.include_usage

    def writer(turn: Turn) -> CompletionWriter:
        return CompletionWriter(turn, body.model, with_usage=with_usage)

    return await answer(call, request, writer, stream=body.stream)


async def answer(
    call: HttpCall, request: ParsedCompletion, writer: Callable[[Turn], Writer], *, stream: bool
) -> Response:
    """Run a turn and answer with what `writer` makes of it."""
    if stream:
        call.account.take("streams")
    # Subscribe before sending, so that an immediate answer is not missed.
    subscription = call.services.hub.subscribe(topics_only=True)
    subscription.follow(request.session_key)
    try:
        turn = await _accept(call, request)
        if turn.session_key != request.session_key:  # accepted before, under the same idempotency key
            subscription.follow(turn.session_key)
            turn = await call.services.sessions.queries.turn(turn.turn_id)
    except BaseException:
        subscription.close()
        if stream:
            call.account.give("streams")
        raise
    call.ticket.pause()
    answering = TurnResponse(call, request, turn, subscription, writer(turn))
    if not stream:
        return await answering.whole()
    return routing.EventStream(answering.stream(), call.account, completions.session_header(turn))


async def _accept(call: HttpCall, request: ParsedCompletion) -> Turn:
    sessions, headers = call.services.sessions, call.http.headers
    text = request.text
    if request.before and (request.fresh or await _is_new(call, request.session_key)):
        text = completions.with_context(request)
    model = headers.get("x-hobnob-model") or headers.get("x-openclaw-model")
    if model is not None:
        call.services.models.info(model)
    message = InboundMessage(
        text,
        idempotency_key=routing.idempotency_key(call.http),
        options=TurnOptions(model=model, thinking=request.thinking, extra_system=request.system),
    )
    return await sessions.send(call.operator, request.session_key, message)


async def _is_new(call: HttpCall, session_key: str) -> bool:
    try:
        return (await call.services.sessions.queries.last_position(call.operator, session_key))[1] == 0
    except SessionNotFound:
        return True


class Writer(Protocol):
    """Writes a turn in one of OpenAI's formats, whole or as a stream."""

    def whole(self, ended: Turn, usage: dict[str, int]) -> Payload: ...

    def start(self) -> bytes: ...

    def piece(self, text: str) -> bytes: ...

    def end(self, usage: dict[str, int]) -> bytes: ...

    def failure(self, problem: HobnobError) -> bytes: ...


class TurnResponse:
    """The response to one request. If the client disconnects, a turn in a session made for it is aborted."""

    def __init__(
        self,
        call: HttpCall,
        request: ParsedCompletion,
        turn: Turn,
        subscription: Subscription,
        writer: Writer,
    ) -> None:
        self._call = call
        self._fresh = request.fresh and turn.session_key == request.session_key
        self._turn = turn
        self._subscription = subscription
        self._writer = writer
        self.principal = call.principal
        self._closed = asyncio.Event()

    def close(self, code: int, reason: str) -> None:
        """End the response: its credential was withdrawn."""
        self._closed.set()
        self._subscription.wake()

    async def whole(self) -> Response:
        self._subscription.close()
        ended = asyncio.ensure_future(self._call.services.sessions.wait(self._turn.turn_id))
        gone = asyncio.ensure_future(_disconnected(self._call))
        try:
            await asyncio.wait([ended, gone], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._abort_if_fresh()
                return Response(status_code=routing.CLIENT_GONE)
            return await self._response(ended.result())
        finally:
            for waiting in (ended, gone):
                waiting.cancel()

    async def _response(self, ended: Turn) -> Response:
        if problem := _error_of(ended):
            refused = routing.error_response(problem)
            refused.headers["X-Should-Retry"] = "false"  # clients would repeat the turn by themselves
            return refused
        answer = self._writer.whole(ended, await self._usage(ended))
        headers = completions.session_header(ended)
        return Response(orjson.dumps(answer), headers=headers, media_type="application/json")

    async def stream(self) -> AsyncGenerator[bytes]:
        over, streamed = False, StreamedText()
        self._call.services.clients.streams.add(self)
        try:
            yield self._writer.start()
            async for text in self._deltas(streamed):
                yield self._writer.piece(text) if text else b": keepalive\n\n"
            if self._closed.is_set():
                yield self._writer.failure(routing.withdrawn())
                return
            ended = await self._call.services.sessions.wait(self._turn.turn_id)
            over = True
            if problem := _error_of(ended):
                yield self._writer.failure(problem)
                return
            if rest := streamed.rest(ended.reply or ""):
                yield self._writer.piece(rest)
            yield self._writer.end(await self._usage(ended))
        finally:
            self._subscription.close()
            self._call.services.clients.streams.discard(self)
            if not over:
                with anyio.CancelScope(shield=True):
                    await self._abort_if_fresh()

    async def _deltas(self, streamed: StreamedText) -> AsyncIterator[str]:
        """The deltas of the answer; an empty one after a while without any."""
        turn_id = self._turn.turn_id
        if self._turn.status == "ended":
            return
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    event = await self._subscription.next()
            except TimeoutError:
                yield ""
                continue
            if self._closed.is_set():
                return
            match event:
                case AnswerDelta(_, delta_turn, text, False, restart) if delta_turn == turn_id:
                    if restart:
                        streamed.restart()
                    elif text:
                        yield streamed.piece(text)
                case EntryAppended(_, entry) if entry.turn_id == turn_id and entry.role == "assistant":
                    streamed.message_ended()
                case TurnChanged(turn) if turn.turn_id == turn_id and turn.status == "ended":
                    if turn.merged_into is None:
                        return
                    turn_id = turn.merged_into  # that turn answers both
                case None:  # fell behind: the rest comes at the end
                    return

    async def _usage(self, ended: Turn) -> dict[str, int]:
        return completions.usage(await self._call.services.sessions.queries.turn(ended.turn_id))

    async def _abort_if_fresh(self) -> None:
        if not self._fresh:
            return
        turn, sessions = self._turn, self._call.services.sessions
        with contextlib.suppress(HobnobError):  # the session was deleted meanwhile
            await sessions.abort(
                self._call.operator, turn.session_key, turn_id=turn.turn_id, reason="the client went away"
            )


async def _disconnected(call: HttpCall) -> None:
    while (await call.http.receive())["type"] != "http.disconnect":
        pass


def _error_of(turn: Turn) -> HobnobError | None:
    if turn.outcome in ("ok", "no_output"):
        return None
    return TurnFailed(f"The turn ended as {turn.outcome}: {turn.error or 'nothing more is known'}")
