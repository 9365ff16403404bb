"""iMessage by the program `imsg`, on this Mac or on one that is reached by ssh.

The position of this channel is the row id of Messages' database: what came while nobody listened is reported
afterwards. Messages of our own are reported too; such an echo is the receipt of what was sent.
"""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Identity,
    Inbox,
    NotNoted,
    NotNow,
    Outgoing,
    OutgoingFile,
    Undeliverable,
)
from hobnob.channels.http import Unanswered, reconnecting
from hobnob.channels.imessage import imsg_events
from hobnob.channels.imessage.attempts import Attempt, Attempts, same_text
from hobnob.channels.imessage.files import read_remote, write_remote
from hobnob.channels.imessage.imsg_events import GROUP
from hobnob.channels.imessage.rpc import Rpc, open_rpc
from hobnob.channels.text import plain_text
from hobnob.config.channels.imessage import IMessageAccount
from hobnob.inbound import Media

ECHO_S = 10.0
FIND_S = 10.0
MAX_AGE_S = 24 * 3600  # older ones appear when a Mac synchronises after a long time
_MAX_TEXT = 4000
_HISTORY = 50
_log = logging.getLogger(__name__)


class Imsg(Channel):
    capabilities = Capabilities(
        text_limit=_MAX_TEXT,
        measure=lambda text: len(plain_text(text)),
        media_in=True,
        media_out=True,
        finds_sent=True,
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._attempts = Attempts(account.folder)
        self._rpc: Rpc | None = None
        self._newest = 0
        self._own: deque[dict[str, Any]] = deque(maxlen=200)  # echoes, as receipts and for quotes
        self._echoed = asyncio.Event()

    @property
    def _settings(self) -> IMessageAccount:
        settings = self.account.settings
        assert isinstance(settings, IMessageAccount)
        return settings

    # --- Receiving

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        self._attempts.forget_old()
        try:
            async with open_rpc(self._settings) as rpc:
                self._newest = await self._position(rpc, inbox)
                await rpc.call(
                    "watch.subscribe",
                    since_rowid=self._newest,
                    attachments=self._settings.include_attachments,
                    include_reactions=False,
                )
                self._rpc = rpc
                ready(self._identity())
                while True:
                    await self._take(await rpc.next_message(), inbox)
        except (Undeliverable, Unanswered) as failure:
            raise reconnecting(failure) from None
        finally:
            self._rpc = None

    async def _position(self, rpc: Rpc, inbox: Inbox) -> int:
        """The row id that was stored last; at the first start that of the newest message."""
        cursor = await inbox.cursor()
        if cursor is not None and cursor.isdigit():
            return int(cursor)
        newest = await _newest_row(rpc)
        await inbox.accept([], str(newest))
        return newest

    async def _take(self, message: dict[str, Any], inbox: Inbox) -> None:
        row = message.get("id")
        if type(row) is not int:
            _log.warning("a message of imsg without a row id is skipped")
            return
        self._newest = max(self._newest, row)
        if message.get("is_from_me") is True:
            self._own.append(message)
            self._echoed.set()
            return
        own = {str(echo.get("guid")) for echo in self._own}
        event = imsg_events.translate(message, own)
        if event is not None and time.time() - event.at_ms / 1000 > MAX_AGE_S:
            _log.warning("a message of %s from long ago is skipped", event.sender.id)
            event = None
        await inbox.accept([event] if event else [], str(self._newest))

    def _identity(self) -> Identity:
        where = self._settings.remote_host or "this Mac"
        return Identity("imsg", f"Messages on {where}")

    async def probe(self) -> Identity:
        try:
            if self._rpc is not None:
                await self._rpc.call("chats.list", limit=1)
            else:
                async with open_rpc(self._settings) as rpc:
                    await rpc.call("chats.list", limit=1)
        except (Undeliverable, Unanswered) as failure:
            raise reconnecting(failure) from None
        return self._identity()

    async def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        path = media.ref
        if ".." in Path(path).parts or not any(
            _is_below(path, root) for root in self._settings.attachment_roots
        ):
            raise Undeliverable("The file is in none of the folders of attachmentRoots.")
        async for piece in read_remote(self._settings, path, limit):
            yield piece

    # --- Sending

    async def send(self, part: Outgoing) -> str:
        rpc = self._connected()
        earlier = self._attempts.of(part.key)
        after = min(self._newest, earlier.after) if earlier else self._newest
        target = _target(part.address.to)
        params: dict[str, Any] = {
            **target,
            "service": self._settings.service,
            "region": self._settings.region,
        }
        if part.text:
            params["text"] = plain_text(part.text)
        if part.file is not None:
            params["file"] = await write_remote(self._settings, part.file)
        self._attempts.note(part.key, Attempt(after))
        answer = await rpc.call("send", **params)
        guid = answer.get("guid") if isinstance(answer.get("guid"), str) else None
        # The echo is waited for in any case: it must not be taken for that of a later part with this text.
        echo = await self._echo(part, after)
        sent = guid or echo or f"sent-{part.key}"  # imsg said ok: Messages has it
        self._attempts.note(part.key, Attempt(after, sent))
        return sent

    async def find(self, part: Outgoing) -> str | None:
        attempt = self._attempts.of(part.key)
        if attempt is None:
            raise NotNoted
        if attempt.message_id is not None:
            return attempt.message_id
        rpc, wait_until = self._connected(), asyncio.get_running_loop().time() + FIND_S
        while True:
            for message in await self._history(rpc, part.address.to):
                if _is_echo(message, part, attempt.after):
                    self._attempts.note(part.key, Attempt(attempt.after, str(message["guid"])))
                    return str(message["guid"])
            if asyncio.get_running_loop().time() > wait_until:
                return None
            await asyncio.sleep(1.0)  # Messages may take its time to write it down

    def _connected(self) -> Rpc:
        if self._rpc is None:
            raise NotNow("imsg is not running", 1.0, scope="account")
        return self._rpc

    async def _echo(self, part: Outgoing, after: int) -> str | None:
        """Wait for the message of our own that has this text."""
        try:
            async with asyncio.timeout(ECHO_S):
                while True:
                    self._echoed.clear()
                    for message in self._own:
                        if _is_echo(message, part, after):
                            return str(message["guid"])
                    await self._echoed.wait()
        except TimeoutError:
            return None

    async def _history(self, rpc: Rpc, to: str) -> list[dict[str, Any]]:
        """The newest messages of a chat."""
        chat = int(to.removeprefix(GROUP)) if to.startswith(GROUP) else await _direct_chat(rpc, to)
        if chat is None:
            return []
        found = await rpc.call("messages.history", chat_id=chat, limit=_HISTORY, attachments=True)
        messages = found.get("messages")
        return [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []


def _target(to: str) -> dict[str, Any]:
    if not to.startswith(GROUP):
        return {"to": to}
    number = to.removeprefix(GROUP)
    if not number.isdigit():
        raise Undeliverable(f"{to!r} is not a chat of Messages.")
    return {"chat_id": int(number)}


def _is_echo(message: dict[str, Any], part: Outgoing, after: int) -> bool:
    row, to = message.get("id"), part.address.to
    if message.get("is_from_me") is not True or type(row) is not int or row <= after:
        return False
    if to not in (f"{GROUP}{message.get('chat_id')}", message.get("chat_identifier")):
        return False
    if part.file is None:
        return same_text(plain_text(part.text), str(message.get("text") or ""))
    files = message.get("attachments")
    return isinstance(files, list) and any(_names(file, part.file) for file in files)


def _names(attachment: Any, file: OutgoingFile) -> bool:
    return isinstance(attachment, dict) and str(attachment.get("transfer_name") or "").endswith(file.name)


def _is_below(path: str, root: str) -> bool:
    parts, wanted = Path(path).parts, Path(root).parts
    if len(parts) <= len(wanted):
        return False
    return all(fnmatch.fnmatchcase(part, mask) for part, mask in zip(parts, wanted, strict=False))


async def _chats(rpc: Rpc, limit: int) -> list[dict[str, Any]]:
    found = (await rpc.call("chats.list", limit=limit)).get("chats")
    return [chat for chat in found if isinstance(chat, dict)] if isinstance(found, list) else []


async def _direct_chat(rpc: Rpc, handle: str) -> int | None:
    for chat in await _chats(rpc, 200):
        if chat.get("identifier") == handle and type(chat.get("id")) is int:
            return int(chat["id"])
    return None


async def _newest_row(rpc: Rpc) -> int:
    newest = 0
    for chat in await _chats(rpc, 5):
        found = (await rpc.call("messages.history", chat_id=chat.get("id"), limit=1)).get("messages")
        rows = [m.get("id") for m in found if isinstance(m, dict)] if isinstance(found, list) else []
        newest = max([newest, *(row for row in rows if type(row) is int)])
    return newest
