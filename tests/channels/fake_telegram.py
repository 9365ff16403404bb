"""A fake of the Telegram Bot API on loopback: what the documents of the API say about the methods in use.

`test_fake_telegram.py` keeps it honest: a well-known library for the API has to get along with it.
"""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from aiohttp import web

TOKEN = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
BOT = {
    "id": 110201543,
    "is_bot": True,
    "first_name": "Hobnob",
    "username": "hobnob_test_bot",
    "can_join_groups": True,
    "can_read_all_group_messages": True,
    "supports_inline_queries": False,
}
FORUM = -1001234567890
GROUP = -1009876543210
_TAGS = {"b", "strong", "i", "em", "u", "s", "code", "pre", "a", "blockquote", "tg-spoiler"}
_FILE_FIELDS = ("document", "photo", "voice", "audio", "video")


class ApiError(Exception):
    def __init__(self, status: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.status = status
        self.parameters = parameters


@dataclass
class Sent:
    """A message of the bot."""

    message_id: int
    chat_id: int
    text: str
    html: str
    thread_id: int | None
    reply_to: int | None
    file: bytes | None = None
    file_method: str | None = None
    edits: int = 0


@dataclass
class FakeTelegram:
    port: int = 0
    token: str = TOKEN
    sent: list[Sent] = field(default_factory=list)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Methods in the order of their calls, without the polls."""
    updates: list[dict[str, Any]] = field(default_factory=list)
    """Updates that no poll has confirmed."""
    offsets: list[int | None] = field(default_factory=list)
    reactions: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    actions: list[dict[str, Any]] = field(default_factory=list)
    topics: set[int] = field(default_factory=set)
    files: dict[str, bytes] = field(default_factory=dict)
    moved: dict[int, int] = field(default_factory=dict)
    """Groups that have another id now."""
    webhook: str = ""
    may_manage_topics: bool = True
    failures: list[Callable[[str, dict[str, Any]], web.StreamResponse | None]] = field(default_factory=list)
    """The first of them answers the next message of the bot, or raises ApiError."""
    lose_receipts: int = 0
    _chats: dict[int, dict[str, Any]] = field(default_factory=dict)
    _next_message: int = 100
    _next_update: int = 5000
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _polls: int = 0
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start the server, or start it again on the same port with everything it had."""
        self._chats.setdefault(FORUM, {"id": FORUM, "type": "supergroup", "title": "Room", "is_forum": True})
        self._chats.setdefault(GROUP, {"id": GROUP, "type": "supergroup", "title": "Plain room"})
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/bot{token}/{method}", self._on_call)
        app.router.add_get("/file/bot{token}/{path:.*}", self._on_file)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()
            await asyncio.sleep(0)  # closed connections end in the next round of the loop

    # --- What people do

    def chat(self, chat_id: int) -> dict[str, Any]:
        return self._chats[chat_id]

    def person(self, user_id: int, name: str, **more: Any) -> dict[str, Any]:
        """A person, who has a private chat with the bot."""
        chat = {"id": user_id, "type": "private", "first_name": name, "username": name.lower()}
        self._chats.setdefault(user_id, chat)
        return {"id": user_id, "is_bot": False, "first_name": name, "username": name.lower()} | more

    async def write(self, sender: dict[str, Any] | None, chat_id: int, **message: Any) -> dict[str, Any]:
        """Somebody writes a message. Returns it as the API shows it."""
        self._next_message += 1
        made = {"message_id": self._next_message, "date": int(time.time()), "chat": self._chats[chat_id]}
        if sender is not None:
            made["from"] = sender
        made |= message
        await self.push({"message" if sender is not None else "channel_post": made})
        return made

    async def push(self, update: dict[str, Any]) -> int:
        async with self._changed:
            self._next_update += 1
            self.updates.append({"update_id": self._next_update} | update)
            self._changed.notify_all()
        return self._next_update

    async def open_topic(self, sender: dict[str, Any], name: str) -> int:
        opened = await self.write(sender, FORUM, forum_topic_created={"name": name, "icon_color": 7322096})
        topic = int(opened["message_id"])
        opened |= {"message_thread_id": topic, "is_topic_message": True}
        self.topics.add(topic)
        return topic

    def add_file(self, content: bytes) -> str:
        file_id = f"file-{len(self.files) + 1}"
        self.files[file_id] = content
        return file_id

    async def until(self, condition: Callable[[], Any], limit_s: float = 60) -> None:
        async with asyncio.timeout(limit_s), self._changed:
            await self._changed.wait_for(condition)

    # --- The server

    async def _on_call(self, request: web.Request) -> web.StreamResponse:
        method, params = request.match_info["method"], await _params(request)
        try:
            if request.match_info["token"] != self.token:
                raise ApiError(401, "Unauthorized")
            handler = getattr(self, f"_{method.lower()}", None)
            if handler is None:
                raise ApiError(404, "Not Found")
            if method != "getUpdates":
                self.calls.append((method, params))
            if method.startswith("send") and method != "sendChatAction":
                if self.failures and (answer := self.failures.pop(0)(method, params)) is not None:
                    return answer
                result = handler(method, params)
                if self.lose_receipts:
                    self.lose_receipts -= 1
                    await self._notify()
                    assert request.transport is not None
                    request.transport.abort()
                    return web.Response()
            else:
                result = handler(method, params)
            if asyncio.iscoroutine(result):
                result = await result
        except ApiError as error:
            body = {"ok": False, "error_code": error.status, "description": str(error)}
            if error.parameters:
                body["parameters"] = error.parameters
            await self._notify()
            return web.json_response(body, status=error.status)
        await self._notify()
        return web.json_response({"ok": True, "result": result})

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _on_file(self, request: web.Request) -> web.Response:
        content = self.files.get(request.match_info["path"].removeprefix("documents/"))
        if request.match_info["token"] != self.token or content is None:
            return web.json_response({"ok": False, "error_code": 404, "description": "Not Found"}, status=404)
        return web.Response(body=content)

    def _getme(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return BOT

    def _deletewebhook(self, method: str, params: dict[str, Any]) -> bool:
        self.webhook = ""
        return True

    async def _getupdates(self, method: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        if self.webhook:
            raise ApiError(409, "Conflict: can't use getUpdates method while webhook is active")
        offset = params.get("offset")
        self.offsets.append(offset)
        self._polls += 1
        mine = self._polls
        allowed = params.get("allowed_updates") or ["message", "edited_message", "channel_post"]
        async with self._changed:
            self._changed.notify_all()  # an earlier poll ends
            if offset:
                self.updates = [update for update in self.updates if update["update_id"] >= offset]
            try:
                async with asyncio.timeout(float(params.get("timeout") or 0)):
                    await self._changed.wait_for(lambda: self.updates or self._polls != mine)
            except TimeoutError:
                pass
            if self._polls != mine:
                raise ApiError(
                    409,
                    "Conflict: terminated by other getUpdates request; "
                    "make sure that only one bot instance is running",
                )
            self.updates = [update for update in self.updates if any(kind in update for kind in allowed)]
            return self.updates[: int(params.get("limit") or 100)]

    def _sendmessage(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        shown = _shown(str(params.get("text") or ""), params.get("parse_mode"))
        if not shown.strip():
            raise ApiError(400, "Bad Request: message text is empty")
        if len(shown.encode("utf-16-le")) // 2 > 4096:
            raise ApiError(400, "Bad Request: message is too long")
        return self._post(params, shown, str(params["text"]))

    def _sendfile(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        content = next((params[name] for name in _FILE_FIELDS if name in params), None)
        if isinstance(content, str) and content.startswith("attach://"):
            content = params.get(content.removeprefix("attach://"))
        if not isinstance(content, bytes):
            raise ApiError(400, "Bad Request: there is no file in the request")
        if method == "sendPhoto" and not content.startswith((b"\x89PNG", b"\xff\xd8\xff")):
            raise ApiError(400, "Bad Request: IMAGE_PROCESS_FAILED")
        shown = _shown(str(params.get("caption") or ""), params.get("parse_mode"))
        if len(shown.encode("utf-16-le")) // 2 > 1024:
            raise ApiError(400, "Bad Request: message caption is too long")
        made = self._post(params, shown, str(params.get("caption") or ""), content, method)
        about = {"file_id": self.add_file(content), "file_unique_id": "u", "file_size": len(content)}
        if method == "sendPhoto":
            return made | {"photo": [about | {"width": 1, "height": 1}]}
        return made | {method.removeprefix("send").lower(): about | {"duration": 1, "width": 1, "height": 1}}

    _sendphoto = _senddocument = _sendvoice = _sendaudio = _sendvideo = _sendfile

    def _post(
        self,
        params: dict[str, Any],
        shown: str,
        raw: str,
        content: bytes | None = None,
        method: str | None = None,
    ) -> dict[str, Any]:
        chat = self._known_chat(params)
        thread = int(params["message_thread_id"]) if params.get("message_thread_id") else None
        if thread is not None and thread not in self.topics:  # also the general topic, whose number is 1
            raise ApiError(400, "Bad Request: message thread not found")
        reply = params.get("reply_parameters") or {}
        self._next_message += 1
        reply_to = int(reply["message_id"]) if reply else None
        sent = Sent(self._next_message, chat["id"], shown, raw, thread, reply_to, content, method)
        self.sent.append(sent)
        return self.shown_message(sent)

    def shown_message(self, sent: Sent) -> dict[str, Any]:
        made: dict[str, Any] = {
            "message_id": sent.message_id,
            "date": int(time.time()),
            "chat": self._chats[sent.chat_id],
            "from": BOT,
        }
        if sent.thread_id is not None:
            made |= {"message_thread_id": sent.thread_id, "is_topic_message": True}
        return made | ({"caption": sent.text} if sent.file is not None else {"text": sent.text})

    def _known_chat(self, params: dict[str, Any]) -> dict[str, Any]:
        chat_id = int(params.get("chat_id") or 0)
        if chat_id in self.moved:
            raise ApiError(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
                migrate_to_chat_id=self.moved[chat_id],
            )
        if chat_id not in self._chats:
            raise ApiError(400, "Bad Request: chat not found")
        if self._chats[chat_id].get("blocked"):
            raise ApiError(403, "Forbidden: bot was blocked by the user")
        return self._chats[chat_id]

    def _own(self, params: dict[str, Any], what: str) -> Sent:
        chat = self._known_chat(params)
        for sent in self.sent:
            if sent.chat_id == chat["id"] and sent.message_id == int(params["message_id"]):
                return sent
        raise ApiError(400, f"Bad Request: message to {what} not found")

    def _editmessagetext(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        sent = self._own(params, "edit")
        shown = _shown(str(params["text"]), params.get("parse_mode"))
        if shown == sent.text:
            raise ApiError(
                400,
                "Bad Request: message is not modified: specified new message content and reply markup are "
                "exactly the same as a current content and reply markup of the message",
            )
        sent.text, sent.html, sent.edits = shown, str(params["text"]), sent.edits + 1
        return self.shown_message(sent)

    def _deletemessage(self, method: str, params: dict[str, Any]) -> bool:
        self.sent.remove(self._own(params, "delete"))
        return True

    def _setmessagereaction(self, method: str, params: dict[str, Any]) -> bool:
        self._known_chat(params)
        reaction = params.get("reaction") or []
        if any(item["emoji"] not in "👀👍❤🔥🎉🤔" for item in reaction):
            raise ApiError(400, "Bad Request: REACTION_INVALID")
        self.reactions[int(params["message_id"])] = reaction
        return True

    def _sendchataction(self, method: str, params: dict[str, Any]) -> bool:
        self._known_chat(params)
        self.actions.append(params)
        return True

    def _getchat(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return self._known_chat(params) | {"accent_color_id": 0, "max_reaction_count": 11}

    def _getchatmember(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._known_chat(params)
        return {"status": "administrator", "user": BOT, "can_manage_topics": self.may_manage_topics}

    def _createforumtopic(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if not self._known_chat(params).get("is_forum"):
            raise ApiError(400, "Bad Request: the chat is not a forum")
        self._next_message += 1
        self.topics.add(self._next_message)
        return {"message_thread_id": self._next_message, "name": params["name"], "icon_color": 7322096}

    def _getfile(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        file_id = params["file_id"]
        if file_id not in self.files:
            raise ApiError(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        size = len(self.files[file_id])
        if size > 20 * 1024 * 1024:
            raise ApiError(400, "Bad Request: file is too big")
        path = f"documents/{file_id}"
        return {"file_id": file_id, "file_unique_id": "u", "file_size": size, "file_path": path}


async def _params(request: web.Request) -> dict[str, Any]:
    """Parameters come as JSON, as a form or as multipart; in forms, numbers and objects are texts."""
    if request.content_type == "application/json":
        found: dict[str, Any] = await request.json()
        return found
    params: dict[str, Any] = {}
    for key, value in [*request.query.items(), *(await request.post()).items()]:
        if isinstance(value, web.FileField):
            params[key] = value.file.read()
        elif isinstance(value, str) and key not in ("text", "caption"):
            try:
                params[key] = json.loads(value)
            except ValueError:
                params[key] = value
        else:
            params[key] = value
    return params


def _shown(text: str, parse_mode: str | None) -> str:
    """What people see. Raises ApiError for HTML that Telegram would not accept."""
    if parse_mode is None:
        return text
    assert parse_mode == "HTML"
    parser = _Html()
    parser.feed(text)
    parser.close()
    if parser.open:
        raise ApiError(400, f"Bad Request: can't parse entities: Can't find end tag for {parser.open[-1]}")
    return "".join(parser.shown).strip()


class _Html(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.open: list[str] = []
        self.shown: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _TAGS:
            raise ApiError(400, f'Bad Request: can\'t parse entities: Unsupported start tag "{tag}"')
        if tag == "blockquote" and tag in self.open:
            raise ApiError(400, "Bad Request: can't parse entities: blockquote can't be nested")
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            raise ApiError(400, "Bad Request: can't parse entities: Unmatched end tag")

    def handle_data(self, data: str) -> None:
        self.shown.append(data)

    def handle_entityref(self, name: str) -> None:
        if name not in ("lt", "gt", "amp", "quot"):
            raise ApiError(400, "Bad Request: can't parse entities: Unsupported entity")
        self.shown.append(html.unescape(f"&{name};"))

    def handle_charref(self, name: str) -> None:
        self.shown.append(html.unescape(f"&#{name};"))
