"""The platform of the example in docs/channels/own.md: a server on a local socket."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any

from tests.channels.platform import Post
from tests.waiting import LIMIT_S

PAGE = Path(__file__).parents[2] / "docs" / "channels" / "own.md"


def example() -> str:
    """The channel of the page."""
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return str(code)


class JsonLinesPlatform:
    name = "pager"
    can = frozenset(["replay", "lost_receipt"])

    def __init__(self, folder: Path) -> None:
        self._module = folder / "json_lines.py"
        self._module.write_text(example())
        self._socket = folder / "pager.sock"
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._unstored: dict[str, dict[str, Any]] = {}
        self._said: dict[str, dict[str, Any]] = {}
        self._posted: dict[str, Post] = {}
        self._lost_receipts = 0
        self._numbers = itertools.count(1)
        self._news = asyncio.Condition()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self._socket)

    async def stop(self) -> None:
        assert self._server is not None
        server, self._server = self._server, None
        server.close()
        for client in [*self._clients]:
            client.close()
        await server.wait_closed()
        self._socket.unlink(missing_ok=True)

    def settings(self) -> dict[str, Any]:
        return {"module": str(self._module), "options": {"socket": str(self._socket)}}

    def more_settings(self) -> dict[str, Any]:
        return {"messages": {"groupChat": {"mentionPatterns": ["@bot"]}}}

    def user_id(self, person: str) -> str:
        return person

    def room_id(self) -> str:
        return "lobby"

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"groups": {"lobby": rules}}

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
        number = str(next(self._numbers))
        line = {"id": number, "from": sender, "text": f"@bot {text}" if mention else text}
        self._said[number] = self._unstored[number] = line | ({"room": "lobby"} if room else {})
        self.push(self._said[number])
        return number

    async def repeat(self, message_id: str) -> None:
        self.push(self._said[message_id])

    def push(self, line: Any) -> None:
        """Send a line to everybody who is connected."""
        self.push_bytes(json.dumps(line).encode() + b"\n")

    def push_bytes(self, line: bytes) -> None:
        for client in self._clients:
            client.write(line)

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        def found() -> list[Post]:
            return [post for post in self._posted.values() if post.chat == chat]

        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(lambda: len(found()) >= count)
        return found()

    async def open_thread(self) -> str:
        raise NotImplementedError

    def limit_once(self, after_s: float) -> None:
        raise NotImplementedError

    def lose_receipt_once(self) -> None:
        self._lost_receipts += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # it was accepted just before the server stopped
            writer.close()
            return
        self._clients.add(writer)
        for line in self._unstored.values():
            writer.write(json.dumps(line).encode() + b"\n")
        try:
            while line := await reader.readline():
                if not await self._take(json.loads(line), writer):
                    return
        except ConnectionError:
            pass
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _take(self, line: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        if "stored" in line:
            self._unstored.pop(line["stored"], None)
            return True
        chat = "room" if line["to"] == "lobby" else line["to"]
        self._posted.setdefault(line["key"], Post(line["key"], line["text"], chat))
        async with self._news:
            self._news.notify_all()
        if self._lost_receipts:
            self._lost_receipts -= 1
            return False
        writer.write(json.dumps({"sent": line["key"]}).encode() + b"\n")
        return True
