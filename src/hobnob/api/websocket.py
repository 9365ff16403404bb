"""One WebSocket connection: the handshake, then requests and events until it closes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import suppress

import orjson
from starlette.websockets import WebSocket, WebSocketDisconnect

from hobnob import __version__, json_input, keys
from hobnob.api import Services, event_frames, rpc
from hobnob.api import methods as methods  # for the methods it registers
from hobnob.api.auth import Peer, Principal, peer_of
from hobnob.api.budgets import NO_TICKET, Ticket
from hobnob.api.event_frames import EventEncoder, Payload, TextSoFar
from hobnob.api.transcript_feed import TranscriptFeed
from hobnob.api.uvicorn_protocols import FIRST_FRAME_BYTES, WebSocketProtocol
from hobnob.errors import (
    HobnobError,
    LimitReached,
    NotPaired,
    TooManyAttempts,
    Unauthenticated,
    unwrap_exception_group,
)
from hobnob.events import AnswerDelta, EntryAppended, Event, ExchangeChanged
from hobnob.node_types import Node
from hobnob.records import Struct
from hobnob.types import Device, Entry, new_id, now_ms

PROTOCOLS = (3, 4)
MAX_FOLLOWED = 256  # sessions a connection gets run events of because it sent into them
MAX_EXTRA_EVENTS = 100  # queued events that belong to no session
MAX_REQUESTS = 4096  # requests of one connection in flight; waiting for a turn is one
TICK_MS = 30_000
_CLOSE_TIMEOUT_S = 2.0
_MAX_STREAMED_RUNS = 200  # runs whose text so far is kept for clients of protocol 3


class CloseConnection(Exception):
    """Closes the connection with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(reason)


class Handshake(Struct, frozen=True):
    """A completed handshake."""

    principal: Principal
    protocol: int
    client: Payload
    device: Device | None = None
    node: Node | None = None


async def serve(socket: WebSocket, services: Services, encoder: EventEncoder) -> None:
    """Serve one client until it disconnects."""
    wire: WebSocketProtocol = socket.scope["hobnob.wire"]
    peer = peer_of(services.config.settings, socket)
    await socket.accept()
    try:
        handshake = await _authenticated(socket, wire, services, peer)
        wire.set_max_frame(services.config.settings.gateway.limits.request_bytes)
        connection = Connection(socket, wire, services, handshake, encoder)
        await connection.run(peer)
    except CloseConnection as closed:
        await _close(socket, wire, closed)
    except (WebSocketDisconnect, RuntimeError):
        pass  # the client is gone; its turns go on


async def _close(socket: WebSocket, wire: WebSocketProtocol, why: CloseConnection) -> None:
    """Send a close frame, then abort: a client that does not read must not block this."""
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await socket.close(why.code, why.reason)
    except (TimeoutError, WebSocketDisconnect, RuntimeError):
        wire.abort()
    else:  # the client may answer the close frame within the same time
        asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT_S, wire.abort)


async def _authenticated(
    socket: WebSocket, wire: WebSocketProtocol, services: Services, peer: Peer
) -> Handshake:
    """The handshake, within its time limit."""
    try:
        async with asyncio.timeout(services.budgets.limits.sign_in_seconds):
            return await _handshake(socket, wire, services, peer)
    except TimeoutError:
        raise CloseConnection(1008, "no connect in time") from None


async def _handshake(socket: WebSocket, wire: WebSocketProtocol, services: Services, peer: Peer) -> Handshake:
    nonce = secrets.token_urlsafe(16)
    challenge = {"nonce": nonce, "ts": now_ms(), "capabilities": []}
    await _send_frame(wire, {"type": "event", "event": "connect.challenge", "payload": challenge})
    frame = _frame(await _receive(socket), FIRST_FRAME_BYTES)
    if frame.get("method") != "connect" or not isinstance(frame.get("params"), dict):
        await _answer(wire, frame, rpc.error_response("INVALID_REQUEST", "the first frame must be connect"))
        raise CloseConnection(1008, "connect first")
    params = frame["params"]
    protocol = _protocol(params)
    if protocol is None:
        details = {"expectedProtocol": PROTOCOLS[-1]}
        await _answer(
            wire, frame, rpc.error_response("INVALID_REQUEST", "protocol mismatch", details=details)
        )
        raise CloseConnection(1002, "protocol mismatch")
    role = params.get("role", "operator")
    if role not in ("operator", "node"):
        message = f"unauthorized role: {str(role)[:40]}"
        await _answer(wire, frame, rpc.error_response("INVALID_REQUEST", message))
        raise CloseConnection(1008, "unauthorized role")
    auth = params.get("auth") if isinstance(params.get("auth"), dict) else {}
    device: Device | None = None
    node: Node | None = None
    try:
        if role == "node":
            principal, node = await services.nodes.sign_in.authenticate(params, nonce, peer)
        elif isinstance(params.get("device"), dict):
            principal, device = await services.devices.authenticate(params, nonce, peer)
        else:
            secrets_sent = {n: v for n in ("token", "password") if isinstance(v := auth.get(n), str)}
            principal = services.auth.authenticate(peer, **secrets_sent)
    except Unauthenticated as error:
        await _answer(wire, frame, _refusal(error))
        raise CloseConnection(1008, "unauthorized") from None
    if node is None and (
        claimed := params.get("scopes")
    ):  # without a claim, all scopes of the credential are in force
        principal = principal.narrowed([str(scope) for scope in claimed] if isinstance(claimed, list) else ())
    try:
        wire.sign_in(services.budgets.account(principal.operator))
    except LimitReached as error:
        await _answer(wire, frame, rpc.failure(error))
        raise CloseConnection(1013, error.reported_code) from None
    client = params.get("client") if isinstance(params.get("client"), dict) else {}
    handshake = Handshake(principal, protocol, client, device, node)
    await _answer(wire, frame, {"ok": True, "payload": _hello(services, handshake)})
    return handshake


def _refusal(error: Unauthenticated) -> Payload:
    details: Payload = {"code": error.reason} | ({"fix": error.fix} if error.fix else {})
    if isinstance(error, NotPaired):
        return rpc.error_response(
            "NOT_PAIRED", error.message, details=details | {"requestId": error.request_id}
        )
    response = rpc.error_response("INVALID_REQUEST", error.message, details=details)
    if isinstance(error, TooManyAttempts):
        response["error"] |= {"retryable": True, "retryAfterMs": int(error.wait_s * 1000)}
    return response


def _protocol(params: Payload) -> int | None:
    low, high = params.get("minProtocol", PROTOCOLS[0]), params.get("maxProtocol", PROTOCOLS[-1])
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    return max((p for p in PROTOCOLS if low <= p <= high), default=None)


def _hello(services: Services, handshake: Handshake) -> Payload:
    settings, device = services.config.settings, handshake.device
    operator = handshake.principal.operator
    auth: Payload = {
        "method": settings.gateway.auth.mode,
        "role": "node" if handshake.node else "operator",
        "scopes": list(operator.scopes_in_force),
    }
    if handshake.node is not None:
        auth |= {"deviceToken": services.nodes.sign_in.token(handshake.node), "issuedAtMs": now_ms()}
    elif (
        device is not None and device.credential == operator.name
    ):  # else it would gain that credential's rights
        auth |= {"deviceToken": services.devices.token(device), "issuedAtMs": now_ms()}
    return {
        "type": "hello-ok",
        "protocol": handshake.protocol,
        "server": {"version": __version__, "bootId": services.boot_id, "connId": new_id()},
        "features": {
            "methods": rpc.names_for("node" if handshake.node else "operator"),
            "events": list(event_frames.NAMES),
            "capabilities": list(event_frames.CAPABILITIES),
        },
        "snapshot": {
            "presence": services.clients.presence() if operator.agents is None else [],
            "health": {"ok": True, "ts": now_ms()},
            "stateVersion": {"presence": services.clients.version, "health": 0},
            "uptimeMs": now_ms() - services.started_at_ms,
            "sessionDefaults": {
                "defaultAgentId": settings.default_agent.id,
                "modelConfigured": bool(settings.agents.defaults.model.primary),
                "mainKey": settings.session.main_key,
                "mainSessionKey": f"agent:{settings.default_agent.id}:main",
                "scope": settings.session.scope,
            },
            "authMode": settings.gateway.auth.mode,
        },
        "auth": auth,
        "policy": {
            "maxPayload": settings.gateway.limits.request_bytes,
            "tickIntervalMs": TICK_MS,
        },
    }


class Connection:
    """An authenticated client: its requests, and the events of what it follows or subscribed to."""

    def __init__(
        self,
        socket: WebSocket,
        wire: WebSocketProtocol,
        services: Services,
        handshake: Handshake,
        encoder: EventEncoder,
    ) -> None:
        self._socket = socket
        self._wire = wire
        self._services = services
        self._encoder = encoder
        self._handshake = handshake
        self._account = services.budgets.account(handshake.principal.operator)
        self.principal = handshake.principal
        self.device = handshake.device
        self.node_id = handshake.node.node_id if handshake.node else None
        self.gets_session_changes = False
        self._feeds: dict[str, TranscriptFeed] = {}  # session key: the transcript the client reads
        self._to_catch_up: list[TranscriptFeed] = []
        self._sent_into: dict[str, None] = {}  # sessions the client sent into, oldest first
        self._seq = 0
        self._text_so_far: dict[str, TextSoFar] = {}  # by run, for clients of protocol 3
        self._extra_events: list[bytes] = []
        self._closing: CloseConnection | None = None
        self._event_task: asyncio.Task[None] | None = None
        operator, may_receive_events = self.principal.operator, services.sessions.queries.may_receive_events
        hears_all = operator.agents is None and operator.holds("operator.read")

        def accepts(event: Event) -> bool:
            other = event.other_key if isinstance(event, ExchangeChanged) else None
            return may_receive_events(operator, event.session_key) and (
                other is None or may_receive_events(operator, other)
            )

        self._subscription = services.hub.subscribe(None if hears_all else accepts, topics_only=True)

    async def run(self, peer: Peer) -> None:
        self._services.clients.add(self, self._handshake.client, peer.address, new_id())
        try:
            # A device revoked during the handshake was not yet among the connections to close.
            if self.device is not None and not await self._services.devices.is_paired(self.device):
                raise CloseConnection(1008, "the device was revoked")
            if self.node_id is not None:
                await self._services.nodes.registry.connected(self.node_id, self)
            # A client that leaves fails every task that is sending to it.
            with unwrap_exception_group(CloseConnection, WebSocketDisconnect):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._send_events(), name="events")
                    self._subscription.on_lag = self._lagged
                    self._subscription.deliver_now = self._deliver_now
                    await self._handle_requests(group)
        finally:
            self._subscription.close()
            self._account.give("subscriptions", len(self._feeds))
            self._services.clients.remove(self)
            if self.node_id is not None:
                await asyncio.shield(self._services.nodes.registry.disconnected(self.node_id, self))

    # -- used by methods

    def follow_runs(self, session_key: str) -> None:
        """Send run events of a session: of the last ones the client sent into."""
        self._sent_into.pop(session_key, None)
        self._sent_into[session_key] = None
        feed = self._feeds.get(session_key)
        if feed is not None and session_key not in self._subscription.topics:
            self._to_catch_up.append(feed)  # the session was deleted, and is now created again
            self._subscription.wake()
        self._subscription.follow(session_key)
        if len(self._sent_into) > MAX_FOLLOWED:
            oldest = next(iter(self._sent_into))
            del self._sent_into[oldest]
            if oldest not in self._feeds:
                self._subscription.unfollow(oldest)

    def subscribe_messages(self, session_key: str, session_id: str, after: int) -> None:
        """Send also the entries of a session's transcript, first those after a sequence number."""
        earlier = self._feeds.get(session_key)
        if earlier is None:
            self._account.take("subscriptions")
        self._subscription.follow(session_key)
        if earlier in self._to_catch_up and earlier.session_id == session_id:
            after = min(after, earlier.seq)  # a subscription just before this one is still being served
        feed = TranscriptFeed(self._services, self.principal, session_key, session_id, after)
        self._feeds[session_key] = feed
        self._to_catch_up.append(feed)
        self._subscription.wake()

    def unsubscribe_messages(self, session_key: str) -> None:
        if self._feeds.pop(session_key, None) is not None:
            self._account.give("subscriptions")
        self._sent_into.pop(session_key, None)
        self._subscription.unfollow(session_key)

    def subscribe_sessions(self, *, on: bool = True) -> None:
        """Send changes of all sessions."""
        self.gets_session_changes = on
        if on:
            self._subscription.follow(None)
        else:
            self._subscription.unfollow(None)

    def send_event(self, text: bytes) -> None:
        """Queue an event that belongs to no session."""
        if len(self._extra_events) >= MAX_EXTRA_EVENTS:
            self._lagged()
            return
        self._extra_events.append(text)
        self._subscription.wake()

    def send_named(self, event: str, payload: Payload) -> None:
        """Queue an event by its name."""
        self.send_event(event_frames.encode_open(event, payload))

    def close(self, code: int, reason: str) -> None:
        """Close the connection."""
        self._closing = CloseConnection(code, reason)
        if self._event_task is not None:
            self._event_task.cancel()

    def _lagged(self) -> None:
        self.close(1008, "slow consumer: read on from your cursor")

    # -- requests

    async def _handle_requests(self, group: asyncio.TaskGroup) -> None:
        in_flight: set[asyncio.Task[None]] = set()
        socket, wire, limits = self._socket, self._wire, self._services.config.settings.gateway.limits
        while True:
            text = await _receive(socket)
            frame, size = _frame(text, limits.request_bytes), len(text)
            del text
            if frame.get("type") != "req" or not isinstance(frame.get("method"), str):
                message = "a request has type, id and method"
                await _answer(wire, frame, rpc.error_response("INVALID_REQUEST", message))
                continue
            if len(in_flight) >= MAX_REQUESTS:
                message = f"{MAX_REQUESTS} requests of this connection are in flight; wait for some of them"
                await _answer(wire, frame, rpc.error_response("UNAVAILABLE", message))
                continue
            try:
                ticket = self._account.open_ticket(size)
            except LimitReached as error:
                await _answer(wire, frame, rpc.failure(error))
                continue
            task = group.create_task(self._handle(frame, ticket), name=f"rpc {frame['method']}")
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)
            if ticket is not NO_TICKET:
                task.add_done_callback(ticket.close)  # also when it is cancelled before it runs

    async def _handle(self, frame: Payload, ticket: Ticket) -> None:
        async def respond_early(payload: Payload) -> None:
            await _answer(self._wire, frame, {"ok": True, "payload": payload})

        operator = self.principal.operator
        call = rpc.Call(self._services, operator, respond_early, connection=self, ticket=ticket)
        if ticket is not NO_TICKET:
            await ticket.start()
        await _answer(self._wire, frame, await rpc.dispatch(call, frame["method"], frame.get("params")))

    # -- events

    async def _send_events(self) -> None:
        self._event_task = asyncio.current_task()
        if self._closing is not None:  # before this task began: it could not have been cancelled then
            raise self._closing
        try:
            while True:
                event = await self._subscription.next()
                while self._to_catch_up:
                    await self._catch_up(self._to_catch_up[0])  # it counts as waiting until it is done
                    del self._to_catch_up[0]
                while self._extra_events:
                    await self._send(self._extra_events.pop(0))
                if event is not None:
                    for text in self._encoded(event):
                        await self._send(text)
        except asyncio.CancelledError:
            if self._closing is not None:
                raise self._closing from None
            raise

    def _deliver_now(self, event: Event) -> bool:
        """Send an event without queueing it, if the client keeps up and nothing has to be sent first.

        Deltas are left in the queue, where those that wait together are merged.
        """
        waiting = self._to_catch_up or self._extra_events
        if isinstance(event, AnswerDelta) or waiting or not self._wire.writable.is_set():
            return False
        for text in self._encoded(event):
            self._seq += 1
            self._wire.send_text_nowait(event_frames.with_seq(text, self._seq))
        return True

    def _encoded(self, event: Event) -> Iterator[bytes]:
        """The frames of an event for this client, without their sequence number."""
        key, encoder = event.session_key, self._encoder
        feed = self._feeds.get(key)
        news = feed.take(event) if feed is not None else None
        if feed is not None and news == "gap":
            self._to_catch_up.append(feed)
            self._subscription.wake()
        if key in self._subscription.topics:
            yield from encoder.texts(event, event_frames.run_frames)
            if feed is not None and (not isinstance(event, EntryAppended) or isinstance(news, Entry)):
                yield from encoder.texts(event, event_frames.transcript_frames)
            if self._handshake.protocol < 4 and isinstance(event, AnswerDelta) and not event.thinking:
                yield from self._whole_text(event)
        if self.gets_session_changes:
            yield from encoder.texts(event, event_frames.gateway_frames)

    async def _catch_up(self, feed: TranscriptFeed) -> None:
        with suppress(HobnobError):  # deleted, or no longer readable
            async for entry in feed.catch_up():
                if self._feeds.get(feed.session_key) is not feed:  # unsubscribed meanwhile
                    return
                payload = event_frames.message_payload(feed.session_key, entry)
                await self._send(event_frames.encode_open("session.message", payload))

    def _whole_text(self, delta: AnswerDelta) -> Iterator[bytes]:
        """The whole text so far, as clients of protocol 3 expect it."""
        if delta.restart or delta.turn_id not in self._text_so_far:
            self._text_so_far[delta.turn_id] = TextSoFar()
        text = self._text_so_far[delta.turn_id].add(delta.text)
        if text is None:
            return
        if len(self._text_so_far) > _MAX_STREAMED_RUNS:
            del self._text_so_far[next(iter(self._text_so_far))]
        content = [{"type": "text", "text": text}]
        message = {"role": "assistant", "content": content, "timestamp": now_ms()}
        run = {
            "runId": delta.turn_id,
            "sessionKey": delta.session_key,
            "agentId": keys.agent_of(delta.session_key),
        }
        yield event_frames.encode_open("chat", {**run, "state": "delta", "message": message})

    async def _send(self, text: bytes) -> None:
        self._seq += 1
        await self._wire.send_text(event_frames.with_seq(text, self._seq))


async def _receive(socket: WebSocket) -> str:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    text = message.get("text")
    if text is None:
        raise CloseConnection(1003, "frames must be text")
    return str(text)


def _frame(text: str, limit: int) -> Payload:
    if len(text) > limit:
        raise CloseConnection(1009, "frame too large")
    try:
        frame = json_input.loads(text)
    except json_input.TooComplex as error:
        raise CloseConnection(1008, f"frame refused: {error}") from None
    except ValueError:
        raise CloseConnection(1008, "a frame must be one JSON object") from None
    if not isinstance(frame, dict):
        raise CloseConnection(1008, "a frame must be one JSON object")
    return frame


async def _answer(wire: WebSocketProtocol, request: Payload, response: Payload) -> None:
    await _send_frame(wire, {"type": "res", "id": request.get("id"), **response})


async def _send_frame(wire: WebSocketProtocol, frame: Payload) -> None:
    await wire.send_text(orjson.dumps(frame))
