"""One WebSocket connection: the handshake, then requests and events until it closes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import orjson
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from hobnob import __version__, approvals, keys, policy
from hobnob.api import Parts, rpc
from hobnob.api import methods as methods  # for the methods it registers
from hobnob.api.auth import Door
from hobnob.errors import unwrapped
from hobnob.events import (
    ApprovalAsked,
    ApprovalDecided,
    Event,
    Posted,
    Said,
    Subscription,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from hobnob.policy import Operator
from hobnob.types import Session, new_id, now_ms

PROTOCOLS = (3, 4)
HANDSHAKE_S = 10.0
FIRST_FRAME_BYTES = 64 * 1024
FRAME_BYTES = 25 * 1024 * 1024
JOINED_BYTES = 64 * 1024
TICK_S = 30.0
REQUESTS = 4096  # of one connection under way at a time; waiting for a turn is one
EVENTS = ("connect.challenge", "agent", "chat", "exec.approval.requested", "exec.approval.resolved", "tick")


_CHAT_STATES = {"cancelled": "aborted", "failed": "error", "timed_out": "error"}


class Joined:
    """A transport whose writes of one round of the loop leave together.

    A turn tells its listeners five things or more, and a system call for each costs more than making them.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._leave)
        self._waiting.append(data)
        self._bytes += len(data)
        if self._bytes > JOINED_BYTES:  # now: only the transport can tell the sender to wait
            self._leave()

    def close(self) -> None:
        self._leave()
        self._transport.close()

    def _leave(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting and not self._transport.is_closing():
            self._transport.write(b"".join(waiting))


class Protocol(WebSocketsSansIOProtocol):
    """What uvicorn runs a connection with."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, Joined(cast(asyncio.Transport, transport))))


class Closed(Exception):
    """The connection is to be closed, with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(reason)


async def serve(socket: WebSocket, parts: Parts, door: Door) -> None:
    """Talk to one client until it leaves."""
    await socket.accept()
    try:
        operator = await _handshake(socket, parts, door)
        subscription = parts.hub.subscribe(_visible_to(operator, parts))
        try:
            with unwrapped():
                async with asyncio.TaskGroup() as group:
                    group.create_task(_tell(socket, subscription), name="events")
                    group.create_task(_tick(socket), name="tick")
                    await _requests(socket, parts, operator, group)
        finally:
            parts.hub.leave(subscription)
    except Closed as closed:
        if closed.code != 1000:
            await socket.close(closed.code, closed.reason)
    except (WebSocketDisconnect, RuntimeError):
        pass  # the client is gone; nothing of its turns depends on it


def _visible_to(operator: Operator, parts: Parts) -> Callable[[Event], bool]:
    """Which events a credential may hear: those of sessions whose history it may read."""

    @lru_cache(4096)
    def may(session_key: str) -> bool:
        session = Session.of(keys.parse(session_key))
        return policy.may(parts.config.settings, operator, "history", session).allowed

    return lambda event: may(event.session_key)


async def _handshake(socket: WebSocket, parts: Parts, door: Door) -> Operator:
    challenge = {"nonce": secrets.token_urlsafe(16), "ts": now_ms()}
    await _send(socket, {"type": "event", "event": "connect.challenge", "payload": challenge})
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            frame = _frame(await _receive(socket), FIRST_FRAME_BYTES)
    except TimeoutError:
        raise Closed(1008, "no connect in time") from None
    if frame.get("method") != "connect" or not isinstance(frame.get("params"), dict):
        await _answer(socket, frame, rpc.refusal("INVALID_REQUEST", "the first frame must be connect"))
        raise Closed(1008, "connect first")
    params = frame["params"]
    protocol = _protocol(params)
    if protocol is None:
        details = {"expectedProtocol": PROTOCOLS[-1]}
        await _answer(socket, frame, rpc.refusal("INVALID_REQUEST", "protocol mismatch", details=details))
        raise Closed(1002, "protocol mismatch")
    auth = params.get("auth")
    token = auth.get("token") if isinstance(auth, dict) else None
    operator = door.admit(token) if isinstance(token, str) else None
    if operator is None:
        code = "AUTH_TOKEN_MISMATCH" if token else "AUTH_TOKEN_MISSING"
        said = "unauthorized: show the gateway's token (`hobnob serve` prints where it is kept)"
        await _answer(socket, frame, rpc.refusal("INVALID_REQUEST", said, details={"code": code}))
        raise Closed(1008, "unauthorized")
    await _answer(socket, frame, {"ok": True, "payload": _hello(parts, operator, protocol)})
    return operator


def _protocol(params: dict[str, Any]) -> int | None:
    low, high = params.get("minProtocol", PROTOCOLS[0]), params.get("maxProtocol", PROTOCOLS[-1])
    if not isinstance(low, int) or not isinstance(high, int):
        return None
    return max((p for p in PROTOCOLS if low <= p <= high), default=None)


def _hello(parts: Parts, operator: Operator, protocol: int) -> dict[str, Any]:
    settings = parts.config.settings
    return {
        "type": "hello-ok",
        "protocol": protocol,
        "server": {"version": __version__, "connId": new_id()},
        "features": {"methods": sorted(rpc.METHODS), "events": list(EVENTS)},
        "snapshot": {
            "presence": [],
            "health": {"ok": True},
            "stateVersion": {"presence": 0, "health": 0},
            "uptimeMs": now_ms() - parts.started_at_ms,
            "sessionDefaults": {
                "defaultAgentId": settings.default_agent.id,
                "mainKey": settings.session.main_key,
                "mainSessionKey": f"agent:{settings.default_agent.id}:main",
                "scope": settings.session.scope,
            },
            "authMode": settings.gateway.auth.mode,
        },
        "auth": {"role": "operator", "scopes": list(operator.scopes)},
        "policy": {
            "maxPayload": FRAME_BYTES,
            "maxBufferedBytes": 2 * FRAME_BYTES,
            "tickIntervalMs": int(TICK_S * 1000),
        },
    }


async def _requests(socket: WebSocket, parts: Parts, operator: Operator, group: asyncio.TaskGroup) -> None:
    under_way: set[asyncio.Task[None]] = set()
    while True:
        frame = _frame(await _receive(socket), FRAME_BYTES)
        if frame.get("type") != "req" or not isinstance(frame.get("method"), str):
            await _answer(socket, frame, rpc.refusal("INVALID_REQUEST", "a request has type, id and method"))
            continue
        if len(under_way) >= REQUESTS:
            said = f"{REQUESTS} requests of this connection are under way; wait for some of them"
            await _answer(socket, frame, rpc.refusal("UNAVAILABLE", said))
            continue
        task = group.create_task(_request(socket, parts, operator, frame), name=f"rpc {frame['method']}")
        under_way.add(task)
        task.add_done_callback(under_way.discard)


async def _request(socket: WebSocket, parts: Parts, operator: Operator, frame: dict[str, Any]) -> None:
    async def early(payload: dict[str, Any]) -> None:
        await _answer(socket, frame, {"ok": True, "payload": payload})

    call = rpc.Call(parts, operator, early)
    await _answer(socket, frame, await rpc.dispatch(call, frame["method"], frame.get("params")))


async def _tell(socket: WebSocket, subscription: Subscription) -> None:
    told = 0
    async for event in subscription:
        for name, payload in frames(event):
            told += 1
            await _send(socket, {"type": "event", "event": name, "payload": payload, "seq": told})
    raise Closed(1008, "slow consumer: read on from your cursor")


def frames(event: Event) -> list[tuple[str, dict[str, Any]]]:
    """An event of the hub as the events of the wire."""
    data: dict[str, Any]
    match event:
        case TurnStarted(key, turn):
            data = {"phase": "start", "startedAt": turn.started_at_ms}
            return [("agent", _agent(key, turn.turn_id, "lifecycle", data))]
        case Said(key, turn_id, text, thinking, restart):
            stream = "thinking" if thinking else "assistant"
            data = {"delta": text} | ({"restart": True} if restart else {})
            return [("agent", _agent(key, turn_id, stream, data))]
        case ToolStarted(key, turn_id, call_id, name, arguments):
            data = {"phase": "start", "name": name, "toolCallId": call_id, "args": arguments}
            return [("agent", _agent(key, turn_id, "tool", data))]
        case TurnEnded(key, turn):
            phase = "end" if turn.outcome in ("ok", "no_output") else "error"
            data = {"phase": phase, "endedAt": turn.ended_at_ms, "outcome": turn.outcome, "error": turn.error}
            state = _CHAT_STATES.get(str(turn.outcome), "final")
            chat: dict[str, Any] = {"runId": turn.turn_id, "sessionKey": key, "state": state}
            if turn.error:
                chat["errorMessage"] = turn.error
            if turn.reply:
                content = [{"type": "text", "text": turn.reply}]
                chat["message"] = {"role": "assistant", "content": content, "timestamp": now_ms()}
            return [("agent", _agent(key, turn.turn_id, "lifecycle", data)), ("chat", chat)]
        case Posted(key, delivery):
            # An id of its own: the turn that wrote it has had its last chat event already.
            chat = {"runId": f"post-{delivery.delivery_id}", "sessionKey": key, "state": "final"}
            content = [{"type": "text", "text": delivery.text}]
            chat["message"] = {"role": "assistant", "content": content, "timestamp": delivery.created_at_ms}
            chat["deliveryId"] = delivery.delivery_id
            if delivery.exchange_id:
                chat["exchangeId"] = delivery.exchange_id
            return [("chat", chat)]
        case ApprovalAsked(_, approval):
            return [("exec.approval.requested", approvals.shown(approval))]
        case ApprovalDecided(_, approval):
            said = {"id": approval.approval_id, "decision": approval.state, "ts": approval.decided_at_ms}
            return [("exec.approval.resolved", said | {"resolvedBy": approval.decided_by})]
        case _:
            return []


def _agent(key: str, turn_id: str, stream: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"runId": turn_id, "sessionKey": key, "stream": stream, "ts": now_ms(), "data": data}


async def _tick(socket: WebSocket) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        await _send(socket, {"type": "event", "event": "tick", "payload": {"ts": now_ms()}})


async def _receive(socket: WebSocket) -> str:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    text = message.get("text")
    if text is None:
        raise Closed(1003, "frames are text")
    return str(text)


def _frame(text: str, limit: int) -> dict[str, Any]:
    if len(text) > limit:
        raise Closed(1009, "frame too large")
    try:
        frame = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Closed(1008, "a frame is one JSON object") from None
    if not isinstance(frame, dict):
        raise Closed(1008, "a frame is one JSON object")
    return frame


async def _answer(socket: WebSocket, frame: dict[str, Any], answer: dict[str, Any]) -> None:
    await _send(socket, {"type": "res", "id": frame.get("id"), **answer})


async def _send(socket: WebSocket, frame: dict[str, Any]) -> None:
    await socket.send_text(orjson.dumps(frame).decode())
