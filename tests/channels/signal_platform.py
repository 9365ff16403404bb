"""Signal under test: the fake of `signal-cli`, run as a program by the gateway."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from tests.channels.fake_signal import BOT, BOT_UUID, GROUP, FakeSignal
from tests.channels.platform import Post
from tests.waiting import LIMIT_S

PEOPLE = {"ann": 1, "bob": 2, "eve": 3}


class SignalPlatform:
    name = "signal"
    can = frozenset("media_in media_out typing reaction backlog limit lost_receipt".split())

    def __init__(self) -> None:
        self.fake = FakeSignal()
        self._envelopes: dict[str, dict[str, Any]] = {}

    async def start(self) -> None:
        await self.fake.start()

    async def stop(self) -> None:
        await self.fake.stop()

    def settings(self) -> dict[str, Any]:
        return {"account": BOT, "accountUuid": BOT_UUID, "transport": {"cliPath": str(self.fake.program)}}

    def user_id(self, person: str) -> str:
        return f"+1555000200{PEOPLE[person]}"

    def room_id(self) -> str:
        return GROUP

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"groups": {GROUP: rules}}

    def envelope(self, sender: str, **content: Any) -> dict[str, Any]:
        number, stamp = self.user_id(sender), self.fake.stamp()
        return {
            "source": number,
            "sourceNumber": number,
            "sourceUuid": f"00000000-0000-4000-8000-00000000200{PEOPLE[sender]}",
            "sourceName": sender.title(),
            "sourceDevice": 1,
            "timestamp": stamp,
        } | ({"dataMessage": {"timestamp": stamp, **content}} if content else {})

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
        content: dict[str, Any] = {"message": f"\ufffc {text}" if mention else text}
        if mention:
            content["mentions"] = [{"name": "Bot", "number": BOT, "uuid": BOT_UUID, "start": 0, "length": 1}]
        if room:
            content["groupInfo"] = {"groupId": GROUP, "groupName": "The room", "type": "DELIVER"}
        if reply_to is not None:
            content["quote"] = {"id": int(reply_to), "author": BOT, "authorNumber": BOT, "text": "…"}
        if file is not None:
            self.fake.files[file[0]] = file[1]
            kind = "image/png" if file[0].endswith("png") else "text/plain"
            about = {"id": file[0], "filename": file[0], "contentType": kind, "size": len(file[1])}
            content["attachments"] = [about]
        envelope = self.envelope(sender, **content)
        self._envelopes[str(envelope["timestamp"])] = envelope
        await self.fake.receive(envelope)
        return str(envelope["timestamp"])

    async def repeat(self, message_id: str) -> None:
        await self.fake.receive(self._envelopes[message_id])

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        async with asyncio.timeout(LIMIT_S):
            await self.fake.until(lambda: len(self._found(chat)) >= count)
        return [self._post(params, chat) for params in self._found(chat)]

    def _found(self, chat: str) -> list[dict[str, Any]]:
        if chat == "room":
            return [params for params in self.fake.sent if params.get("groupId") == GROUP]
        return [params for params in self.fake.sent if params.get("recipient") == [self.user_id(chat)]]

    @staticmethod
    def _post(params: dict[str, Any], chat: str) -> Post:
        files = params.get("attachments") or []
        return Post(
            id=str(params["timestamp"]),
            text=params["message"],
            chat=chat,
            reply_to=str(params["quoteTimestamp"]) if "quoteTimestamp" in params else None,
            file=base64.b64decode(files[0].partition("base64,")[2]) if files else None,
        )

    async def open_thread(self) -> str:
        raise NotImplementedError("Signal has no threads")

    def limit_once(self, after_s: float) -> None:
        failed = {"type": "RATE_LIMIT_FAILURE", "token": "t", "retryAfterSeconds": after_s}
        data = {"response": {"timestamp": 1, "results": [failed]}}
        self.fake.failures.append({"code": -5, "message": "Failed to send message", "data": data})

    def lose_receipt_once(self) -> None:
        self.fake.lose_receipts += 1
