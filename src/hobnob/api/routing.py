"""HTTP routes, independent of the server.

`@route` registers a function. Its parameters come from path, query and body and are validated against its
signature; its scope is checked against the caller's credential, as for RPC.
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
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from hobnob import json_input, parameters
from hobnob.api import Services
from hobnob.api.auth import Principal, origin_allowed, peer_of
from hobnob.api.budgets import Account, Slot, Ticket
from hobnob.api.rpc import Call
from hobnob.config import Settings, fields
from hobnob.errors import (
    BadInput,
    HobnobError,
    LimitReached,
    MissingScope,
    NotAllowed,
    RequestTimeout,
    TooLarge,
    ToolFailed,
    ToolRefused,
    TooManyAttempts,
    Unauthenticated,
)
from hobnob.fixes import config_set
from hobnob.policy import Operator
from hobnob.records import Struct
from hobnob.requests import IDEMPOTENCY_KEY_CHARS

BODY_BYTES = 2 * 1024 * 1024
BODY_S = 30.0
CLIENT_GONE = 499  # the status of a response nobody reads
STREAM_WRITE_TIMEOUT_S = 60.0  # for the reader of a stream to accept one event
_KEY_HEADERS = ("idempotency-key", "x-hobnob-idempotency-key", "x-openclaw-idempotency-key")
TOOL_CODES = (ToolRefused.code, ToolFailed.code)
NOBODY = Principal(Operator("nobody", ()), "")
_log = logging.getLogger(__name__)
Payload = dict[str, Any]
Answer = Payload | Response


@dataclass(slots=True)
class HttpCall(Call):
    """One request over HTTP."""

    request: Request | None = None
    principal: Principal = NOBODY

    @property
    def account(self) -> Account:
        return self.services.budgets.account(self.operator)

    @property
    def http(self) -> Request:
        assert self.request is not None
        return self.request


class Route(Struct, frozen=True):
    verb: Literal["GET", "POST"]
    path: str
    scope: fields.Scope | None
    function: Callable[..., Awaitable[Answer]]
    body_bytes: int | None
    """The largest body; None means `gateway.limits.requestBytes`."""
    authenticate: Callable[[Services, Request], Principal] | None = None
    """Replaces the gateway's own authentication."""
    body: type[BaseModel] | None = None
    """The model of the body, when the function takes it as one argument."""

    @property
    def parameters(self) -> type[BaseModel]:
        return self.body or parameters.model_of(self.function)

    def largest_body(self, settings: Settings) -> int:
        return self.body_bytes or settings.gateway.limits.request_bytes


ROUTES: list[Route] = []


def route(
    verb: Literal["GET", "POST"],
    path: str,
    *,
    scope: fields.Scope | None,
    body_bytes: int | None = BODY_BYTES,
    body: type[BaseModel] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as an HTTP route. Without a scope it needs no credential.

    With a `body` model the function takes that; otherwise the members of the body are its parameters.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        assert not any((r.verb, r.path) == (verb, path) for r in ROUTES), (
            f"the route {verb} {path} is defined twice"
        )
        ROUTES.append(Route(verb, path, scope, function, body_bytes, body=body))
        return function

    return register


async def handle(route: Route, services: Services, request: Request) -> Response:
    """The response to a request. Never raises."""
    try:
        return to_response(await _call(route, services, request))
    except HobnobError as error:
        return error_response(error)
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    except Exception:  # the request boundary: the caller gets an error response, the log the traceback
        _log.exception("%s %s failed", route.verb, route.path)
        return error_response(HobnobError("The request failed; the gateway's log says why."))


async def refuse(request: Request, error: HobnobError, headers: Mapping[str, str] | None = None) -> Response:
    """An error response to a request without a credential, when it is the turn of its address."""
    slot = _slot(request)
    try:
        ticket = slot.ticket = slot.address.open_ticket()
    except LimitReached as reached:
        return error_response(reached)
    try:
        await ticket.start()
        return error_response(error, headers)
    finally:
        ticket.close()


def _slot(request: Request) -> Slot:
    slot: Slot = request.scope["hobnob.slot"]
    return slot


async def _call(route: Route, services: Services, request: Request) -> Answer:
    try:
        principal = _admitted(route, services, request)
    except HobnobError as error:
        return await refuse(request, error)
    slot = _slot(request)
    account = slot.address
    if principal is not NOBODY:
        account = services.budgets.account(principal.operator)
        slot.sign_in(account)
    ticket = slot.ticket = account.open_ticket()
    running = _RunningRequest(principal)
    if principal is not NOBODY and route.authenticate is None:
        services.clients.streams.add(running)
    try:
        answer = await _work(route, services, request, principal, ticket)
    except asyncio.CancelledError:
        if not running.is_withdrawn:
            raise
        running.task.uncancel()
    finally:
        services.clients.streams.discard(running)
        ticket.close()
    if running.is_withdrawn:
        raise withdrawn()
    return answer


class _RunningRequest:
    """A request that is read, waits or is worked on. It ends when its credential is withdrawn."""

    __slots__ = ("is_withdrawn", "principal", "task")

    def __init__(self, principal: Principal) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.principal = principal
        self.is_withdrawn = False

    def close(self, code: int, reason: str) -> None:
        """End the request, unless it is the one that changed the credentials."""
        if self.task is not asyncio.current_task():
            self.is_withdrawn = True
            self.task.cancel()


def withdrawn() -> Unauthenticated:
    """The error for what a credential opened and which outlived it."""
    return Unauthenticated("unauthorized: the credential was withdrawn", reason="AUTH_TOKEN_MISMATCH")


def _admitted(route: Route, services: Services, request: Request) -> Principal:
    """The caller of a route, from an allowed page. Raises Unauthenticated or NotAllowed."""
    check_origin(services, request)
    return _authenticated(route, services, request)


def check_origin(services: Services, request: Request) -> None:
    """Refuse requests of foreign pages. Raises NotAllowed."""
    if not origin_allowed(services.config.settings, request.headers):
        raise NotAllowed(
            f"The page {request.headers['origin']} is not one of this gateway.",
            rule="origin.foreign",
            fix=config_set(
                "gateway.controlUi.allowedOrigins",
                [*services.config.settings.gateway.control_ui.allowed_origins, request.headers["origin"]],
            ),
        )


async def _work(
    route: Route, services: Services, request: Request, principal: Principal, ticket: Ticket
) -> Answer:
    given: Payload = dict(request.path_params)
    if route.verb == "GET":
        given |= dict(request.query_params)
    else:
        sent = await read_body(request, route.largest_body(services.config.settings), ticket)
        given = sent | given if route.body is None else sent
    if route.authenticate is None and (problem := parameters.too_long(given)):
        raise BadInput(problem)  # payloads of hooks have any shape
    try:
        checked = parameters.validate(route.parameters, given)
    except ValidationError as error:
        raise BadInput(parameters.explain(route.parameters, error)) from None
    call = HttpCall(
        services,
        principal.operator,
        _no_early_response,
        given=checked.model_fields_set,
        ticket=ticket,
        request=request,
        principal=principal,
    )
    await ticket.start()
    if route.body is not None:
        return await route.function(call, checked)
    return await route.function(call, **parameters.arguments(checked))


def _authenticated(route: Route, services: Services, request: Request) -> Principal:
    """The caller of a route, holding its scope. Raises Unauthenticated or NotAllowed."""
    if route.authenticate is not None:
        return route.authenticate(services, request)
    if route.scope is None:
        return NOBODY
    peer = peer_of(services.config.settings, request)
    principal = services.auth.authenticate(peer, token=bearer(request))
    if not principal.operator.holds(route.scope):
        raise MissingScope(route.scope)
    return principal


class EventStream(StreamingResponse):
    """Server-sent events. A reader that leaves or stalls is dropped, and its generator closed."""

    def __init__(
        self, events: AsyncGenerator[bytes], account: Account, headers: Mapping[str, str] | None = None
    ) -> None:
        """`account`: of which a stream was taken, and is given back at the end."""
        quick = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=quick | dict(headers or {}))
        self._events = events
        self._account = account

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._account.give("streams")

    async def stream_response(self, send: Send) -> None:
        async def in_time(message: Message) -> None:
            async with asyncio.timeout(STREAM_WRITE_TIMEOUT_S):
                await send(message)

        try:
            with contextlib.suppress(TimeoutError):
                await super().stream_response(in_time)
        finally:
            with anyio.CancelScope(shield=True):
                await self._events.aclose()


async def _no_early_response(payload: Payload) -> None:
    """HTTP has one response, the last."""


def bearer(request: Request) -> str | None:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else None


async def read_body(request: Request, limit: int, ticket: Ticket) -> Payload:
    """The body as a JSON object. One that is too large is refused before it is read."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise TooLarge(f"The body has {length} bytes; the limit is {limit}.")
    read = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                ticket.hold(len(piece))
                read += piece
                if len(read) > limit:
                    raise TooLarge(f"The body is larger than the limit of {limit} bytes.")
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {BODY_S:g} seconds.") from None
    request.scope["hobnob.body"] = read  # signatures are checked over the bytes
    try:
        found = json_input.loads(read or b"{}")
    except ValueError as error:
        raise BadInput(f"The body is not valid JSON: {error}.") from None
    if not isinstance(found, dict):
        raise BadInput("The body must be one JSON object.")
    return found


def idempotency_key(request: Request) -> str | None:
    """The idempotency key of a request, from its header."""
    key = next((found for name in _KEY_HEADERS if (found := request.headers.get(name))), None)
    if key is not None and len(key) > IDEMPOTENCY_KEY_CHARS:
        raise BadInput(f"Idempotency-Key has at most {IDEMPOTENCY_KEY_CHARS} characters.")
    return key


def to_response(found: Answer) -> Response:
    if isinstance(found, Response):
        return found
    return Response(orjson.dumps(found), media_type="application/json")


def error_response(error: HobnobError, headers: Mapping[str, str] | None = None) -> Response:
    """An HTTP response for one of our errors."""
    code = error.reported_code
    kind = "tool_error" if code in TOOL_CODES else _TYPES.get(error.http_status, "error")
    shown = {"type": kind, "message": error.message, "code": code}
    content = {"ok": False, "error": shown | ({"fix": error.fix} if error.fix else {})}
    headers = dict(headers or {})
    if isinstance(error, TooManyAttempts | LimitReached):
        headers["Retry-After"] = str(max(1, round(error.wait_s)))
    elif isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, LimitReached):
        headers["Connection"] = "close"  # what else was sent on it is not read
    return Response(orjson.dumps(content), error.http_status, headers, "application/json")


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
