"""One WebSocket connection: the handshake, then requests and events until it closes."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import orjson
from starlette.websockets import WebSocket, WebSocketDisconnect

from hobnob import __version__, keys
from hobnob.api import Services, event_frames, rpc
from hobnob.api import methods as methods  # for the methods it registers
from hobnob.api.auth import Peer, Principal, peer
from hobnob.api.event_frames import EventEncoder, Payload
from hobnob.api.uvicorn_protocols import FIRST_FRAME_BYTES, FRAME_BYTES, WebSocketProtocol
from hobnob.errors import HobnobError, NotPaired, TooManyAttempts, Unauthenticated, unwrap_exception_group
from hobnob.events import AnswerDelta, EntryAppended, Event, ExchangeChanged
from hobnob.types import Device, new_id, now_ms

PROTOCOLS = (3, 4)
HANDSHAKE_S = 10.0
UNKNOWN = 1000  # connections that have not said who they are, at a time
UNKNOWN_EACH = 500  # of them from one address
FOLLOWED = 256  # sessions a connection hears of because it had them do something
EXTRA = 100  # events that are not of a session, waiting for a connection
REQUESTS = 4096  # of one connection under way at a time; waiting for a turn is one
TICK_MS = 30_000
_CLOSING_S = 2.0
_PAGE = 200
_unknown: Counter[str] = Counter()


class CloseConnection(Exception):
    """The connection is to be closed, with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What was said in a session after a place of a transcript, to be told before anything newer."""

    session_key: str
    session_id: str
    after: int


@dataclass(frozen=True, slots=True)
class Handshake:
    """A client that was let in."""

    admitted: Principal
    protocol: int
    client: Payload
    device: Device | None = None


async def serve(socket: WebSocket, services: Services, encoder: EventEncoder) -> None:
    """Talk to one client until it leaves."""
    wire: WebSocketProtocol = socket.scope["hobnob.wire"]
    there = peer(services.config.settings, socket.client.host if socket.client else None, socket.headers)
    await socket.accept()
    try:
        hello = await _admitted(socket, wire, services, there)
        wire.accept_frames(FRAME_BYTES)
        connection = Connection(socket, wire, services, hello, encoder)
        await connection.run(there)
    except CloseConnection as closed:
        await _close(socket, wire, closed)
    except (WebSocketDisconnect, RuntimeError):
        pass  # the client is gone; nothing of its turns depends on it


async def _close(socket: WebSocket, wire: WebSocketProtocol, why: CloseConnection) -> None:
    """Say why, and leave: a client that does not read cannot hold us up."""
    try:
        async with asyncio.timeout(_CLOSING_S):
            await socket.close(why.code, why.reason)
    except (TimeoutError, WebSocketDisconnect, RuntimeError):
        wire.abort()
    else:  # it may answer that, and has no longer for it
        asyncio.get_running_loop().call_later(_CLOSING_S, wire.abort)


async def _admitted(socket: WebSocket, wire: WebSocketProtocol, services: Services, there: Peer) -> Handshake:
    """The handshake. There is room for so many who have not said yet who they are."""
    if _unknown.total() >= UNKNOWN or _unknown[there.address] >= UNKNOWN_EACH:
        raise CloseConnection(1013, "too many connections that have not signed in; try again")
    _unknown[there.address] += 1
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            return await _handshake(socket, wire, services, there)
    except TimeoutError:
        raise CloseConnection(1008, "no connect in time") from None
    finally:
        _unknown[there.address] -= 1
        if not _unknown[there.address]:
            del _unknown[there.address]


async def _handshake(
    socket: WebSocket, wire: WebSocketProtocol, services: Services, there: Peer
) -> Handshake:
    nonce = secrets.token_urlsafe(16)
    challenge = {"nonce": nonce, "ts": now_ms(), "capabilities": []}
    await _send(wire, {"type": "event", "event": "connect.challenge", "payload": challenge})
    frame = _frame(await _receive(socket), FIRST_FRAME_BYTES)
    if frame.get("method") != "connect" or not isinstance(frame.get("params"), dict):
        await _answer(wire, frame, rpc.refusal("INVALID_REQUEST", "the first frame must be connect"))
        raise CloseConnection(1008, "connect first")
    params = frame["params"]
    protocol = _protocol(params)
    if protocol is None:
        details = {"expectedProtocol": PROTOCOLS[-1]}
        await _answer(wire, frame, rpc.refusal("INVALID_REQUEST", "protocol mismatch", details=details))
        raise CloseConnection(1002, "protocol mismatch")
    if params.get("role", "operator") != "operator":
        said = f"unauthorized role: {str(params['role'])[:40]}"
        await _answer(wire, frame, rpc.refusal("INVALID_REQUEST", said))
        raise CloseConnection(1008, "unauthorized role")
    auth = params.get("auth") if isinstance(params.get("auth"), dict) else {}
    device: Device | None = None
    try:
        if isinstance(params.get("device"), dict):
            admitted, device = await services.devices.admit(params, nonce, there)
        else:
            shown = {n: v for n in ("token", "password") if isinstance(v := auth.get(n), str)}
            admitted = services.auth.admit(there, **shown)
    except Unauthenticated as refused:
        await _answer(wire, frame, _refused(refused))
        raise CloseConnection(1008, "unauthorized") from None
    client = params.get("client") if isinstance(params.get("client"), dict) else {}
    hello = Handshake(admitted, protocol, client, device)
    await _answer(wire, frame, {"ok": True, "payload": _hello(services, hello)})
    return hello


def _refused(refused: Unauthenticated) -> Payload:
    details: Payload = {"code": refused.reason} | ({"fix": refused.fix} if refused.fix else {})
    if isinstance(refused, NotPaired):
        return rpc.refusal("NOT_PAIRED", refused.message, details=details | {"requestId": refused.request_id})
    answer = rpc.refusal("INVALID_REQUEST", refused.message, details=details)
    if isinstance(refused, TooManyAttempts):
        answer["error"] |= {"retryable": True, "retryAfterMs": int(refused.wait_s * 1000)}
    return answer


def _protocol(params: Payload) -> int | None:
    low, high = params.get("minProtocol", PROTOCOLS[0]), params.get("maxProtocol", PROTOCOLS[-1])
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    return max((p for p in PROTOCOLS if low <= p <= high), default=None)


def _hello(services: Services, hello: Handshake) -> Payload:
    settings, operator, device = services.config.settings, hello.admitted.operator, hello.device
    auth: Payload = {
        "method": settings.gateway.auth.mode,
        "role": "operator",
        "scopes": list(operator.scopes),
    }
    if device is not None and device.credential == operator.name:  # by another it would get that one's rights
        auth |= {"deviceToken": services.devices.token(device), "issuedAtMs": now_ms()}
    return {
        "type": "hello-ok",
        "protocol": hello.protocol,
        "server": {"version": __version__, "bootId": services.boot_id, "connId": new_id()},
        "features": {
            "methods": sorted(rpc.METHODS),
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
            "maxPayload": FRAME_BYTES,
            "tickIntervalMs": TICK_MS,
        },
    }


class Connection:
    """A client that was let in. It hears of the sessions it follows, and of all when it watches them."""

    def __init__(
        self,
        socket: WebSocket,
        wire: WebSocketProtocol,
        services: Services,
        hello: Handshake,
        encoder: EventEncoder,
    ) -> None:
        self._socket = socket
        self._wire = wire
        self._services = services
        self._encoder = encoder
        self.operator = hello.admitted.operator
        self.admitted = hello.admitted
        self.device = hello.device
        self.watches = False
        self._reads: set[str] = set()
        self._spoke: dict[str, None] = {}  # sessions it had do something, in that order
        self._hello = hello
        self._seq = 0
        self._told: dict[str, int] = {}  # transcript: the last message of it that was told
        self._so_far: dict[str, str] = {}  # run: what it has said, for clients that want all of it each time
        self._missed: list[CatchUp] = []
        self._extra: list[str] = []
        self._closing: CloseConnection | None = None
        self._telling: asyncio.Task[None] | None = None
        sees, operator = services.sessions.sees, self.operator
        hears_all = operator.agents is None and operator.holds("operator.read")

        def may_hear(event: Event) -> bool:
            other = event.other_key if isinstance(event, ExchangeChanged) else None
            return sees(operator, event.session_key) and (other is None or sees(operator, other))

        self._subscription = services.hub.subscribe(None if hears_all else may_hear, everything=False)

    async def run(self, there: Peer) -> None:
        self._services.clients.enter(self, self._hello.client, there.address, new_id())
        try:
            # Whoever was sent away while it came in was not among those who could be told.
            if self.device is not None and not await self._services.devices.is_in(self.device):
                raise CloseConnection(1008, "the device was sent away")
            with unwrap_exception_group():
                async with asyncio.TaskGroup() as group:
                    self._telling = group.create_task(self._tell(), name="events")
                    self._subscription.on_lag = self._lagged
                    self._subscription.deliver_now = self._deliver_now
                    await self._requests(group)
        finally:
            self._subscription.close()
            self._services.clients.leave(self)

    # -- as methods see it

    def follow(self, session_key: str) -> None:
        """Hear how the runs of a session go, among the last so many it had do something."""
        self._spoke.pop(session_key, None)
        self._spoke[session_key] = None
        self._subscription.follow(session_key)
        if len(self._spoke) > FOLLOWED:
            oldest = next(iter(self._spoke))
            del self._spoke[oldest]
            if oldest not in self._reads:
                self._subscription.unfollow(oldest)

    def read(self, session_key: str, session_id: str, after: int) -> None:
        """Hear also what is added to its transcript, first what was since a place in it."""
        self._subscription.follow(session_key)
        self._reads.add(session_key)
        self._missed.append(CatchUp(session_key, session_id, after))
        self._subscription.wake()

    def unfollow(self, session_key: str) -> None:
        self._reads.discard(session_key)
        self._spoke.pop(session_key, None)
        self._subscription.unfollow(session_key)

    def watch(self, *, on: bool = True) -> None:
        """Hear which sessions change."""
        self.watches = on
        if on:
            self._subscription.follow(None)
        else:
            self._subscription.unfollow(None)

    def tell(self, text: str) -> None:
        """Send an event that is not of a session."""
        if len(self._extra) >= EXTRA:
            self._lagged()
            return
        self._extra.append(text)
        self._subscription.wake()

    def close(self, code: int, reason: str) -> None:
        """Send the client away."""
        self._closing = CloseConnection(code, reason)
        if self._telling is not None:
            self._telling.cancel()

    def _lagged(self) -> None:
        self.close(1008, "slow consumer: read on from your cursor")

    # -- requests

    async def _requests(self, group: asyncio.TaskGroup) -> None:
        under_way: set[asyncio.Task[None]] = set()
        socket, wire = self._socket, self._wire
        while True:
            frame = _frame(await _receive(socket), FRAME_BYTES)
            if frame.get("type") != "req" or not isinstance(frame.get("method"), str):
                await _answer(
                    wire, frame, rpc.refusal("INVALID_REQUEST", "a request has type, id and method")
                )
                continue
            if len(under_way) >= REQUESTS:
                said = f"{REQUESTS} requests of this connection are under way; wait for some of them"
                await _answer(wire, frame, rpc.refusal("UNAVAILABLE", said))
                continue
            task = group.create_task(self._request(frame), name=f"rpc {frame['method']}")
            under_way.add(task)
            task.add_done_callback(under_way.discard)

    async def _request(self, frame: Payload) -> None:
        async def early(payload: Payload) -> None:
            await _answer(self._wire, frame, {"ok": True, "payload": payload})

        call = rpc.Call(self._services, self.operator, early, listener=self)
        await _answer(self._wire, frame, await rpc.dispatch(call, frame["method"], frame.get("params")))

    # -- events

    async def _tell(self) -> None:
        try:
            while True:
                event = await self._subscription.next()
                while self._missed:
                    await self._catch_up(self._missed.pop(0))
                while self._extra:
                    await self._event(self._extra.pop(0))
                if event is not None:
                    await self._one(event)
        except asyncio.CancelledError:
            if self._closing is not None:
                raise self._closing from None
            raise

    async def _one(self, event: Event) -> None:
        for text in self._texts(event):
            await self._event(text)

    def _deliver_now(self, event: Event) -> bool:
        """Send an event when nothing is in its way: the reader keeps up and nothing else is to be told first.

        Pieces of an answer are left in the queue, where those that wait together become one.
        """
        if isinstance(event, AnswerDelta) or self._missed or self._extra or not self._wire.writable.is_set():
            return False
        for text in self._texts(event):
            self._seq += 1
            self._wire.tell_now(event_frames.with_seq(text, self._seq))
        return True

    def _texts(self, event: Event) -> Iterator[str]:
        key, encoder = event.session_key, self._encoder
        if key in self._subscription.topics:
            yield from encoder.texts(event, event_frames.run_frames)
            if key in self._reads and not self._is_old(event):
                yield from encoder.texts(event, event_frames.transcript_frames)
            if self._hello.protocol < 4 and isinstance(event, AnswerDelta) and not event.thinking:
                yield self._whole(event)
        if self.watches:
            yield from encoder.texts(event, event_frames.gateway_frames)

    def _is_old(self, event: Event) -> bool:
        """Whether it was told already, when what had been missed was."""
        if not isinstance(event, EntryAppended):
            return False
        return event.entry.seq <= self._told.get(event.entry.session_id, 0)

    async def _catch_up(self, missed: CatchUp) -> None:
        key, session_id, after = missed.session_key, missed.session_id, missed.after
        while key in self._reads:
            try:
                now, entries = await self._services.sessions.said_since(
                    self.operator, key, after, limit=_PAGE
                )
            except HobnobError:  # it was deleted, or may not be read any more
                return
            if now != session_id:  # it was reset since: the new transcript is told from its start
                session_id, after = now, 0
                continue
            for entry in entries:
                await self._event(
                    event_frames.encode_open("session.message", event_frames.message_payload(key, entry))
                )
                self._told[session_id] = after = entry.seq
            if len(entries) < _PAGE:
                return

    def _whole(self, said: AnswerDelta) -> str:
        """All that was said so far, as clients of the older protocol want it."""
        text = ("" if said.restart else self._so_far.get(said.turn_id, "")) + said.text
        self._so_far[said.turn_id] = text
        if len(self._so_far) > _PAGE:
            del self._so_far[next(iter(self._so_far))]
        content = [{"type": "text", "text": text}]
        message = {"role": "assistant", "content": content, "timestamp": now_ms()}
        run = {
            "runId": said.turn_id,
            "sessionKey": said.session_key,
            "agentId": keys.agent_of(said.session_key),
        }
        return event_frames.encode_open("chat", {**run, "state": "delta", "message": message})

    async def _event(self, text: str) -> None:
        self._seq += 1
        await self._wire.tell(event_frames.with_seq(text, self._seq))


async def _receive(socket: WebSocket) -> str:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    text = message.get("text")
    if text is None:
        raise CloseConnection(1003, "frames are text")
    return str(text)


def _frame(text: str, limit: int) -> Payload:
    if len(text) > limit:
        raise CloseConnection(1009, "frame too large")
    try:
        frame = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise CloseConnection(1008, "a frame is one JSON object") from None
    if not isinstance(frame, dict):
        raise CloseConnection(1008, "a frame is one JSON object")
    return frame


async def _answer(wire: WebSocketProtocol, frame: Payload, answer: Payload) -> None:
    await _send(wire, {"type": "res", "id": frame.get("id"), **answer})


async def _send(wire: WebSocketProtocol, frame: Payload) -> None:
    await wire.tell(orjson.dumps(frame).decode())
