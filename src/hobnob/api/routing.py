"""HTTP routes without a server: `@route` above one function is all a route needs.

The parameters of the function are those of the path, the query and the body, checked against its signature;
its scope is checked against the caller's credential, as for RPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from hobnob import parameters
from hobnob.api import Services
from hobnob.api.auth import origin_allowed, peer
from hobnob.api.rpc import Call
from hobnob.config.fields import Scope
from hobnob.errors import (
    BadInput,
    HobnobError,
    NotAllowed,
    RequestTimeout,
    TooLarge,
    ToolFailed,
    ToolRefused,
    TooManyAttempts,
    Unauthenticated,
)
from hobnob.policy import Operator

BODY_BYTES = 2 * 1024 * 1024
BODY_S = 30.0
MAX_IDEMPOTENCY_KEY = 256
TAKE_S = 60.0  # for the reader of a stream to take a piece of it
_KEY_HEADERS = ("idempotency-key", "x-hobnob-idempotency-key", "x-openclaw-idempotency-key")
TOOL_CODES = (ToolRefused.code, ToolFailed.code)
NOBODY = Operator("nobody", ())
_log = logging.getLogger(__name__)
Payload = dict[str, Any]
Answer = Payload | Response


@dataclass(frozen=True, slots=True)
class HttpCall(Call):
    """One request over HTTP."""

    request: Request | None = None

    @property
    def web(self) -> Request:
        assert self.request is not None
        return self.request


@dataclass(frozen=True, slots=True)
class Route:
    verb: Literal["GET", "POST"]
    path: str
    scope: Scope | None
    function: Callable[..., Awaitable[Answer]]
    body_bytes: int
    admit: Callable[[Services, Request], Operator] | None = None
    """Who may come in, where that is not for the gateway's own tokens to say."""
    body: type[BaseModel] | None = None
    """The shape of the body, where the function takes it as it is."""

    @property
    def parameters(self) -> type[BaseModel]:
        return self.body or parameters.model_of(self.function)


ROUTES: list[Route] = []


def route(
    verb: Literal["GET", "POST"],
    path: str,
    *,
    scope: Scope | None,
    body_bytes: int = BODY_BYTES,
    body: type[BaseModel] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function an HTTP route. Without a scope, anybody may ask.

    With a shape for its `body` the function is given that; otherwise the body's members are its parameters.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        assert not any((r.verb, r.path) == (verb, path) for r in ROUTES), f"two routes are {verb} {path}"
        ROUTES.append(Route(verb, path, scope, function, body_bytes, body=body))
        return function

    return register


async def handle(route: Route, services: Services, request: Request) -> Response:
    """The response to a request. Never raises."""
    try:
        return to_response(await _visited(route, services, request))
    except HobnobError as problem:
        return error_response(problem)
    except Exception:  # the boundary of a request: the caller gets an answer, we get the trace
        _log.exception("%s %s failed", route.verb, route.path)
        return error_response(HobnobError("The gateway failed at this; its log says why."))


async def _visited(route: Route, services: Services, request: Request) -> Answer:
    settings = services.config.settings
    if not origin_allowed(settings, request.headers):
        raise NotAllowed(
            f"The page {request.headers['origin']} is not one of this gateway.",
            rule="origin.foreign",
            fix="Add it to gateway.controlUi.allowedOrigins.",
        )
    operator = NOBODY
    if route.admit is not None:
        operator = route.admit(services, request)
    elif route.scope is not None:
        there = peer(settings, request.client.host if request.client else None, request.headers)
        operator = services.auth.admit(there, token=bearer(request)).operator
        if not operator.holds(route.scope):
            raise NotAllowed(
                f"missing scope: {route.scope}", rule="scope.missing", fix=f"Use a token with {route.scope}."
            )
    given: Payload = dict(request.path_params)
    if route.verb == "GET":
        given |= dict(request.query_params)
    else:
        sent = await body(request, route.body_bytes)
        given = sent | given if route.body is None else sent
    try:
        checked = route.parameters.model_validate(given)
    except ValidationError as problem:
        raise BadInput(parameters.explain(route.parameters, problem)) from None
    given_names = frozenset(checked.model_fields_set)
    visit = HttpCall(services, operator, _no_early, given=given_names, request=request)
    if route.body is not None:
        return await route.function(visit, checked)
    return await route.function(visit, **parameters.arguments(checked))


class EventStream(StreamingResponse):
    """Server-sent events. Whoever leaves, or takes nothing for long, is let go with all it held."""

    def __init__(self, events: AsyncGenerator[bytes], headers: Mapping[str, str] | None = None) -> None:
        quick = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=quick | dict(headers or {}))
        self._events = events

    async def stream_response(self, send: Send) -> None:
        async def in_time(message: Message) -> None:
            async with asyncio.timeout(TAKE_S):
                await send(message)

        try:
            with contextlib.suppress(TimeoutError):
                await super().stream_response(in_time)
        finally:
            with anyio.CancelScope(shield=True):
                await self._events.aclose()


async def _no_early(payload: Payload) -> None:
    """Over HTTP there is one answer, the last."""


def bearer(request: Request) -> str | None:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None


async def body(request: Request, limit: int) -> Payload:
    """The body, one JSON object. Too much of it is refused before it is read."""
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limit:
        raise TooLarge(f"The body has {told} bytes; at most {limit} are taken.")
    read = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                read += piece
                if len(read) > limit:
                    raise TooLarge(f"The body is longer than the {limit} bytes that are taken.")
    except TimeoutError:
        raise RequestTimeout(f"The body did not come in whole within {BODY_S:g} seconds.") from None
    try:
        found = orjson.loads(read or b"{}")
    except orjson.JSONDecodeError as error:
        raise BadInput(f"The body is not JSON: {error}.") from None
    if not isinstance(found, dict):
        raise BadInput("The body is one JSON object.")
    return found


def idempotency_key(request: Request) -> str | None:
    """The caller's name for this request, by which it is known again."""
    key = next((found for name in _KEY_HEADERS if (found := request.headers.get(name))), None)
    if key is not None and len(key) > MAX_IDEMPOTENCY_KEY:
        raise BadInput(f"Idempotency-Key has at most {MAX_IDEMPOTENCY_KEY} characters.")
    return key


def to_response(found: Answer) -> Response:
    if isinstance(found, Response):
        return found
    return Response(orjson.dumps(found), media_type="application/json")


def error_response(problem: HobnobError, headers: Mapping[str, str] | None = None) -> Response:
    """A failure of ours, as HTTP carries it."""
    code = problem.rule if isinstance(problem, NotAllowed) else problem.code
    kind = "tool_error" if code in TOOL_CODES else _TYPES.get(problem.http_status, "error")
    error = {"type": kind, "message": problem.message, "code": code}
    content = {"ok": False, "error": error | ({"fix": problem.fix} if problem.fix else {})}
    headers = dict(headers or {})
    if isinstance(problem, TooManyAttempts):
        headers["Retry-After"] = str(max(1, round(problem.wait_s)))
    elif isinstance(problem, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    return Response(orjson.dumps(content), problem.http_status, headers, "application/json")


_TYPES = {
    400: "invalid_request_error",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "conflict",
    413: "invalid_request_error",
    429: "rate_limited",
    503: "unavailable",
}
