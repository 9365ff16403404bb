"""iMessage under test: a real child process that speaks as `imsg rpc` does, with a file as its database."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from tests.channels.platform import Post
from tests.waiting import until

PROGRAM = Path(__file__).parents[1] / "programs" / "fake_imsg.py"
PEOPLE = {"ann": "+15550001001", "bob": "+15550001002", "eve": "eve@example.com", "max": "+15550001004"}
CHATS = {name: number for number, name in enumerate(PEOPLE, 1)}
ROOM = 7


class ImsgPlatform:
    name = "imessage"
    can = frozenset("media_in media_out replay lost_receipt".split())

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mac"
        (self.folder / "Attachments").mkdir(parents=True)
        self._rows = self.folder / "rows.jsonl"
        self._numbers = itertools.count(1)

    async def start(self) -> None:
        (self.folder / "down").unlink(missing_ok=True)

    async def stop(self) -> None:
        (self.folder / "down").touch()
        await until(lambda: not any(_is_alive(file) for file in self.folder.glob("pid-*")))

    def settings(self) -> dict[str, Any]:
        return {
            "cliPath": shlex.join([sys.executable, str(PROGRAM), str(self.folder)]),
            "includeAttachments": True,
            "attachmentRoots": [str(self.folder / "Attachments")],
        }

    def more_settings(self) -> dict[str, Any]:
        return {"messages": {"groupChat": {"mentionPatterns": ["@hobnob"]}}}

    def user_id(self, person: str) -> str:
        return PEOPLE[person]

    def room_id(self) -> str:
        return str(ROOM)

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"groups": {str(ROOM): rules}}

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
        guid = f"IN-{next(self._numbers)}"
        attachments = []
        if file is not None:
            path = self.folder / "Attachments" / file[0]
            path.write_bytes(file[1])
            about = {"transfer_name": file[0], "original_path": str(path), "total_bytes": len(file[1])}
            attachments = [about | {"mime_type": "application/octet-stream", "missing": False}]
        row = {
            "guid": guid,
            "sender": PEOPLE[sender],
            "is_from_me": False,
            "text": f"@hobnob {text}" if mention else text,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
            "attachments": attachments,
            "chat_id": ROOM if room else CHATS[sender],
            "chat_identifier": "chat7" if room else PEOPLE[sender],
            "chat_guid": "iMessage;+;chat7" if room else f"iMessage;-;{PEOPLE[sender]}",
            "chat_name": "The room" if room else "",
            "is_group": room,
        }
        self.add(row | ({"reply_to_guid": reply_to} if reply_to else {}))
        return guid

    def add(self, row: Any) -> None:
        with self._rows.open("a") as database:
            database.write(json.dumps(row) + "\n")

    async def repeat(self, message_id: str) -> None:
        [row] = [row for row in self.rows() if row["guid"] == message_id]
        self.add(row)

    def rows(self) -> list[dict[str, Any]]:
        if not self._rows.exists():
            return []
        return [json.loads(line) for line in self._rows.read_text().rpartition("\n")[0].splitlines()]

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        place = "chat7" if chat == "room" else PEOPLE[chat]

        def found() -> list[dict[str, Any]]:
            return [row for row in self.rows() if row["is_from_me"] and row["chat_identifier"] == place]

        await until(lambda: len(found()) >= count)
        return [_post(row, chat) for row in found()]

    async def open_thread(self) -> str:
        raise NotImplementedError

    def limit_once(self, after_s: float) -> None:
        raise NotImplementedError

    def lose_receipt_once(self) -> None:
        (self.folder / "lose").touch()


def _is_alive(file: Path) -> bool:
    try:
        os.kill(int(file.name.removeprefix("pid-")), 0)
    except ProcessLookupError:
        return False
    return True


def _post(row: dict[str, Any], chat: str) -> Post:
    content = row["attachments"][0]["content"] if row["attachments"] else None
    return Post(row["guid"], row["text"], chat, file=base64.b64decode(content) if content else None)
