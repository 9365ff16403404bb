"""Discord's gateway: one WebSocket connection, with its handshake, heartbeats and the ways it ends.

A gateway session outlives its connection. Discord keeps the events of the last minutes, so a client that
knows the session and the number of the last event it handled gets the ones after it. That is why the
connection is never closed with 1000 or 1001, which would end the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import orjson

from hobnob import json_input
from hobnob.channels import Disconnected, LoginNeeded
from hobnob.channels.http import proxy_for
from hobnob.errors import unwrap_exception_group
from hobnob.records import Struct

if TYPE_CHECKING:
    import aiohttp

    from hobnob.config.channels.discord import DiscordIntents

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_WAITING = 1000  # events that are received but not handled; then no more are read
MAX_BATCH = 100
ESTABLISH_TIMEOUT_S = 60.0
CLOSE_RESUMABLE = 4000
_CLOSE_TIMEOUT_S = 2.0

_GUILDS, _GUILD_MEMBERS, _PRESENCES = 1 << 0, 1 << 1, 1 << 8
_GUILD_MESSAGES, _DIRECT_MESSAGES, _MESSAGE_CONTENT = 1 << 9, 1 << 12, 1 << 15

_SESSION_IS_OVER = {4003, 4007, 4009}
_USELESS_TO_RETRY = {
    4004: "Discord does not accept the bot token: copy a new one from the developer portal.",
    4010: "Discord refused the shard of the connection.",
    4011: "The bot is in too many servers for one connection; Hobnob opens only one.",
    4012: "Discord no longer has version 10 of its gateway.",
    4013: "Discord does not know an intent: check channels.discord.intents.",
    4014: (
        "Discord refused an intent: switch on 'Message Content Intent' in the developer portal, under Bot, "
        "or set channels.discord.intents.messageContent to false."
    ),
}


class Op(IntEnum):
    DISPATCH = 0
    HEARTBEAT = 1
    IDENTIFY = 2
    RESUME = 6
    RECONNECT = 7
    INVALID_SESSION = 9
    HELLO = 10
    HEARTBEAT_ACK = 11


class ReconnectAsked(Exception):
    """Discord asks for a new connection; the session goes on."""


class SessionOver(Exception):
    """The session cannot be resumed: a new one has to be started."""


class Session(Struct, frozen=True):
    """A gateway session, and the number of the last event that was handled."""

    api_url: str
    id: str
    resume_url: str
    seq: int

    def cursor(self) -> str:
        fields = {"api": self.api_url, "session": self.id, "resume": self.resume_url, "seq": self.seq}
        return orjson.dumps(fields).decode()

    @classmethod
    def from_cursor(cls, cursor: str | None, api_url: str) -> Session | None:
        """The session that was stored. None if it belongs to another server: the token must not go there."""
        try:
            fields = orjson.loads(cursor or "null")
            session = cls(fields["api"], fields["session"], fields["resume"], int(fields["seq"]))
        except (ValueError, TypeError, KeyError):
            return None
        return session if session.api_url == api_url else None


class Dispatch(Struct, frozen=True):
    """An event."""

    seq: int
    name: str
    data: Any


Handler = Callable[[list[Dispatch]], Awaitable[None]]


def intents(settings: DiscordIntents) -> int:
    return (
        (_GUILDS | _GUILD_MESSAGES | _DIRECT_MESSAGES)
        | (_MESSAGE_CONTENT if settings.message_content else 0)
        | (_GUILD_MEMBERS if settings.guild_members else 0)
        | (_PRESENCES if settings.presence else 0)
    )


class Connection:
    """One connection to the gateway. It hands over the events in order, and waits while they are handled."""

    def __init__(self, http: aiohttp.ClientSession, token: str, intents: int, handle: Handler) -> None:
        self._http = http
        self._token = token
        self._intents = intents
        self._handle = handle
        self._waiting: asyncio.Queue[Dispatch] = asyncio.Queue(MAX_WAITING)
        self._received: int | None = None
        self._acknowledged = True
        self.greeted = False
        self.established = False

    async def run(self, url: str, session: Session | None) -> None:
        """Serve the connection until it ends.

        Raises ReconnectAsked, SessionOver, Disconnected or LoginNeeded, according to how it ends.
        """
        ws = await self._open(url)
        try:
            with unwrap_exception_group(Disconnected, ReconnectAsked, SessionOver):
                async with asyncio.TaskGroup() as tasks:
                    interval_s = await self._hello(ws)
                    tasks.create_task(self._beat(ws, interval_s), name="discord heartbeat")
                    tasks.create_task(self._work(), name="discord events")
                    await ws.send_str(self._sign_in(session))
                    await self._read(ws)
        except ConnectionError as error:  # while writing
            raise Disconnected("the connection to Discord was lost") from error
        finally:
            # In the task that reads, because a close from another task loses the race against it and 1000
            # is sent.
            with contextlib.suppress(TimeoutError):  # a server that goes on sending would prolong it
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await ws.close(code=CLOSE_RESUMABLE)

    async def _open(self, url: str) -> aiohttp.ClientWebSocketResponse:
        import aiohttp
        from yarl import URL

        try:
            return await self._http.ws_connect(
                URL(url).update_query(v="10", encoding="json"),
                proxy=proxy_for(url),
                max_msg_size=MAX_FRAME_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
            )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Disconnected(f"the gateway of Discord cannot be reached: {type(error).__name__}") from error

    async def _hello(self, ws: aiohttp.ClientWebSocketResponse) -> float:
        """Wait for the first frame. Returns the interval of heartbeats in seconds."""
        try:
            async with asyncio.timeout(ESTABLISH_TIMEOUT_S):
                while (frame := await self._frame(ws)).get("op") != Op.HELLO:
                    pass
        except TimeoutError:
            raise Disconnected("the gateway of Discord did not answer in time") from None
        self.greeted = True
        data = frame.get("d")
        interval_ms = data.get("heartbeat_interval") if isinstance(data, dict) else None
        if not isinstance(interval_ms, int | float) or not interval_ms > 0:
            raise Disconnected("the gateway of Discord named no interval for heartbeats")
        return min(interval_ms / 1000, 120.0)

    def _sign_in(self, session: Session | None) -> str:
        if session is not None:
            self._received = session.seq
            return _frame_of(Op.RESUME, {"token": self._token, "session_id": session.id, "seq": session.seq})
        properties = {"os": sys.platform, "browser": "hobnob", "device": "hobnob"}
        return _frame_of(
            Op.IDENTIFY, {"token": self._token, "intents": self._intents, "properties": properties}
        )

    async def _beat(self, ws: aiohttp.ClientWebSocketResponse, interval_s: float) -> None:
        """Send heartbeats. One without an answer means that the connection is dead."""
        pause_s = interval_s * random.random()  # noqa: S311 - spreads the clients, no secret
        left_s = ESTABLISH_TIMEOUT_S
        while True:
            await asyncio.sleep(pause_s)
            if not self._acknowledged:
                raise Disconnected("Discord did not acknowledge a heartbeat")
            if not self.established and (left_s := left_s - pause_s) < 0:
                raise Disconnected("Discord did not accept the session in time")
            self._acknowledged = False
            with contextlib.suppress(ConnectionError):  # the task that reads finds out why
                await ws.send_str(_frame_of(Op.HEARTBEAT, self._received))
            pause_s = interval_s

    async def _work(self) -> None:
        """Hand over the events, several at once if they arrived faster than they were handled."""
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < MAX_BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            await self._handle(batch)

    async def _read(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            frame = await self._frame(ws)
            data = frame.get("d")
            match frame.get("op"):
                case Op.DISPATCH:
                    await self._on_dispatch(frame)
                case Op.HEARTBEAT:
                    await ws.send_str(_frame_of(Op.HEARTBEAT, self._received))
                case Op.RECONNECT:
                    raise ReconnectAsked
                case Op.INVALID_SESSION if data is not True:
                    raise SessionOver
                case Op.INVALID_SESSION:
                    raise Disconnected("Discord asks to resume the session later")
                case Op.HEARTBEAT_ACK:
                    self._acknowledged = True

    async def _on_dispatch(self, frame: dict[str, Any]) -> None:
        seq, name = frame.get("s"), frame.get("t")
        if not isinstance(seq, int) or not isinstance(name, str):
            return
        self._received = seq
        if name in ("READY", "RESUMED"):
            self.established = True
        # A full queue stops reading. If that lasts, a heartbeat is not acknowledged, and the session is
        # resumed after the last event that was handled.
        await self._waiting.put(Dispatch(seq, name, frame.get("d")))

    async def _frame(self, ws: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
        """The next frame. One that is not a JSON object is skipped."""
        import aiohttp

        while True:
            message = await ws.receive()
            if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                try:
                    frame = json_input.loads(message.data)
                except ValueError:
                    continue
                if isinstance(frame, dict):
                    return frame
            else:
                raise _ended(ws.close_code)


def _frame_of(op: int, data: Any) -> str:
    return orjson.dumps({"op": op, "d": data}).decode()


def _ended(code: int | None) -> Exception:
    if code in _USELESS_TO_RETRY:
        return LoginNeeded(f"{_USELESS_TO_RETRY[code]} (close code {code})")
    if code in _SESSION_IS_OVER:
        return SessionOver(f"close code {code}")
    return Disconnected(f"Discord closed the connection with code {code}")
