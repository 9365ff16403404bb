"""A fake of a BlueBubbles server, written from its sources. It calls webhooks once, without repeats."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from tests.waiting import LIMIT_S

from hobnob.api.server import page_url, read_address_file

PASSWORD = "password-of-the-server"
GATEWAY = "http://gateway.test"  # stands for the address that the gateway has at the moment


class FakeBlueBubbles:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.webhooks: dict[int, dict[str, Any]] = {}
        self.typing: list[str] = []
        self.private_api = False
        self.lose_receipts = 0
        self.calls_webhooks = True
        self.queries = 0
        self.statuses: list[int] = []
        self.gateway_home: Path | None = None
        self._numbers = itertools.count(1)
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._news = asyncio.Condition()
        self._calling: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        app = web.Application(middlewares=[self._checked])
        app.router.add_get("/api/v1/server/info", self._info)
        app.router.add_post("/api/v1/message/query", self._query)
        app.router.add_post("/api/v1/message/text", self._text)
        app.router.add_post("/api/v1/message/attachment", self._attachment)
        app.router.add_get("/api/v1/attachment/{guid}/download", self._download)
        app.router.add_post("/api/v1/chat/{guid}/typing", self._typing)
        app.router.add_get("/api/v1/webhook", self._webhooks)
        app.router.add_post("/api/v1/webhook", self._add_webhook)
        app.router.add_delete("/api/v1/webhook/{id}", self._remove_webhook)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for task in [*self._calling]:
            task.cancel()
        await asyncio.gather(*self._calling, return_exceptions=True)

    def add(self, message: dict[str, Any]) -> dict[str, Any]:
        """A new message in the database. Times differ, as on a real Mac."""
        newest = max([0, *(each["dateCreated"] for each in self.messages)])
        made = {
            "guid": f"P:0/{next(self._numbers)}",
            "dateCreated": max(int(time.time() * 1000), newest + 1),
            "attachments": [],
            "isFromMe": False,
            "handle": None,
            **message,
        }
        self.messages.append(made)
        self.call(made)
        return made

    def call(self, message: dict[str, Any]) -> None:
        """Call the webhooks with a message."""
        for hook in self.webhooks.values() if self.calls_webhooks else ():
            task = asyncio.create_task(self._call(hook["url"], {"type": "new-message", "data": message}))
            self._calling.add(task)
            task.add_done_callback(self._calling.discard)

    async def _call(self, url: str, payload: dict[str, Any]) -> None:
        address = read_address_file(self.gateway_home, None) if self.gateway_home else None
        if address is None:
            return
        async with aiohttp.ClientSession() as http:
            try:
                place = url.replace(GATEWAY, page_url(address))
                async with http.post(place, json=payload) as response:
                    self.statuses.append(response.status)
            except aiohttp.ClientError:
                pass  # it is not called again

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(condition)

    @web.middleware
    async def _checked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.query.get("password") != PASSWORD:
            error = {"type": "Authentication Error", "message": "Unauthorized"}
            return web.json_response({"status": 401, "message": "no", "error": error}, status=401)
        response: web.StreamResponse = await handler(request)
        async with self._news:
            self._news.notify_all()
        return response

    async def _info(self, request: web.Request) -> web.Response:
        about = {
            "server_version": "1.9.9",
            "private_api": self.private_api,
            "detected_imessage": "me@icloud.com",
        }
        return _data(about)

    async def _query(self, request: web.Request) -> web.Response:
        self.queries += 1
        wanted = await request.json()
        found = [each for each in self.messages if each["dateCreated"] > wanted.get("after", 0)]
        if chat := wanted.get("chatGuid"):
            found = [each for each in found if each["chats"][0]["guid"] == chat]
        found.sort(key=lambda each: each["dateCreated"], reverse=wanted.get("sort", "DESC") == "DESC")
        start = wanted.get("offset", 0)
        return _data(found[start : start + wanted.get("limit", 100)])

    async def _text(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not body.get("tempGuid") or not body.get("message"):
            return _error(400, "A 'tempGuid' is required when sending via AppleScript")
        return self._sent(request, body["chatGuid"], {"text": body["message"]})

    async def _attachment(self, request: web.Request) -> web.Response:
        form = await request.post()
        file = form["attachment"]
        assert isinstance(file, web.FileField)
        guid = self.add_file(file.file.read())
        about = {"guid": guid, "transferName": str(form["name"])}
        return self._sent(request, str(form["chatGuid"]), {"text": "\ufffc", "attachments": [about]})

    def _sent(self, request: web.Request, chat: str, message: dict[str, Any]) -> web.Response:
        chats = [{"guid": chat, "style": 43 if ";+;" in chat else 45}]
        made = self.add({"isFromMe": True, "chats": chats, **message})
        if self.lose_receipts:
            self.lose_receipts -= 1
            assert request.transport is not None
            request.transport.abort()
        return _data(made)

    def add_file(self, content: bytes) -> str:
        guid = f"at_0_{next(self._numbers)}"
        self.files[guid] = content
        return guid

    async def _download(self, request: web.Request) -> web.Response:
        return web.Response(body=self.files[request.match_info["guid"]])

    async def _typing(self, request: web.Request) -> web.Response:
        self.typing.append(request.match_info["guid"])
        return _data(None)

    async def _webhooks(self, request: web.Request) -> web.Response:
        return _data(list(self.webhooks.values()))

    async def _add_webhook(self, request: web.Request) -> web.Response:
        body = await request.json()
        number = next(self._numbers)
        self.webhooks[number] = {"id": number, "url": body["url"], "events": body["events"]}
        return _data(self.webhooks[number])

    async def _remove_webhook(self, request: web.Request) -> web.Response:
        del self.webhooks[int(request.match_info["id"])]
        return _data(None)


def _data(data: Any) -> web.Response:
    return web.json_response({"status": 200, "message": "Success", "data": data})


def _error(status: int, message: str) -> web.Response:
    error = {"type": "Validation Error", "message": message}
    return web.json_response({"status": status, "message": "Bad Request", "error": error}, status=status)
