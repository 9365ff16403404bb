"""WhatsApp by the Cloud API: WhatsApp calls the webhook of the gateway, answers are calls of the Graph API.

WhatsApp sends a call again until it is answered with 200, which happens when its messages are on disk. A
message of ours carries the key of its part, and so do the statuses that follow: they prove a delivery whose
receipt was lost, and report one that failed later.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any

from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Disconnected,
    Identity,
    Inbox,
    LoginNeeded,
    NotNow,
    Outgoing,
    OutgoingFile,
    Undeliverable,
)
from hobnob.channels.http import Unanswered, reconnecting
from hobnob.channels.text import whatsapp_text
from hobnob.channels.webhooks import WebhookAnswer, WebhookCall
from hobnob.channels.whatsapp import cloud_events
from hobnob.channels.whatsapp.graph import Graph
from hobnob.inbound import Address, Media

_MAX_TEXT, _MAX_CAPTION = 4096, 1024
_MAX_CHALLENGE = 1000
_MB = 1024 * 1024
_SIZES = {"image": 5 * _MB, "audio": 16 * _MB, "video": 16 * _MB, "document": 100 * _MB}
_KINDS = {
    "image/jpeg": "image",
    "image/png": "image",
    "audio/aac": "audio",
    "audio/amr": "audio",
    "audio/mpeg": "audio",
    "audio/mp4": "audio",
    "audio/ogg": "audio",
    "video/mp4": "video",
    "video/3gpp": "video",
}
_MAX_REMEMBERED = 1000
PROOF_S = 15.0
_log = logging.getLogger(__name__)


class Cloud(Channel):
    webhook = True
    capabilities = Capabilities(
        text_limit=_MAX_TEXT,
        measure=lambda text: len(whatsapp_text(text)),
        reactions=True,
        typing_every_s=20.0,
        media_in=True,
        media_out=True,
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._graph = Graph(account)
        self._inbox: Inbox | None = None
        self._newest: OrderedDict[str, str] = OrderedDict()  # chat: id of the newest message, for typing
        self._proofs: OrderedDict[str, str] = OrderedDict()  # key of a part: id of its message
        self._proven = asyncio.Event()

    # --- Receiving

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        ready(await self.probe())
        self._inbox = inbox
        try:
            await asyncio.Event().wait()
        finally:
            self._inbox = None

    async def on_webhook(self, call: WebhookCall) -> WebhookAnswer:
        self._graph.check()
        if call.method == "GET":
            return self._challenged(call)
        secret = self._graph.cloud.app_secret
        assert secret is not None
        if not call.is_signed("x-hub-signature-256", secret.get_secret_value()):
            _log.warning("a call to the WhatsApp webhook has a wrong signature: check cloud.appSecret")
            return WebhookAnswer(401, "wrong signature")
        if self._inbox is None:
            raise Disconnected("The account is not running.")
        update = cloud_events.translate(call.json(), self._graph.cloud.phone_number_id or "")
        for event in update.events:
            _remember(self._newest, event.address.to, event.message_id)
        if update.events:
            await self._inbox.accept(update.events)
        for status in update.statuses:
            if status.error is None:
                _remember(self._proofs, status.key, status.message_id)
                self._proven.set()
                await self._inbox.confirm(status.key, status.message_id)
            else:
                _log.warning("WhatsApp could not deliver a message: %s", status.error)
                await self._inbox.refute(status.key, status.error)
        return WebhookAnswer()

    def _challenged(self, call: WebhookCall) -> WebhookAnswer:
        """The answer to the call with which WhatsApp asks whether the address is ours."""
        token = self._graph.cloud.verify_token
        expected = token.get_secret_value() if token else ""
        given = call.query.get("hub.verify_token", "")
        is_ours = hmac.compare_digest(expected.encode(), given.encode())
        if call.query.get("hub.mode") != "subscribe" or not expected or not is_ours:
            return WebhookAnswer(403, "wrong verify token")
        return WebhookAnswer(200, call.query.get("hub.challenge", "")[:_MAX_CHALLENGE])

    async def probe(self) -> Identity:
        try:
            about = await self._graph.about_number()
        except (Undeliverable, Unanswered, NotNow) as failure:
            raise reconnecting(failure) from None
        number = str(about.get("display_phone_number") or "")
        name = str(about.get("verified_name") or number)
        path = f"/channels/{self.account.channel}/{self.account.account_id}/webhook"
        return Identity(number or str(self._graph.cloud.phone_number_id), name, f"webhook at {path}")

    async def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        try:
            async for piece in self._graph.download(media.ref, limit):
                yield piece
        except (NotNow, LoginNeeded, Unanswered) as failure:
            raise Undeliverable(str(failure)) from None

    # --- Sending

    async def send(self, part: Outgoing) -> str:
        message: dict[str, Any] = {**self._target(part.address), "biz_opaque_callback_data": part.key}
        if part.reply_to is not None:
            message["context"] = {"message_id": part.reply_to}
        if part.file is not None:
            message |= await self._file(part.file, whatsapp_text(part.text))
        else:
            message |= {"type": "text", "text": {"body": whatsapp_text(part.text), "preview_url": False}}
        try:
            answer = await self._graph.post(part.address.to, message)
            sent = answer.get("messages")
            if not isinstance(sent, list) or not isinstance(sent[0], dict) or not sent[0].get("id"):
                raise Unanswered("WhatsApp did not name the message it sent.")
            return str(sent[0]["id"])
        except (Unanswered, IndexError):
            if (proof := await self._proof(part.key)) is None:
                raise
            return proof

    async def _proof(self, key: str) -> str | None:
        """Wait a little for the status of a message whose receipt was lost. Later ones still confirm it."""
        try:
            async with asyncio.timeout(PROOF_S):
                while key not in self._proofs:
                    self._proven.clear()
                    await self._proven.wait()
        except TimeoutError:
            return None
        return self._proofs[key]

    async def _file(self, file: OutgoingFile, caption: str) -> dict[str, Any]:
        try:
            size = file.path.stat().st_size
        except OSError as error:
            raise Undeliverable(f"The file {file.name} cannot be read: {error.strerror}.") from error
        kind = _KINDS.get(file.mime_type.partition(";")[0], "document")
        if size > _SIZES[kind]:
            kind = "document"
        if size > _SIZES[kind]:
            raise Undeliverable(f"The file {file.name} is larger than the 100 MB that WhatsApp accepts.")
        if len(caption) > _MAX_CAPTION:
            raise Undeliverable(f"The text with a file has more than {_MAX_CAPTION:,} characters.")
        about: dict[str, Any] = {"id": await self._graph.upload(file)}
        if kind == "document":
            about["filename"] = file.name
        if caption and kind != "audio":
            about["caption"] = caption
        return {"type": kind, kind: about}

    async def react(self, address: Address, message_id: str, emoji: str | None) -> None:
        reaction = {"message_id": message_id, "emoji": emoji or ""}
        message = {**self._target(address), "type": "reaction", "reaction": reaction}
        await self._graph.post(address.to, message)

    async def typing(self, address: Address) -> None:
        """Typing can only be shown together with a read receipt."""
        newest = self._newest.get(address.to)
        if newest is not None and self.account.settings.send_read_receipts:
            shown = {"status": "read", "message_id": newest, "typing_indicator": {"type": "text"}}
            await self._graph.post(address.to, shown)

    def _target(self, address: Address) -> dict[str, str]:
        """People have a number with a plus; everything else is a group."""
        if address.to.startswith("+"):
            return {"recipient_type": "individual", "to": address.to.removeprefix("+")}
        if address.to.isdigit():
            return {"recipient_type": "individual", "to": address.to}
        return {"recipient_type": "group", "to": address.to}


def _remember(known: OrderedDict[str, str], key: str, value: str) -> None:
    """Keep a value, and forget the oldest ones."""
    known[key] = value
    known.move_to_end(key)
    if len(known) > _MAX_REMEMBERED:
        known.popitem(last=False)
