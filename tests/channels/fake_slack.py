"""A fake of Slack: the Web API methods the bot uses, Socket Mode, uploads and downloads, on loopback.

It behaves as Slack's documents say: an error is an answer with `ok: false`, a rate limit is status 429 with
`Retry-After`, an address of Socket Mode works once, and an envelope that is not answered is sent again. The
state survives `stop` and `start`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import WSMsgType, web

BOT_TOKEN, APP_TOKEN = "xoxb-1111111111-fake", "xapp-1-A111111-1111111111-fake"
BOT_USER, BOT_ID, TEAM, ROOM = "UBOT00001", "BBOT00001", "T00000001", "C0ROOM001"
SCOPES = frozenset(
    "chat:write channels:history channels:read files:read files:write groups:history groups:read im:history "
    "im:read im:write mpim:history mpim:read reactions:read reactions:write users:read".split()
)
_HISTORY = {"D": "im:history", "G": "mpim:history", "C": "channels:history"}
_NEEDS = {
    "chat.postMessage": "chat:write",
    "chat.update": "chat:write",
    "chat.delete": "chat:write",
    "reactions.add": "reactions:write",
    "reactions.remove": "reactions:write",
    "reactions.get": "reactions:read",
    "users.info": "users:read",
    "conversations.open": "im:write",
    "files.getUploadURLExternal": "files:write",
    "files.completeUploadExternal": "files:write",
    "files.info": "files:read",
}
MAX_TEXT = 40_000


def _reads(method: str) -> bool:
    """Whether a method only reads. Slack ignores JSON in calls of these."""
    return method.endswith((".info", ".history", ".replies", ".get", ".getUploadURLExternal"))


class Refused(Exception):
    """An answer with `ok: false`."""

    def __init__(self, error: str, **more: Any) -> None:
        super().__init__(error)
        self.answer = {"ok": False, "error": error} | more


@dataclass
class Envelope:
    """An event on its way to the app. `attempts` counts how often it was sent."""

    id: str
    payload: dict[str, Any]
    attempts: int = 0
    sent_to: web.WebSocketResponse | None = None


@dataclass
class FakeSlack:
    resend_after_s: float = 3.0
    """How long the app may take to answer an envelope before it is sent again."""
    port: int = 0
    messages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The messages of each conversation, oldest first, thread replies included."""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    """Ids of answered envelopes, in the order of the answers."""
    scopes: set[str] = field(default_factory=lambda: set(SCOPES))
    revoked: str | None = None
    """The error of every call, once the tokens are no longer valid."""
    refusals: dict[str, list[Callable[[], web.StreamResponse]]] = field(default_factory=dict)
    """Per method, what the next calls are answered with."""
    limited: dict[str, float] = field(default_factory=dict)
    """Per conversation, the seconds for which every message to it is limited."""
    limited_calls: int = 0
    lose_receipts: dict[str, int] = field(default_factory=dict)
    """Per method, how many of the next calls take effect without an answer."""
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    connections: list[web.WebSocketResponse] = field(default_factory=list)
    opened: int = 0
    """How many connections of Socket Mode there were."""
    posted: int = 0
    """How many messages the bot posted."""
    most_connections: int = 0
    """How many there were at once."""
    closed_links: Literal["", "refused", "dropped"] = ""
    """What becomes of new connections of Socket Mode."""
    deaf: bool = False
    """Messages cause no events, as when Slack has given up sending them."""
    withhold_files: bool = False
    """Files are answered with the sign-in page."""

    def __post_init__(self) -> None:
        self.changed = asyncio.Condition()
        self._numbers = itertools.count(1)
        self._pending: dict[str, Envelope] = {}
        self._tickets: set[str] = set()
        self._runner: web.AppRunner | None = None
        self._resending: asyncio.Task[None] | None = None
        self.add_user(BOT_USER, "hobnob", is_bot=True)
        self.messages[ROOM] = []

    # the server

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/api/{method}", self._api)
        app.router.add_get("/link/", self._link)
        app.router.add_post("/upload/{file}", self._upload)
        app.router.add_get("/files/{file}", self._download)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self._resending = asyncio.create_task(self._resend_unanswered())

    async def stop(self) -> None:
        if self._resending:
            self._resending.cancel()
        for socket in list(self.connections):
            if socket._req is not None and socket._req.transport is not None:
                socket._req.transport.abort()  # as when the machine is gone: no close frame
        if self._runner:
            await self._runner.cleanup()
        self._runner = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        return f"{self.url}/api/"

    # what people do

    def add_user(self, user: str, name: str, *, is_bot: bool = False) -> None:
        profile = {"display_name": name.capitalize(), "real_name": f"{name.capitalize()} Person"}
        self.users[user] = {"id": user, "name": name, "is_bot": is_bot, "profile": profile}

    def dm_of(self, user: str) -> str:
        """The direct conversation of a person with the bot."""
        channel = "D" + user[1:]
        self.messages.setdefault(channel, [])
        return channel

    async def post(
        self,
        channel: str,
        text: str,
        *,
        user: str,
        thread_ts: str | None = None,
        file: tuple[str, bytes] | None = None,
        **more: Any,
    ) -> str:
        """A person writes. The app gets the event, and `app_mention` besides when the bot is mentioned."""
        message: dict[str, Any] = {"type": "message", "user": user, "text": text, "ts": self.ts()} | more
        if thread_ts:
            message["thread_ts"] = thread_ts
            root = next((m for m in self.messages[channel] if m["ts"] == thread_ts), None)
            message["parent_user_id"] = root["user"] if root else user
        if file:
            shared = self.new_file(*file)
            message |= {"subtype": "file_share", "files": [shared]}
        self.messages[channel].append(message)
        await self.deliver(channel, message)
        return message["ts"]

    async def deliver(self, channel: str, message: dict[str, Any]) -> None:
        """Send the events of a message."""
        kind = {"D": "im", "G": "mpim"}.get(channel[0], "channel")
        await self.event(message | {"channel": channel, "channel_type": kind, "event_ts": message["ts"]})
        if f"<@{BOT_USER}>" in message["text"] and kind != "im":
            mention = {k: v for k, v in message.items() if k not in ("subtype", "parent_user_id")}
            await self.event(mention | {"type": "app_mention", "channel": channel, "event_ts": message["ts"]})

    async def event(self, event: dict[str, Any]) -> str:
        """Send an event of the Events API. Returns the id of its envelope."""
        if self.deaf:
            return ""
        number = next(self._numbers)
        payload = {
            "token": "x",
            "team_id": TEAM,
            "api_app_id": "A111111",
            "type": "event_callback",
            "event_id": f"Ev{number:08}",
            "event_time": 1_700_000_000,
            "event": event,
        }
        envelope = Envelope(f"env-{number}", payload)
        self._pending[envelope.id] = envelope
        await self._push(envelope)
        return envelope.id

    # what the app did

    async def until(self, condition: Callable[[], Any], limit_s: float = 60) -> None:
        """Wait for a change after which the condition holds."""
        async with asyncio.timeout(limit_s), self.changed:
            await self.changed.wait_for(condition)

    def sent(self, channel: str) -> list[dict[str, Any]]:
        """The messages of the bot in a conversation, oldest first."""
        return [m for m in self.messages.get(channel, []) if m.get("bot_id") == BOT_ID]

    @property
    def attempts(self) -> dict[str, int]:
        """How often each envelope that is not answered was sent."""
        return {envelope.id: envelope.attempts for envelope in self._pending.values()}

    @property
    def unanswered(self) -> list[str]:
        return list(self._pending)

    def refuse_next(self, method: str, error: str, **more: Any) -> None:
        body = {"ok": False, "error": error} | more
        self.refusals.setdefault(method, []).append(lambda: web.json_response(body))

    def limit_next(self, method: str, after_s: float) -> None:
        body = {"ok": False, "error": "ratelimited"}
        headers = {"Retry-After": str(max(1, round(after_s)))}
        self.refusals.setdefault(method, []).append(
            lambda: web.json_response(body, status=429, headers=headers)
        )

    def garbage_next(self, method: str, status: int = 200, text: str = "<html>oops</html>") -> None:
        self.refusals.setdefault(method, []).append(
            lambda: web.Response(status=status, text=text, content_type="text/html")
        )

    async def ask_to_reconnect(self, reason: str = "refresh_requested") -> None:
        for socket in list(self.connections):
            frame = {"type": "disconnect", "reason": reason, "debug_info": {"host": "applink-1"}}
            await socket.send_json(frame)

    async def raw_frame(self, text: str) -> None:
        for socket in list(self.connections):
            with contextlib.suppress(ConnectionError):  # the app may hang up before it has read everything
                await socket.send_str(text)

    # Socket Mode

    async def _link(self, request: web.Request) -> web.StreamResponse:
        if self.closed_links == "dropped" and request.transport is not None:
            request.transport.abort()
        if self.closed_links or request.query.get("ticket") not in self._tickets:
            raise web.HTTPForbidden
        self._tickets.discard(request.query["ticket"])
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.connections.append(socket)
        self.opened += 1
        self.most_connections = max(self.most_connections, len(self.connections))
        await socket.send_json(
            {
                "type": "hello",
                "num_connections": len(self.connections),
                "connection_info": {"app_id": "A111111"},
                "debug_info": {"host": "applink-1", "approximate_connection_time": 18060},
            }
        )
        await self._notify()
        for envelope in [e for e in self._pending.values() if e.sent_to not in self.connections]:
            await self._push(envelope)
        try:
            async for frame in socket:
                if frame.type is WSMsgType.TEXT:
                    answered = json.loads(frame.data).get("envelope_id")
                    if self._pending.pop(answered, None):
                        self.acknowledged.append(answered)
                    await self._notify()
        finally:
            self.connections.remove(socket)
            await self._notify()
        return socket

    async def _push(self, envelope: Envelope) -> None:
        """Send an envelope to one connection, the newest; without one it stays until there is one."""
        if not self.connections:
            return
        socket = envelope.sent_to = self.connections[-1]
        frame = {
            "type": "events_api",
            "envelope_id": envelope.id,
            "payload": envelope.payload,
            "accepts_response_payload": False,
            "retry_attempt": envelope.attempts,
            "retry_reason": "timeout" if envelope.attempts else "",
        }
        envelope.attempts += 1
        try:
            await socket.send_json(frame)
        except ConnectionError:
            envelope.sent_to = None

    async def _resend_unanswered(self) -> None:
        while True:
            await asyncio.sleep(self.resend_after_s)
            for envelope in [e for e in self._pending.values() if 0 < e.attempts <= 3]:
                await self._push(envelope)
            await self._notify()

    # the Web API

    async def _api(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        arguments = await self._arguments(request)
        self.calls.append((method, arguments))
        if self.refusals.get(method):
            await self._notify()
            return self.refusals[method].pop(0)()
        if method == "chat.postMessage" and (wait_s := self.limited.get(arguments.get("channel", ""))):
            self.limited_calls += 1
            self.limit_next(method, wait_s)
            await self._notify()
            return self.refusals[method].pop()()
        try:
            self._check_token(request, method, arguments)
            handler = getattr(self, "_" + method.replace(".", "_"), None)
            if handler is None:
                raise Refused("unknown_method")
            answer_body = {"ok": True} | handler(**arguments)
        except Refused as refused:
            answer_body = refused.answer
        except TypeError as wrong:
            answer_body = {"ok": False, "error": "invalid_arguments", "detail": str(wrong)}
        await self._echo(method, answer_body)
        await self._notify()
        if self.lose_receipts.get(method, 0) > 0:
            self.lose_receipts[method] -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(answer_body, headers={"X-OAuth-Scopes": ",".join(sorted(self.scopes))})

    async def _echo(self, method: str, answer: dict[str, Any]) -> None:
        """The app gets the events of its own messages too."""
        if not answer["ok"] or method not in ("chat.postMessage", "chat.update"):
            return
        channel = answer["channel"]
        message = self._find(channel, answer["ts"])
        if method == "chat.postMessage":
            await self.deliver(channel, message)
        else:
            changed = {"type": "message", "subtype": "message_changed", "hidden": True, "message": message}
            await self.event(changed | {"channel": channel, "ts": self.ts(), "channel_type": "channel"})

    async def _arguments(self, request: web.Request) -> dict[str, Any]:
        if request.content_type == "application/json":
            arguments: dict[str, Any] = {} if _reads(request.match_info["method"]) else await request.json()
        else:
            arguments = dict(request.query) | dict(await request.post())
        for name in ("metadata", "files"):  # nested values of a form are JSON
            if isinstance(arguments.get(name), str):
                arguments[name] = json.loads(arguments[name])
        arguments.pop("team_id", None)
        return arguments

    def _check_token(self, request: web.Request, method: str, arguments: dict[str, Any]) -> None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        given = given or arguments.pop("token", "")
        arguments.pop("token", None)
        if not given:
            raise Refused("not_authed")
        if self.revoked:
            raise Refused(self.revoked)
        if given not in (BOT_TOKEN, APP_TOKEN):
            raise Refused("invalid_auth")
        if (method == "apps.connections.open") is not (given == APP_TOKEN):
            raise Refused("not_allowed_token_type")
        needed = _NEEDS.get(method)
        if method in ("conversations.history", "conversations.replies"):
            needed = _HISTORY[arguments.get("channel", "C")[0]]
        if needed and needed not in self.scopes:
            raise Refused("missing_scope", needed=needed, provided=",".join(sorted(self.scopes)))

    def _auth_test(self) -> dict[str, Any]:
        names = {"url": "https://fake.slack.com/", "team": "Fake", "user": "hobnob"}
        return names | {"team_id": TEAM, "user_id": BOT_USER, "bot_id": BOT_ID}

    def _apps_connections_open(self) -> dict[str, Any]:
        ticket = f"ticket-{next(self._numbers)}"
        self._tickets.add(ticket)
        return {"url": f"ws://127.0.0.1:{self.port}/link/?ticket={ticket}&app_id=A111111"}

    def _chat_postMessage(self, channel: str, text: str = "", **more: Any) -> dict[str, Any]:
        channel = self._conversation(channel)
        if not text:
            raise Refused("no_text")
        if len(text) > MAX_TEXT:
            raise Refused("msg_too_long")
        message = self._own(text, more.get("thread_ts"))
        if more.get("metadata"):
            message["metadata"] = more["metadata"]
        self.messages[channel].append(message)
        self.posted += 1
        shown = {k: v for k, v in message.items() if k != "metadata"}
        return {"channel": channel, "ts": message["ts"], "message": shown}

    def _chat_update(self, channel: str, ts: str, text: str, **_: Any) -> dict[str, Any]:
        message = self._find(channel, ts)
        if message.get("bot_id") != BOT_ID:
            raise Refused("cant_update_message")
        if len(text) > MAX_TEXT:
            raise Refused("msg_too_long")
        message |= {"text": text, "edited": {"user": BOT_USER, "ts": self.ts()}}
        return {"channel": channel, "ts": ts, "text": text}

    def _chat_delete(self, channel: str, ts: str) -> dict[str, Any]:
        message = self._find(channel, ts)
        if message.get("bot_id") != BOT_ID:
            raise Refused("cant_delete_message")
        self.messages[channel].remove(message)
        return {"channel": channel, "ts": ts}

    def _reactions_add(self, channel: str, timestamp: str, name: str) -> dict[str, Any]:
        if not name.isascii() or ":" in name:
            raise Refused("invalid_name")
        reactions = self._find(channel, timestamp).setdefault("reactions", [])
        if any(r["name"] == name and BOT_USER in r["users"] for r in reactions):
            raise Refused("already_reacted")
        reactions.append({"name": name, "users": [BOT_USER], "count": 1})
        return {}

    def _reactions_remove(self, channel: str, timestamp: str, name: str) -> dict[str, Any]:
        reactions = self._find(channel, timestamp).get("reactions", [])
        mine = [r for r in reactions if r["name"] == name and BOT_USER in r["users"]]
        if not mine:
            raise Refused("no_reaction")
        reactions.remove(mine[0])
        return {}

    def _reactions_get(self, channel: str, timestamp: str, **_: Any) -> dict[str, Any]:
        return {"type": "message", "message": self._find(channel, timestamp)}

    def _users_info(self, user: str) -> dict[str, Any]:
        if user not in self.users:
            raise Refused("user_not_found")
        return {"user": self.users[user]}

    def _conversations_open(self, users: str, **_: Any) -> dict[str, Any]:
        if users not in self.users:
            raise Refused("user_not_found")
        return {"channel": {"id": self.dm_of(users)}}

    def _conversations_info(self, channel: str) -> dict[str, Any]:
        self._conversation(channel)
        kind = {"is_im": channel[0] == "D", "is_mpim": channel[0] == "G"}
        name = {} if kind["is_im"] else {"name": "room" if channel == ROOM else channel.lower()}
        return {"channel": {"id": channel} | kind | name}

    def _conversations_history(self, channel: str, **options: Any) -> dict[str, Any]:
        """Newest first. Replies are not in it."""
        found = [
            m for m in self.messages[self._conversation(channel)] if m.get("thread_ts") in (None, m["ts"])
        ]
        return self._page(found[::-1], **options)

    def _conversations_replies(self, channel: str, ts: str, **options: Any) -> dict[str, Any]:
        """The root and its replies, oldest first."""
        found = [m for m in self.messages[self._conversation(channel)] if ts in (m["ts"], m.get("thread_ts"))]
        if not found:
            raise Refused("thread_not_found")
        return self._page(found, **options)

    def _page(
        self,
        found: list[dict[str, Any]],
        *,
        limit: Any = 100,
        cursor: str = "",
        oldest: str = "0",
        include_all_metadata: Any = False,
        **_: Any,
    ) -> dict[str, Any]:
        found = [m for m in found if float(m["ts"]) > float(oldest)]
        start, size = int(cursor or 0), int(limit)
        page = found[start : start + size]
        if str(include_all_metadata).lower() not in ("true", "1"):
            page = [{k: v for k, v in m.items() if k != "metadata"} for m in page]
        more = start + size < len(found)
        next_cursor = str(start + size) if more else ""
        return {"messages": page, "has_more": more, "response_metadata": {"next_cursor": next_cursor}}

    # files

    def _files_getUploadURLExternal(self, filename: str, length: Any, **_: Any) -> dict[str, Any]:
        file = self.files[self.new_file(filename, None)["id"]]
        file["size"] = int(length)
        return {"file_id": file["id"], "upload_url": f"{self.url}/upload/{file['id']}"}

    async def _upload(self, request: web.Request) -> web.Response:
        file = self.files[request.match_info["file"]]
        if request.content_type.startswith("multipart/"):
            form = await request.post()
            (part,) = [v for v in form.values() if isinstance(v, web.FileField)]
            content = part.file.read()
        else:
            content = await request.read()
        if len(content) != file["size"]:
            return web.Response(status=400, text="length mismatch")
        file["content"] = content
        return web.Response(text=f"OK - {len(content)}")

    def _files_completeUploadExternal(
        self, files: list[dict[str, str]], channel_id: str = "", channels: str = "", **more: Any
    ) -> dict[str, Any]:
        if not (target := channel_id or channels):
            return {"files": []}
        channel = self._conversation(target)
        shared = [self.files[f["id"]] for f in files]
        if any(f["content"] is None for f in shared):
            raise Refused("file_not_found")
        message = self._own(more.get("initial_comment") or "", more.get("thread_ts"))
        message["files"] = [self._file_object(f) for f in shared]
        self.messages[channel].append(message)
        for f in shared:
            f["shares"] = {"private": {channel: [{"ts": message["ts"]}]}}
        return {"files": [self._file_object(f) for f in shared]}

    def _files_info(self, file: str, **_: Any) -> dict[str, Any]:
        if file not in self.files:
            raise Refused("file_not_found")
        return {"file": self._file_object(self.files[file])}

    async def _download(self, request: web.Request) -> web.Response:
        if self.withhold_files or request.headers.get("Authorization") != f"Bearer {BOT_TOKEN}":
            return web.Response(text="<!DOCTYPE html><title>Sign in</title>", content_type="text/html")
        return web.Response(body=self.files[request.match_info["file"]]["content"])

    def new_file(self, name: str, content: bytes | None) -> dict[str, Any]:
        number = f"F{next(self._numbers):08}"
        kind = "image/png" if name.endswith(".png") else "text/plain"
        self.files[number] = {"id": number, "name": name, "mimetype": kind, "content": content, "shares": {}}
        self.files[number]["size"] = len(content or b"")
        return self._file_object(self.files[number])

    def _file_object(self, file: dict[str, Any]) -> dict[str, Any]:
        shown = {k: v for k, v in file.items() if k != "content"}
        address = f"{self.url}/files/{file['id']}"
        return shown | {"url_private": address, "url_private_download": address}

    # state

    def _conversation(self, channel: str) -> str:
        if channel in self.users:  # posting to a person posts in the direct conversation
            return self.dm_of(channel)
        if channel not in self.messages:
            raise Refused("channel_not_found")
        return channel

    def _find(self, channel: str, ts: str) -> dict[str, Any]:
        for message in self.messages[self._conversation(channel)]:
            if message["ts"] == ts:
                return message
        raise Refused("message_not_found")

    def _own(self, text: str, thread_ts: str | None) -> dict[str, Any]:
        message: dict[str, Any] = {"type": "message", "user": BOT_USER, "bot_id": BOT_ID, "text": text}
        return message | {"ts": self.ts()} | ({"thread_ts": thread_ts} if thread_ts else {})

    def ts(self) -> str:
        return f"{int(time.time())}.{next(self._numbers):06}"

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()
