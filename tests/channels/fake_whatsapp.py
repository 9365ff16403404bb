"""A fake of the Graph API for one WhatsApp number, from Meta's documents, with calls to the webhook."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from tests.channels.webhook_caller import Call, WebhookCaller
from tests.waiting import LIMIT_S

TOKEN = "graph-token-of-the-test"
APP_SECRET = "app-secret-of-the-test"
VERIFY_TOKEN = "verify-token-of-the-test"
NUMBER_ID = "106540352242922"
NUMBER = "+1 555-078-3881"
VERSION = "v23.0"
Failure = Callable[[dict[str, Any]], web.Response | None]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of the bot."""

    id: str
    to: str
    kind: str
    text: str
    reply_to: str | None
    file: bytes | None
    raw: dict[str, Any]


def error(code: int, message: str, *, status: int = 400, details: str | None = None) -> web.Response:
    body: dict[str, Any] = {"message": message, "type": "OAuthException", "code": code, "fbtrace_id": "A1"}
    if details:
        body["error_data"] = {"messaging_product": "whatsapp", "details": details}
    return web.json_response({"error": body}, status=status)


class FakeWhatsApp:
    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.reactions: list[dict[str, Any]] = []
        self.read: list[dict[str, Any]] = []
        self.failures: list[Failure] = []
        self.lose_receipts = 0
        self.sends_statuses = True
        self.limited: dict[str, float] = {}
        self.files: dict[str, bytes] = {}
        self.caller = WebhookCaller(lambda: "/channels/whatsapp/default/webhook")
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._numbers = itertools.count(1)
        self._news = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        app = web.Application(client_max_size=50_000_000)
        app.router.add_get(f"/{VERSION}/{NUMBER_ID}", self._about)
        app.router.add_post(f"/{VERSION}/{NUMBER_ID}/messages", self._messages)
        app.router.add_post(f"/{VERSION}/{NUMBER_ID}/media", self._upload)
        app.router.add_get(f"/{VERSION}/{{media}}", self._media)
        app.router.add_get("/files/{media}", self._download)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.caller.start()

    async def stop(self) -> None:
        await self.caller.stop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # --- What people do

    def write(self, sender: str, name: str, message: dict[str, Any], group: str | None = None) -> str:
        """A person writes. Returns the id of the message."""
        number = f"wamid.in{next(self._numbers)}"
        made = {"from": sender, "id": number, "timestamp": str(int(time.time())), **message}
        if group is not None:
            made["group_id"] = group
        contacts = [{"profile": {"name": name}, "wa_id": sender}]
        self.call({"contacts": contacts, "messages": [made]})
        return number

    def add_file(self, content: bytes) -> str:
        number = f"9{next(self._numbers):015}"
        self.files[number] = content
        return number

    def call(self, value: dict[str, Any], *, number_id: str = NUMBER_ID) -> None:
        """Call the webhook with a change."""
        about = {"display_phone_number": "15550783881", "phone_number_id": number_id}
        value = {"messaging_product": "whatsapp", "metadata": about, **value}
        entry = {"id": "102290129340398", "changes": [{"field": "messages", "value": value}]}
        self.caller.add(signed({"object": "whatsapp_business_account", "entry": [entry]}))

    def status(self, sent: Sent, status: str, **more: Any) -> None:
        """Report what became of a message of the bot."""
        found = {
            "id": sent.id,
            "status": status,
            "timestamp": str(int(time.time())),
            "recipient_id": sent.to,
            "biz_opaque_callback_data": sent.raw.get("biz_opaque_callback_data", ""),
            **more,
        }
        self.call({"statuses": [found]})

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(condition)

    def pair_limit(self) -> web.Response:
        return error(131056, "(#131056) (Business Account, Consumer Account) pair rate limit hit")

    # --- The API

    async def _about(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        return web.json_response(
            {"display_phone_number": NUMBER, "verified_name": "Test Shop", "id": NUMBER_ID}
        )

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request):
            return refused
        body = await request.json()
        if body.get("messaging_product") != "whatsapp":
            return error(100, "(#100) The parameter messaging_product is required.")
        if body.get("status") == "read":
            self.read.append(body)
            return await self._answer(web.json_response({"success": True}))
        if self.limited.get(body["to"], 0) > time.monotonic():
            return self.pair_limit()
        if self.failures and (failed := self.failures.pop(0)(body)) is not None:
            return failed
        if body["type"] == "reaction":
            self.reactions.append(body)
            return await self._answer(self._named(body, f"wamid.out{next(self._numbers)}"))
        sent = self._taken(body)
        self.sent.append(sent)
        if self.sends_statuses:
            self.status(sent, "sent")
            self.status(sent, "delivered")
        if self.lose_receipts:
            self.lose_receipts -= 1
            assert request.transport is not None
            request.transport.abort()
        return await self._answer(self._named(body, sent.id))

    def _taken(self, body: dict[str, Any]) -> Sent:
        kind = body["type"]
        content = body[kind]
        return Sent(
            id=f"wamid.out{next(self._numbers)}",
            to=body["to"],
            kind=kind,
            text=content.get("body") or content.get("caption") or "",
            reply_to=(body.get("context") or {}).get("message_id"),
            file=self.files[content["id"]] if kind != "text" else None,
            raw=body,
        )

    def _named(self, body: dict[str, Any], number: str) -> web.Response:
        contacts = [{"input": body["to"], "wa_id": body["to"]}]
        made = {"messaging_product": "whatsapp", "contacts": contacts, "messages": [{"id": number}]}
        return web.json_response(made)

    async def _answer(self, response: web.Response) -> web.Response:
        async with self._news:
            self._news.notify_all()
        return response

    async def _upload(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        form = await request.post()
        file = form["file"]
        if form.get("messaging_product") != "whatsapp" or not isinstance(file, web.FileField):
            return error(100, "(#100) Invalid parameter")
        return web.json_response({"id": self.add_file(file.file.read())})

    async def _media(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        media = request.match_info["media"]
        if media not in self.files:
            return error(100, "Unsupported get request", details="Object does not exist")
        about = {"url": f"{self.url}/files/{media}", "id": media, "messaging_product": "whatsapp"}
        return web.json_response(about)

    async def _download(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        return web.Response(body=self.files[request.match_info["media"]])

    def _refused(self, request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization") == f"Bearer {TOKEN}":
            return None
        return error(190, "Invalid OAuth access token - Cannot parse access token", status=401)


def signed(payload: Any, secret: str = APP_SECRET) -> Call:
    body = json.dumps(payload).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return Call(body, {"X-Hub-Signature-256": f"sha256={signature}"})
