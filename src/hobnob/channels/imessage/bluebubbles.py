"""iMessage by a BlueBubbles server.

The server reports messages to the webhook of the gateway, once and without repeats. What was missed is found
by asking for messages after the position of this channel, at each start and from time to time. The same
message reported both ways is recognised by its id.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

from hobnob import statedir
from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Disconnected,
    Identity,
    Inbox,
    NotNoted,
    Outgoing,
    Undeliverable,
)
from hobnob.channels.http import Unanswered, reconnecting
from hobnob.channels.imessage import bluebubbles_events
from hobnob.channels.imessage.attempts import Attempt, Attempts, same_text
from hobnob.channels.imessage.bluebubbles_api import SEND_TIMEOUT_S, Server
from hobnob.channels.text import plain_text
from hobnob.channels.webhooks import WebhookAnswer, WebhookCall
from hobnob.inbound import Address, Media

POLL_S, POLL_WITH_WEBHOOK_S = 3.0, 30.0
FIND_S = 10.0
MAX_AGE_MS = 24 * 3_600_000  # older ones appear when a Mac synchronises after a long time
_OVERLAP_MS = 60_000  # messages can be written down later than their time says
_PAGE = 100
_MAX_TEXT = 4000
_log = logging.getLogger(__name__)


class BlueBubblesChannel(Channel):
    webhook = True
    capabilities = Capabilities(
        text_limit=_MAX_TEXT,
        measure=lambda text: len(plain_text(text)),
        typing_every_s=20.0,
        media_in=True,
        media_out=True,
        finds_sent=True,
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._server = Server(account)
        self._attempts = Attempts(account.folder)
        self._inbox: Inbox | None = None
        self._newest = 0
        self._has_private_api = False
        self._own: deque[str] = deque(maxlen=200)  # ids of messages of ours, for quotes

    # --- Receiving

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        self._attempts.forget_old()
        try:
            identity = await self.probe()
            self._newest = await self._position(inbox)
            if self._server.settings.webhook_url:
                await self._register()
            self._inbox = inbox
            ready(identity)
            pause = POLL_WITH_WEBHOOK_S if self._server.settings.webhook_url else POLL_S
            while True:
                await self._catch_up(inbox)
                await asyncio.sleep(pause)
        except (Undeliverable, Unanswered) as failure:
            raise reconnecting(failure) from None
        finally:
            self._inbox = None

    async def probe(self) -> Identity:
        try:
            info = await self._server.get("server/info")
        except (Undeliverable, Unanswered) as failure:
            raise reconnecting(failure) from None
        about = info if isinstance(info, dict) else {}
        self._has_private_api = about.get("private_api") is True
        name = str(about.get("detected_imessage") or about.get("detected_icloud") or "Messages")
        version = str(about.get("server_version") or "")
        return Identity(name, name, f"BlueBubbles {version}".strip())

    async def _position(self, inbox: Inbox) -> int:
        """The time of the newest message that was stored; at the first start that of the newest there is."""
        cursor = await inbox.cursor()
        if cursor is not None and cursor.isdigit():
            return int(cursor)
        newest = await self._query(0, limit=1, sort="DESC")
        position = max([0, *(bluebubbles_events.created_at(message) for message in newest)])
        await inbox.accept([], str(position))
        return position

    async def _catch_up(self, inbox: Inbox) -> None:
        """Accept messages since the position, oldest first, page by page."""
        after, offset = max(0, self._newest - _OVERLAP_MS), 0
        while True:
            found = await self._query(after, limit=_PAGE, sort="ASC", offset=offset)
            await self._take(found, inbox)
            if len(found) < _PAGE:
                return
            offset += len(found)

    async def _query(self, after: int, **more: Any) -> list[dict[str, Any]]:
        wanted = {"after": after, "with": ["chat", "attachment"], **more}
        found = await self._server.post("message/query", wanted)
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    async def _take(self, messages: list[dict[str, Any]], inbox: Inbox) -> None:
        wants_files = self.account.settings.include_attachments
        events = []
        newest = self._newest
        for message in messages:
            at_ms = bluebubbles_events.created_at(message)
            newest = max(newest, at_ms)
            if message.get("isFromMe") is True:
                if (guid := str(message.get("guid"))) not in self._own:
                    self._own.append(guid)
                continue
            event = bluebubbles_events.translate(message, self._own, files=wants_files)
            if event is not None and time.time() * 1000 - at_ms < MAX_AGE_MS:
                events.append(event)
        if events or newest > self._newest:
            await inbox.accept(events, str(newest))
            self._newest = newest

    async def on_webhook(self, call: WebhookCall) -> WebhookAnswer:
        given = call.query.get("secret", "")
        if call.method != "POST" or not hmac.compare_digest(self._secret().encode(), given.encode()):
            return WebhookAnswer(401, "wrong secret")
        if self._inbox is None:
            raise Disconnected("The account is not running.")
        payload = call.json()
        if isinstance(payload, dict) and payload.get("type") == "new-message":
            if isinstance(message := payload.get("data"), dict):
                await self._take([message], self._inbox)
        return WebhookAnswer()

    async def _register(self) -> None:
        """Have the server call our webhook, with a secret that only the two know."""
        place = f"/channels/{self.account.channel}/{self.account.account_id}/webhook"
        own = f"{(self._server.settings.webhook_url or '').rstrip('/')}{place}"
        wanted = f"{own}?secret={self._secret()}"
        known = await self._server.get("webhook")
        listed = [hook for hook in known if isinstance(hook, dict)] if isinstance(known, list) else []
        for hook in listed:
            url = str(hook.get("url"))
            if url.partition("?")[0] == own and url != wanted and type(hook.get("id")) is int:
                await self._server.delete(f"webhook/{hook['id']}")
        if not any(hook.get("url") == wanted for hook in listed):
            await self._server.post("webhook", {"url": wanted, "events": ["new-message"]})

    def _secret(self) -> str:
        file = self.account.folder / "webhook-secret"
        try:
            if known := file.read_text().strip():
                return known
        except OSError:
            pass
        made = secrets.token_urlsafe(32)
        with os.fdopen(statedir.open_private(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), "w") as written:
            written.write(made)
        return made

    async def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        async for piece in self._server.download(media.ref, limit):
            yield piece

    # --- Sending

    async def send(self, part: Outgoing) -> str:
        earlier = self._attempts.of(part.key)
        after = min(self._newest, earlier.after) if earlier else self._newest
        chat, method = _chat(part.address), self._server.settings.method
        self._attempts.note(part.key, Attempt(after))
        message = {"chatGuid": chat, "tempGuid": part.key, "method": method}
        if part.file is not None:
            fields = message | {"name": part.file.name}
            sent = await self._server.upload("message/attachment", fields, part.file.path, part.file.name)
        else:
            message["message"] = plain_text(part.text)
            if part.reply_to is not None and method == "private-api":
                message["selectedMessageGuid"] = part.reply_to
            sent = await self._server.post("message/text", message, timeout_s=SEND_TIMEOUT_S)
        if not isinstance(sent, dict) or not isinstance(guid := sent.get("guid"), str):
            raise Unanswered("BlueBubbles did not name the message it sent.")
        # Later parts begin after this one: it must not be taken for one of them that has the same text.
        self._newest = max(self._newest, bluebubbles_events.created_at(sent))
        self._own.append(guid)
        self._attempts.note(part.key, Attempt(after, guid))
        return guid

    async def find(self, part: Outgoing) -> str | None:
        attempt = self._attempts.of(part.key)
        if attempt is None:
            raise NotNoted
        if attempt.message_id is not None:
            return attempt.message_id
        wait_until = asyncio.get_running_loop().time() + FIND_S
        while True:
            found = await self._query(attempt.after, limit=_PAGE, sort="DESC", chatGuid=_chat(part.address))
            for message in found:
                if bluebubbles_events.created_at(message) > attempt.after and _is_echo(message, part):
                    self._attempts.note(part.key, Attempt(attempt.after, str(message["guid"])))
                    return str(message["guid"])
            if asyncio.get_running_loop().time() > wait_until:
                return None
            await asyncio.sleep(1.0)  # Messages may take its time to write it down

    async def typing(self, address: Address) -> None:
        if self._has_private_api:
            await self._server.post(f"chat/{quote(_chat(address), safe='')}/typing", {})


def _chat(address: Address) -> str:
    """The id of a chat: as the server names it, or made of the handle of a person."""
    return address.to if ";" in address.to else f"iMessage;-;{address.to}"


def _is_echo(message: dict[str, Any], part: Outgoing) -> bool:
    if message.get("isFromMe") is not True:
        return False
    if part.file is None:
        return same_text(plain_text(part.text), str(message.get("text") or ""))
    files = message.get("attachments")
    return isinstance(files, list) and any(
        isinstance(file, dict) and file.get("transferName") == part.file.name for file in files
    )
