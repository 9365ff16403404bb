"""A fake Discord: the part of the REST API and of the gateway that bots use, as its documents describe them.

It has one server with one channel, some people and one bot. What it does is checked with `discord.py` in
`test_fake_discord.py`. Messages outlive `stop`; gateway sessions do too.
"""

import asyncio
import base64
import json
import re
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from tests.channels import discord_objects as objects
from tests.channels.discord_objects import BOT_ID, BOT_ROLE_ID, FORUM_ID, GUILD_ID, ROOM_ID

EPOCH_MS = 1_420_070_400_000
TOKEN = base64.b64encode(BOT_ID.encode()).decode().rstrip("=") + ".fakefake.not-a-secret-at-all"
MESSAGE_CONTENT = 1 << 15
DIRECT_MESSAGES = 1 << 12


@dataclass
class GatewaySession:
    """A session keeps every event, so that it can be resumed from any."""

    id: str
    intents: int
    log: list[dict[str, Any]] = field(default_factory=list)
    connection: "Connection | None" = None


class Connection:
    """A WebSocket of a bot."""

    def __init__(self, ws: web.WebSocketResponse, request: web.Request) -> None:
        self.ws = ws
        self.transport = request.transport
        self._zlib = zlib.compressobj() if request.query.get("compress") == "zlib-stream" else None
        self.closed_by_us = False

    async def send(self, op: int, d: Any, s: int | None = None, t: str | None = None) -> None:
        if self.ws.closed:
            return
        text = json.dumps({"op": op, "d": d, "s": s, "t": t})
        if self._zlib is None:
            await self.ws.send_str(text)
        else:
            packed = self._zlib.compress(text.encode()) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
            await self.ws.send_bytes(packed)

    async def close(self, code: int) -> None:
        self.closed_by_us = True
        await self.ws.close(code=code)

    def abort(self) -> None:
        self.closed_by_us = True
        if self.transport is not None:
            self.transport.abort()


class FakeDiscord:
    def __init__(self) -> None:
        self.port = 0
        self.users = {BOT_ID: objects.user(BOT_ID, "hobnob", bot=True)}
        self.nicknames: dict[str, str] = {}
        self.member_roles: dict[str, list[str]] = {}
        self.channels: dict[str, dict[str, Any]] = {
            ROOM_ID: objects.channel(ROOM_ID, 0, "general"),
            FORUM_ID: objects.channel(FORUM_ID, 15, "questions"),
        }
        self.messages: dict[str, list[dict[str, Any]]] = {}
        self.files: dict[str, bytes] = {}
        self.sessions: dict[str, GatewaySession] = {}
        self.requests: list[tuple[str, str, Any]] = []
        """Method, path and body of each request."""
        self.sign_ins: list[str] = []
        """`identify` or `resume`, for each accepted sign-in."""
        self.close_codes: list[int] = []
        """Codes with which the bot closed its connections."""
        self.token = TOKEN
        self.heartbeat_ms = 41_250
        self.acknowledges = True
        self.granted_intents = ~0
        self.closed_to_bots: set[str] = set()
        """People who take no direct messages."""
        self.bucket_size: int | None = None
        """Messages that a channel takes in `bucket_s` seconds."""
        self.bucket_s = 5.0
        self._counts: dict[str, tuple[int, float]] = {}
        self.faults: list[Callable[[web.Request], web.Response | None]] = []
        """Each answers the next message of the bot in its own way."""
        self.lose_receipts = 0
        """How many of the next messages are taken, but not answered."""
        self.instead: dict[str, Callable[[web.Request], Awaitable[web.Response]]] = {}
        """Answers in place of the usual ones, by path."""
        self.instead_of_receipts: list[web.Response] = []
        """Answers to the next messages of the bot, which are taken."""
        self.history_fails = 0
        """How many of the next requests for the messages of a chat fail."""
        self.withheld = False
        """Whether the bot sees its own messages only when the session is resumed."""
        self.refused_by_limit = 0
        """Messages that exceeded a bucket."""
        self._nonces: dict[str, dict[str, Any]] = {}
        self._last_id = 0
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v10"

    async def start(self) -> None:
        app = web.Application(client_max_size=32 * 1024 * 1024, middlewares=[self._checked])
        app.add_routes(
            [
                web.get("/gateway", self._gateway),
                web.get("/attachments/{channel}/{attachment}/{name}", self._download),
                web.get("/api/v10/gateway/bot", self._gateway_bot),
                web.get("/api/v10/users/@me", self._me),
                web.post("/api/v10/users/@me/channels", self._open_dm),
                web.get("/api/v10/applications/@me", self._application),
                web.get("/api/v10/oauth2/applications/@me", self._application),
                web.get("/api/v10/guilds/{guild}/roles", self._roles),
                web.get("/api/v10/guilds/{guild}/members/{user}", self._member),
                web.get("/api/v10/channels/{channel}", self._channel),
                web.get("/api/v10/channels/{channel}/messages", self._history),
                web.post("/api/v10/channels/{channel}/messages", self._post),
                web.get("/api/v10/channels/{channel}/messages/{message}", self._get_message),
                web.patch("/api/v10/channels/{channel}/messages/{message}", self._edit),
                web.delete("/api/v10/channels/{channel}/messages/{message}", self._delete),
                web.put("/api/v10/channels/{channel}/messages/{message}/reactions/{emoji}/@me", self._react),
                web.delete(
                    "/api/v10/channels/{channel}/messages/{message}/reactions/{emoji}/@me", self._unreact
                ),
                web.post("/api/v10/channels/{channel}/typing", self._typing),
                web.post("/api/v10/channels/{channel}/threads", self._create_thread),
                web.post("/api/v10/channels/{channel}/messages/{message}/threads", self._create_thread),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self.drop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # What tests do to it.

    def drop(self) -> None:
        """Every connection to the gateway breaks; the sessions stay."""
        for session in self.sessions.values():
            if session.connection is not None:
                session.connection.abort()
                session.connection = None

    async def ask_to_reconnect(self) -> None:
        for connection in self.connections():
            await connection.send(7, None)

    async def close(self, code: int) -> None:
        for connection in self.connections():
            await connection.close(code)

    def forget_sessions(self) -> None:
        """The sessions are too old: their connections break, and they cannot be resumed."""
        self.drop()
        self.sessions.clear()

    def connections(self) -> list[Connection]:
        return [s.connection for s in self.sessions.values() if s.connection is not None]

    async def send_raw(self, data: str) -> None:
        """Send something that is no event."""
        for connection in self.connections():
            await connection.ws.send_str(data)

    async def until(self, condition: Callable[[], Any], limit_s: float = 60) -> None:
        async with asyncio.timeout(limit_s), self._changed:
            await self._changed.wait_for(condition)

    def person(self, name: str) -> dict[str, Any]:
        """A user by name; a new one the first time."""
        for user in self.users.values():
            if user["username"] == name:
                return user
        user = objects.user(str(1500000000000000000 + len(self.users)), name)
        return self.users.setdefault(user["id"], user)

    def dm(self, user_id: str) -> dict[str, Any]:
        """The direct chat of a person and the bot."""
        for channel in self.channels.values():
            if channel["type"] == 1 and channel["recipients"][0]["id"] == user_id:
                return channel
        recipients = [self.users[user_id]]
        new = {"id": self.new_id(), "type": 1, "recipients": recipients, "last_message_id": None}
        return self.channels.setdefault(new["id"], new)

    async def open_thread(self, name: str, parent: str = ROOM_ID) -> dict[str, Any]:
        thread = self._new_thread(
            self.new_id(), parent, {"name": name, "type": 11}, owner="1500000000000000001"
        )
        await self.dispatch("THREAD_CREATE", {**thread, "newly_created": True})
        return thread

    async def say(self, author_id: str, channel_id: str, content: str, **fields: Any) -> dict[str, Any]:
        """A person writes a message."""
        files: list[tuple[str, str, bytes]] = fields.pop("files", [])
        size: int | None = fields.pop("claimed_size", None)
        message = self._new_message(author_id, channel_id, {"content": content, **fields}, files)
        if size is not None:
            message["attachments"][0]["size"] = size
        await self.dispatch_message(message)
        return message

    async def dispatch_message(self, message: dict[str, Any]) -> None:
        channel = self.channels[message["channel_id"]]
        extra: dict[str, Any] = {}
        if channel["type"] != 1:
            extra = {"guild_id": GUILD_ID, "member": self._member_of(message["author"]["id"])}
            extra["member"].pop("user")
        await self.dispatch("MESSAGE_CREATE", {**message, **extra})

    async def dispatch(self, name: str, data: dict[str, Any]) -> None:
        """An event for every session, connected or not."""
        for session in list(self.sessions.values()):
            await self._dispatch_to(session, name, data)
        await self._notify()

    # The gateway.

    async def _gateway(self, request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse(autoping=True, timeout=1)
        await ws.prepare(request)
        connection = Connection(ws, request)
        if request.query.get("v") != "10" or request.query.get("encoding") != "json":
            await connection.close(4012)
            return ws
        await connection.send(10, {"heartbeat_interval": self.heartbeat_ms, "_trace": ["fake"]})
        session: GatewaySession | None = None
        async for message in ws:
            try:
                frame = json.loads(message.data)  # text or bytes
                op, d = frame["op"], frame["d"]
            except (ValueError, TypeError, KeyError):
                await connection.close(4002)
                break
            if op == 1:
                if self.acknowledges:
                    await connection.send(11, None)
            elif op in (2, 6) and session is not None:
                await connection.close(4005)
            elif op == 2:
                session = await self._identify(connection, d)
            elif op == 6:
                session = await self._resume(connection, d)
            elif session is None:
                await connection.close(4003)
            elif op not in (3, 4, 8):
                await connection.close(4001)
        if session is not None and session.connection is connection:
            session.connection = None
        # Only the bot's own close ends a session, not its echo of ours.
        if not connection.closed_by_us and ws.close_code is not None:
            self.close_codes.append(ws.close_code)
            if ws.close_code in (1000, 1001) and session is not None:
                self.sessions.pop(session.id, None)
        await self._notify()
        return ws

    async def _identify(self, connection: Connection, d: dict[str, Any]) -> GatewaySession | None:
        if d.get("token") != self.token:
            await connection.close(4004)
            return None
        intents = d.get("intents")
        if not isinstance(intents, int) or "properties" not in d:
            await connection.close(4013)
            return None
        if intents & ~self.granted_intents:
            await connection.close(4014)
            return None
        session = GatewaySession(f"session{self.new_id()}", intents, connection=connection)
        self.sessions[session.id] = session
        self.sign_ins.append("identify")
        ready = {
            "v": 10,
            "user": objects.own_user(self.users[BOT_ID]),
            "guilds": [{"id": GUILD_ID, "unavailable": True}],
            "session_id": session.id,
            "resume_gateway_url": f"ws://127.0.0.1:{self.port}/gateway",
            "application": {"id": BOT_ID, "flags": 1 << 19},
            "private_channels": [],
        }
        await self._dispatch_to(session, "READY", ready)
        await self._dispatch_to(session, "GUILD_CREATE", self._guild())
        await self._notify()
        return session

    async def _resume(self, connection: Connection, d: dict[str, Any]) -> GatewaySession | None:
        session = self.sessions.get(d.get("session_id", ""))
        if d.get("token") != self.token:
            await connection.close(4004)
            return None
        if session is None:
            await connection.send(9, False)
            return None
        if not isinstance(d.get("seq"), int) or d["seq"] > len(session.log):
            await connection.close(4007)
            return None
        if session.connection is not None:
            await session.connection.close(4009)
        session.connection = connection
        for event in session.log[d["seq"] :]:
            if event["t"] != "RESUMED":
                await connection.send(**event)
        self.sign_ins.append("resume")
        await self._dispatch_to(session, "RESUMED", {"_trace": ["fake"]})
        await self._notify()
        return session

    async def _dispatch_to(self, session: GatewaySession, name: str, data: dict[str, Any]) -> None:
        if name == "MESSAGE_CREATE":
            if "guild_id" not in data and not session.intents & DIRECT_MESSAGES:
                return
            sees = (
                session.intents & MESSAGE_CONTENT or "guild_id" not in data or data["author"]["id"] == BOT_ID
            )
            if not sees and BOT_ID not in [user["id"] for user in data["mentions"]]:
                data = {**data, "content": "", "attachments": [], "embeds": []}
        event = {"op": 0, "d": data, "s": len(session.log) + 1, "t": name}
        session.log.append(event)
        withheld = self.withheld and name == "MESSAGE_CREATE" and data["author"]["id"] == BOT_ID
        if session.connection is not None and not withheld:
            try:
                await session.connection.send(**event)
            except ConnectionError:
                session.connection = None

    # REST.

    @web.middleware
    async def _checked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if not request.path.startswith("/api/"):
            return await handler(request)
        body: Any = None
        if request.content_type == "application/json" and request.can_read_body:
            try:
                body = await request.json()
            except ValueError:
                return objects.refusal(400, 50109, "The request body contains invalid JSON.")
        self.requests.append((request.method, request.path.removeprefix("/api/v10"), body))
        if request.headers.get("Authorization") != f"Bot {self.token}":
            return objects.refusal(401, 0, "401: Unauthorized")
        if not request.headers.get("User-Agent", "").startswith("DiscordBot ("):
            return objects.refusal(403, 40333, "internal network error")
        channel_id = request.match_info.get("channel")
        if channel_id is not None and channel_id not in self.channels:
            return objects.refusal(404, 10003, "Unknown Channel")
        message_id = request.match_info.get("message")
        if channel_id and message_id and self._find(channel_id, message_id) is None:
            return objects.refusal(404, 10008, "Unknown Message")
        response = await self.instead.get(request.path.removeprefix("/api/v10"), handler)(request)
        await self._notify()
        return response

    async def _gateway_bot(self, _: web.Request) -> web.Response:
        limit = {"total": 1000, "remaining": 1000, "reset_after": 0, "max_concurrency": 1}
        url = f"ws://127.0.0.1:{self.port}/gateway"
        return objects.answer({"url": url, "shards": 1, "session_start_limit": limit})

    async def _me(self, _: web.Request) -> web.Response:
        return objects.answer(objects.own_user(self.users[BOT_ID]))

    async def _application(self, _: web.Request) -> web.Response:
        granted = bool(self.granted_intents & MESSAGE_CONTENT)
        return objects.answer(objects.application(self.person("ann"), 1 << 19 if granted else 0))

    async def _open_dm(self, request: web.Request) -> web.Response:
        user_id = str((await objects.body(request)).get("recipient_id"))
        if user_id not in self.users:
            return objects.refusal(400, 50033, "Invalid Recipient(s)")
        return objects.answer(self.dm(user_id))

    async def _roles(self, _: web.Request) -> web.Response:
        return objects.answer(objects.roles())

    async def _member(self, request: web.Request) -> web.Response:
        user_id = request.match_info["user"]
        if user_id not in self.users:
            return objects.refusal(404, 10007, "Unknown Member")
        return objects.answer(self._member_of(user_id))

    async def _channel(self, request: web.Request) -> web.Response:
        channel = self.channels[request.match_info["channel"]]
        return objects.answer(channel if channel["type"] == 1 else {**channel, "guild_id": GUILD_ID})

    async def _history(self, request: web.Request) -> web.Response:
        if self.history_fails:
            self.history_fails -= 1
            return web.Response(status=503)
        found = self.messages.get(request.match_info["channel"], [])
        limit = int(request.query.get("limit", "50"))
        if not 1 <= limit <= 100:
            return objects.refusal(400, 50035, "Invalid Form Body")
        if "after" in request.query:  # the ones next to it, but in the usual order
            found = [m for m in found if int(m["id"]) > int(request.query["after"])][:limit]
        else:
            before = int(request.query.get("before", str(1 << 63)))
            found = [m for m in found if int(m["id"]) < before][-limit:]
        return objects.answer(found[::-1])

    async def _get_message(self, request: web.Request) -> web.Response:
        return objects.answer(self._find(request.match_info["channel"], request.match_info["message"]))

    async def _post(self, request: web.Request) -> web.Response:
        channel_id = request.match_info["channel"]
        body, files = (await objects.body(request)), []
        if request.content_type == "multipart/form-data":
            body, files = await self._form(request)
            self.requests[-1] = (*self.requests[-1][:2], body)
        if self.faults and (answer := self.faults.pop(0)(request)) is not None:
            return answer
        if (limited := self._counted(channel_id)) is not None:
            return limited
        channel = self.channels[channel_id]
        if channel["type"] == 1 and channel["recipients"][0]["id"] in self.closed_to_bots:
            return objects.refusal(403, 50007, "Cannot send messages to this user")
        content, nonce = body.get("content") or "", body.get("nonce")
        if len(content) > 2000 or (nonce is not None and len(str(nonce)) > 25):
            return objects.refusal(400, 50035, "Invalid Form Body")
        if not content and not files:
            return objects.refusal(400, 50006, "Cannot send an empty message")
        if body.get("enforce_nonce") and nonce is not None and str(nonce) in self._nonces:
            message = self._nonces[str(nonce)]
        else:
            message = self._new_message(BOT_ID, channel_id, body, files)
            if nonce is not None:
                self._nonces[str(nonce)] = message
            await self.dispatch_message(message)
        if self.instead_of_receipts:
            return self.instead_of_receipts.pop(0)
        if self.lose_receipts:
            self.lose_receipts -= 1
            assert request.transport is not None
            request.transport.abort()
        return objects.answer(message, headers=self._bucket_headers(channel_id))

    async def _form(self, request: web.Request) -> tuple[dict[str, Any], list[tuple[str, str, bytes]]]:
        body: dict[str, Any] = {}
        files: list[tuple[str, str, bytes]] = []
        async for part in await request.multipart():
            data = bytes(await part.read())
            if part.name == "payload_json":
                body = json.loads(data)
            elif part.name and part.name.startswith("files["):
                files.append((part.filename or "", part.headers.get("Content-Type", ""), data))
        return body, files

    async def _edit(self, request: web.Request) -> web.Response:
        message = self._find(request.match_info["channel"], request.match_info["message"])
        assert message is not None
        if message["author"]["id"] != BOT_ID:
            return objects.refusal(403, 50005, "Cannot edit a message authored by another user")
        message["content"] = (await objects.body(request)).get("content") or ""
        message["edited_timestamp"] = objects.now()
        await self.dispatch("MESSAGE_UPDATE", {**message, "guild_id": GUILD_ID})
        return objects.answer(message)

    async def _delete(self, request: web.Request) -> web.Response:
        message = self._find(request.match_info["channel"], request.match_info["message"])
        assert message is not None
        self.messages[message["channel_id"]].remove(message)
        return web.Response(status=204)

    async def _react(self, request: web.Request) -> web.Response:
        message = self._find(request.match_info["channel"], request.match_info["message"])
        assert message is not None
        name = request.match_info["emoji"]
        if name.isascii() and ":" not in name:
            return objects.refusal(400, 10014, "Unknown Emoji")
        if name not in [reaction["emoji"]["name"] for reaction in message["reactions"]]:
            message["reactions"].append({"count": 1, "me": True, "emoji": {"id": None, "name": name}})
        return web.Response(status=204)

    async def _unreact(self, request: web.Request) -> web.Response:
        message = self._find(request.match_info["channel"], request.match_info["message"])
        assert message is not None
        name = request.match_info["emoji"]
        message["reactions"] = [r for r in message["reactions"] if r["emoji"]["name"] != name]
        return web.Response(status=204)

    async def _typing(self, _: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _create_thread(self, request: web.Request) -> web.Response:
        body, parent = (await objects.body(request)), self.channels[request.match_info["channel"]]
        if not 1 <= len(body.get("name", "")) <= 100:
            return objects.refusal(400, 50035, "Invalid Form Body")
        if parent["type"] not in (0, 5):
            return objects.refusal(400, 50024, "Cannot execute action on this channel type")
        thread_id = request.match_info.get("message") or self.new_id()
        if thread_id in self.channels:
            return objects.refusal(400, 160004, "A thread has already been created for this message")
        thread = self._new_thread(thread_id, parent["id"], body, owner=BOT_ID)
        await self.dispatch("THREAD_CREATE", {**thread, "newly_created": True})
        return objects.answer(thread, status=201)

    async def _download(self, request: web.Request) -> web.Response:
        if "Authorization" in request.headers:
            return web.Response(status=400, text="the token does not belong here")
        data = self.files.get(request.match_info["attachment"])
        return web.Response(status=404) if data is None else web.Response(body=data)

    # What it knows.

    def new_id(self) -> str:
        self._last_id = max(self._last_id + 1, (int(time.time() * 1000) - EPOCH_MS) << 22)
        return str(self._last_id)

    def _find(self, channel_id: str, message_id: str) -> dict[str, Any] | None:
        return next((m for m in self.messages.get(channel_id, []) if m["id"] == message_id), None)

    def _new_message(
        self, author_id: str, channel_id: str, body: dict[str, Any], files: list[tuple[str, str, bytes]]
    ) -> dict[str, Any]:
        content = body.get("content") or ""
        message = objects.message(self.new_id(), channel_id, self.users[author_id], content) | {
            "mentions": [user for user in self.users.values() if re.search(f"<@!?{user['id']}>", content)],
            "mention_roles": [BOT_ROLE_ID] if f"<@&{BOT_ROLE_ID}>" in content else [],
            "attachments": [self._new_file(channel_id, *file) for file in files],
            "flags": body.get("flags", 0),
        }
        if "nonce" in body:
            message["nonce"] = body["nonce"]
        reference = body.get("message_reference")
        quoted = self._find(channel_id, str(reference["message_id"])) if reference else None
        if quoted is not None:
            place = {"channel_id": channel_id, "message_id": quoted["id"]}
            message |= {"type": 19, "message_reference": place, "referenced_message": dict(quoted)}
        message |= {name: body[name] for name in ("type", "webhook_id", "message_snapshots") if name in body}
        self.messages.setdefault(channel_id, []).append(message)
        self.channels[channel_id]["last_message_id"] = message["id"]
        return message

    def _new_file(self, channel_id: str, name: str, mime_type: str, data: bytes) -> dict[str, Any]:
        file_id = self.new_id()
        self.files[file_id] = data
        url = f"http://127.0.0.1:{self.port}/attachments/{channel_id}/{file_id}/{name}?ex=1"
        return {
            "id": file_id,
            "filename": name,
            "content_type": mime_type,
            "size": len(data),
            "url": url,
            "proxy_url": url,
        }

    def _new_thread(self, thread_id: str, parent: str, body: dict[str, Any], *, owner: str) -> dict[str, Any]:
        minutes = body.get("auto_archive_duration", 1440)
        thread = objects.thread(thread_id, body["name"], parent, owner, body.get("type", 11), minutes)
        return self.channels.setdefault(thread_id, thread)

    def _member_of(self, user_id: str) -> dict[str, Any]:
        roles = [BOT_ROLE_ID] if user_id == BOT_ID else self.member_roles.get(user_id, [])
        return objects.member(self.users[user_id], self.nicknames.get(user_id), roles)

    def _guild(self) -> dict[str, Any]:
        chats = [channel for channel in self.channels.values() if channel["type"] != 1]
        members = [self._member_of(user_id) for user_id in self.users]
        return objects.guild(self.person("ann")["id"], chats, members)

    def _counted(self, channel_id: str) -> web.Response | None:
        """Count a message of the bot; an answer if there are too many."""
        if self.bucket_size is None:
            return None
        used, until = self._counts.get(channel_id, (0, 0.0))
        if time.monotonic() >= until:
            used, until = 0, time.monotonic() + self.bucket_s
        if used >= self.bucket_size:
            self.refused_by_limit += 1
            return objects.rate_limited(until - time.monotonic())
        self._counts[channel_id] = used + 1, until
        return None

    def _bucket_headers(self, channel_id: str) -> dict[str, str]:
        used, until = self._counts.get(channel_id, (0, time.monotonic() + self.bucket_s))
        size = self.bucket_size or 1000
        left_s = max(0.0, until - time.monotonic())
        return {
            "X-RateLimit-Limit": str(size),
            "X-RateLimit-Remaining": str(size - used),
            "X-RateLimit-Reset": f"{time.time() + left_s:.3f}",
            "X-RateLimit-Reset-After": f"{left_s:.3f}",
            "X-RateLimit-Bucket": "b0b0messages",
        }

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
