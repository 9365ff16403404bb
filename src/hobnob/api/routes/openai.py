"""Agents for clients of OpenAI's chat completions: an agent is a model there, a session a conversation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import anyio
import orjson
from starlette.responses import Response

from hobnob.api import routing
from hobnob.api.routes import openai_format
from hobnob.api.routes.openai_format import (
    CompletionRequest,
    CompletionWriter,
    ParsedCompletion,
    StreamedText,
)
from hobnob.api.routing import HttpCall, Payload, route
from hobnob.errors import HobnobError, NotFound, SessionNotFound, TurnFailed
from hobnob.events import AnswerDelta, EntryAppended, TurnChanged
from hobnob.hub import Subscription
from hobnob.sessions import TurnOptions
from hobnob.store import turns
from hobnob.types import Turn

KEEPALIVE_S = 15.0


@route("GET", "/v1/models", scope="operator.read")
async def models(visit: HttpCall) -> Payload:
    """The agents there are, as models."""
    return {"object": "list", "data": [*_models(visit).values()]}


@route("GET", "/v1/models/{model:path}", scope="operator.read")
async def one_model(visit: HttpCall, model: str) -> Payload:
    """One agent, as a model."""
    found = _models(visit).get(model)
    if found is None:
        raise NotFound(f"There is no model {model!r}.", fix="GET /v1/models lists them.")
    return found


def _models(visit: HttpCall) -> dict[str, Payload]:
    """The models a caller may use, by name."""
    created, agents = visit.services.started_at_ms // 1000, visit.operator.agents
    return {
        name: {"id": name, "object": "model", "created": created, "owned_by": openai_format.OWN}
        for name, agent in openai_format.models(visit.services.config.settings).items()
        if agents is None or agent in agents
    }


@route("POST", "/v1/chat/completions", scope="operator.write", body=CompletionRequest)
async def chat_completions(visit: HttpCall, body: CompletionRequest) -> Response:
    """One turn of an agent, in the shapes of OpenAI's chat completions; with `stream`, as it is said.

    The model is `hobnob`, `hobnob/<agentId>` or `agent:<agentId>`. The session is the one of the header
    `X-Hobnob-Session-Key`, else one for the `user`, else a new one for this request.
    """
    wanted = openai_format.parse(visit.services.config.settings, body, visit.web.headers)
    # Listening before asking: an answer that comes at once is heard too.
    heard = visit.services.hub.subscribe(everything=False)
    heard.follow(wanted.session_key)
    try:
        turn = await _accepted(visit, wanted)
        if turn.session_key != wanted.session_key:  # accepted before, under the same idempotency key
            heard.follow(turn.session_key)
            turn = await visit.services.store.read_small(turns.get, turn.turn_id)
    except BaseException:
        heard.close()
        raise
    answer = CompletionResponse(visit, wanted, turn, heard, body.model)
    if not body.stream:
        return await answer.whole()
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    return routing.EventStream(answer.stream(with_usage=with_usage), openai_format.session_header(turn))


async def _accepted(visit: HttpCall, wanted: ParsedCompletion) -> Turn:
    sessions, headers = visit.services.sessions, visit.web.headers
    text = wanted.text
    if wanted.before and (wanted.fresh or await _is_new(visit, wanted.session_key)):
        text = openai_format.with_context(wanted)
    model = headers.get("x-hobnob-model") or headers.get("x-openclaw-model")
    if model is not None:
        visit.services.models.info(model)
    return await sessions.send(
        visit.operator,
        wanted.session_key,
        text,
        idempotency_key=routing.idempotency_key(visit.web),
        options=TurnOptions(model=model, thinking=wanted.thinking, extra_system=wanted.system),
    )


async def _is_new(visit: HttpCall, session_key: str) -> bool:
    try:
        return (await visit.services.sessions.end_of(visit.operator, session_key))[1] == 0
    except SessionNotFound:
        return True


class CompletionResponse:
    """What comes of one request. When its reader goes away, a turn in a session of its own is ended."""

    def __init__(
        self, visit: HttpCall, wanted: ParsedCompletion, turn: Turn, heard: Subscription, model: str
    ) -> None:
        self._visit = visit
        self._fresh = wanted.fresh and turn.session_key == wanted.session_key
        self._turn = turn
        self._heard = heard
        self._written = CompletionWriter(turn, model)

    async def whole(self) -> Response:
        self._heard.close()
        ended = asyncio.ensure_future(self._visit.services.sessions.wait(self._turn.turn_id))
        gone = asyncio.ensure_future(_gone(self._visit))
        try:
            await asyncio.wait([ended, gone], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._leave_off()
                return Response(status_code=499)  # nobody reads it
            return await self._shown(ended.result())
        finally:
            ended.cancel()
            gone.cancel()

    async def _shown(self, ended: Turn) -> Response:
        if problem := _problem(ended):
            refused = routing.error_response(problem)
            refused.headers["X-Should-Retry"] = "false"  # the client would do it all again by itself
            return refused
        answer = CompletionWriter(ended, self._written.model).whole(await self._usage(ended))
        answer["id"] = f"chatcmpl-{self._turn.turn_id}"
        headers = openai_format.session_header(ended)
        return Response(orjson.dumps(answer), headers=headers, media_type="application/json")

    async def stream(self, *, with_usage: bool) -> AsyncGenerator[bytes]:
        over, passed_on = False, StreamedText()
        try:
            yield self._written.piece("", first=True)
            async for text in self._spoken(passed_on):
                yield self._written.piece(text) if text else b": keepalive\n\n"
            ended = await self._visit.services.sessions.wait(self._turn.turn_id)
            over = True
            if problem := _problem(ended):
                yield b"data: %b\n\n" % bytes(routing.error_response(problem).body)
                return
            if rest := passed_on.rest(ended.reply or ""):
                yield self._written.piece(rest)
            yield self._written.end(await self._usage(ended) if with_usage else None)
        finally:
            self._heard.close()
            if not over:
                with anyio.CancelScope(shield=True):
                    await self._leave_off()

    async def _spoken(self, passed_on: StreamedText) -> AsyncIterator[str]:
        """The pieces of the answer as they come, an empty one when none came for a while."""
        turn_id = self._turn.turn_id
        if self._turn.status == "ended":
            return
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    event = await self._heard.next()
            except TimeoutError:
                yield ""
                continue
            match event:
                case AnswerDelta(_, said_by, text, False, restart) if said_by == turn_id:
                    if restart:
                        passed_on.void()
                    elif text:
                        yield passed_on.piece(text)
                case EntryAppended(_, entry) if entry.turn_id == turn_id and entry.role == "assistant":
                    passed_on.message_over()
                case TurnChanged(turn) if turn.turn_id == turn_id and turn.status == "ended":
                    if turn.merged_into is None:
                        return
                    turn_id = turn.merged_into  # it is answered together with another
                case None:  # too much at a time: the rest comes at the end
                    return

    async def _usage(self, ended: Turn) -> dict[str, int]:
        return openai_format.usage(await self._visit.services.store.read_small(turns.get, ended.turn_id))

    async def _leave_off(self) -> None:
        if not self._fresh:
            return
        turn, sessions = self._turn, self._visit.services.sessions
        with contextlib.suppress(HobnobError):  # its session was deleted meanwhile
            await sessions.abort(
                self._visit.operator, turn.session_key, turn_id=turn.turn_id, reason="the client went away"
            )


async def _gone(visit: HttpCall) -> None:
    while (await visit.web.receive())["type"] != "http.disconnect":
        pass


def _problem(turn: Turn) -> HobnobError | None:
    if turn.outcome in ("ok", "no_output"):
        return None
    return TurnFailed(f"The turn ended as {turn.outcome}: {turn.error or 'nothing more is known'}")
