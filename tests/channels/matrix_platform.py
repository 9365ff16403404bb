"""Matrix under test: a real homeserver, people with tokens, and a proxy that can lose a receipt."""

import asyncio
import json
import math
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import aiohttp
from tests.channels import synapse
from tests.channels.platform import Post
from tests.channels.proxy import Proxy
from tests.waiting import LIMIT_S

CLIENT = "/_matrix/client/v3"


def escaped(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


class MatrixPlatform:
    name = "matrix"
    can = frozenset(
        "thread open_thread media_in media_out edit typing reaction replay limit limit_of_account"
        " lost_receipt".split()
    )

    def __init__(self) -> None:
        self.server = synapse.shared()
        self._suffix = self.server.next_suffix()
        self._tokens: dict[str, str] = {}
        self._direct: dict[str, str] = {}
        self._room = ""
        self._http: aiohttp.ClientSession | None = None
        self._count = 0
        self._proxy = Proxy(
            self.server.port,
            is_message=lambda data: data.startswith(b"PUT ") and b"/send/m.room.message/" in data,
            is_receipt=lambda data: data.startswith(b"HTTP/1.1 200"),
        )

    async def start(self) -> None:
        await self.server.start()
        self._http = self._http or aiohttp.ClientSession()
        await self._proxy.start()
        if not self._room:
            for name in ("ann", "bob", "bot"):
                await self.token(name)
            invited = [self.user_id("bob"), self.user_id("bot")]
            self._room = await self.new_room("ann", name="Room", invite=invited)
            for name in ("bob", "bot"):
                await self.call(name, "POST", f"{CLIENT}/join/{escaped(self._room)}", {})

    async def stop(self) -> None:
        """For the bot the server is gone."""
        await self._proxy.stop()
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def token(self, name: str) -> str:
        if name not in self._tokens:
            self._tokens[name] = (await self.server.register(f"{name}{self._suffix}"))["access_token"]
        return self._tokens[name]

    async def call(self, name: str, method: str, path: str, body: Any = None, **query: str) -> Any:
        """A request of a person."""
        assert self._http is not None
        headers = {"Authorization": f"Bearer {await self.token(name)}"}
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        url = self.server.url + path
        async with self._http.request(method, url, params=query, data=data, headers=headers) as answer:
            found = await answer.json()
            assert answer.status == 200, found
            return found

    async def new_room(self, owner: str, **options: Any) -> str:
        room = await self.call(owner, "POST", f"{CLIENT}/createRoom", {"preset": "private_chat", **options})
        found: str = room["room_id"]
        return found

    @property
    def url(self) -> str:
        """The address of the homeserver, as the bot knows it."""
        return f"http://127.0.0.1:{self._proxy.port}"

    def settings(self) -> dict[str, Any]:
        return {"homeserver": self.url, "accessToken": self._tokens["bot"], "autoJoin": "always"}

    def user_id(self, person: str) -> str:
        return f"@{person}{self._suffix}:{synapse.NAME}"

    def room_id(self) -> str:
        return self._room

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"groups": {self._room: rules}}

    async def direct_room(self, person: str) -> str:
        """The direct chat of a person with the bot, who has to accept the invitation."""
        if person not in self._direct:
            options = {"preset": "trusted_private_chat", "is_direct": True, "invite": [self.user_id("bot")]}
            self._direct[person] = await self.new_room(person, **options)
        room = self._direct[person]

        async def joined() -> bool:
            path = f"{CLIENT}/rooms/{escaped(room)}/joined_members"
            return self.user_id("bot") in (await self.call(person, "GET", path))["joined"]

        await self.until(person, joined)
        return room

    async def until(self, person: str, condition: Callable[[], Any]) -> None:
        """Wait for a condition that is looked at whenever something happens that the person can see."""
        since: dict[str, str] = {}
        async with asyncio.timeout(LIMIT_S):
            while not await condition():
                sync = await self.call(person, "GET", f"{CLIENT}/sync", timeout="5000", **since)
                since = {"since": sync["next_batch"]}

    async def say(
        self,
        text: str,
        *,
        sender: str = "ann",
        room: bool = False,
        mention: bool = False,
        thread: str | None = None,
        reply_to: str | None = None,
        file: tuple[str, bytes] | None = None,
    ) -> str:
        content: dict[str, Any] = {"msgtype": "m.text", "body": text}
        if mention:
            content["m.mentions"] = {"user_ids": [self.user_id("bot")]}
        if thread:
            answered = {"m.in_reply_to": {"event_id": reply_to or thread}, "is_falling_back": not reply_to}
            content["m.relates_to"] = {"rel_type": "m.thread", "event_id": thread, **answered}
        elif reply_to:
            content["m.relates_to"] = {"m.in_reply_to": {"event_id": reply_to}}
        if file:
            uploaded = await self.call(sender, "POST", "/_matrix/media/v3/upload", file[1], filename=file[0])
            kind = "m.image" if file[0].endswith(".png") else "m.file"
            info = {"size": len(file[1]), "mimetype": "image/png" if kind == "m.image" else "text/plain"}
            url = uploaded["content_uri"]
            content |= {"msgtype": kind, "filename": file[0], "url": url, "info": info}
            content["body"] = text or file[0]
        where = self._room if room else await self.direct_room(sender)
        return await self.post(sender, where, content)

    async def post(
        self, sender: str, room: str, content: dict[str, Any], kind: str = "m.room.message"
    ) -> str:
        """An event of a person."""
        self._count += 1
        path = f"{CLIENT}/rooms/{escaped(room)}/send/{kind}/{self._suffix}.{self._count}"
        event: str = (await self.call(sender, "PUT", path, content))["event_id"]
        return event

    async def repeat(self, message_id: str) -> None:
        raise NotImplementedError("the homeserver sends an event once per position")

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        person = "ann" if chat == "room" else chat
        where = self._room if chat == "room" else await self.direct_room(chat)
        found: list[Post] = []

        async def enough() -> bool:
            found[:] = [await self._post(event, chat) for event in await self.events(person, where)]
            return len(found) >= count

        await self.until(person, enough)
        return found

    async def events(self, person: str, room: str) -> list[dict[str, Any]]:
        """The messages of the bot in a room, oldest first."""
        path = f"{CLIENT}/rooms/{escaped(room)}/messages"
        page = await self.call(person, "GET", path, dir="b", limit="500")
        return [
            event
            for event in reversed(page["chunk"])
            if event["type"] in ("m.room.message", "m.room.encrypted")
            and event["sender"] == self.user_id("bot")
            and event["content"]
            and event["content"].get("m.relates_to", {}).get("rel_type") != "m.replace"
        ]

    async def _post(self, event: dict[str, Any], chat: str) -> Post:
        content = event["content"]
        related = content.get("m.relates_to", {})
        thread = related.get("event_id") if related.get("rel_type") == "m.thread" else None
        edit = event.get("unsigned", {}).get("m.relations", {}).get("m.replace", {}).get("content", {})
        shown = edit.get("m.new_content", content)
        is_fallback = related.get("is_falling_back", False)
        return Post(
            event["event_id"],
            shown["body"] if shown["body"] != shown.get("filename") else "",
            chat,
            thread=thread,
            reply_to=None if is_fallback else related.get("m.in_reply_to", {}).get("event_id"),
            file=await self._download(content["url"]) if "url" in content else None,
        )

    async def _download(self, url: str) -> bytes:
        assert self._http is not None
        address = f"{self.server.url}/_matrix/client/v1/media/download/{url.removeprefix('mxc://')}"
        headers = {"Authorization": f"Bearer {self._tokens['ann']}"}
        async with self._http.get(address, headers=headers) as answer:
            return await answer.read()

    async def open_thread(self) -> str:
        return await self.say("a thread", room=True)

    def limit_once(self, after_s: float) -> None:
        """Use up the bot's share of messages: it gets one back per second."""
        user = escaped(self.user_id("bot"))
        path = f"/_synapse/admin/v1/users/{user}/override_ratelimit"
        self._request("admin", "POST", path, {"messages_per_second": 1, "burst_count": 100})
        for _ in range(math.ceil(after_s) + 1):
            self._count += 1
            event = f"{escaped(self._room)}/send/org.example.filler/{self._count}"
            self._request("bot", "PUT", f"{CLIENT}/rooms/{event}", {})
        self._request("admin", "POST", path, {"messages_per_second": 1, "burst_count": 1})

    def _request(self, name: str, method: str, path: str, body: Any) -> None:
        token = self.server.admin_token if name == "admin" else self._tokens[name]
        request = urllib.request.Request(  # noqa: S310 - the homeserver of this test
            self.server.url + path,
            json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}"},
            method=method,
        )
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            answer.read()

    def lose_receipt_once(self) -> None:
        self._proxy.lose_receipt_once()
