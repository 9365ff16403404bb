"""WhatsApp as a linked device of a phone, through the library neonize (the extra `whatsapp-web`).

The library confirms a message to WhatsApp by itself, before it is stored here: a crash in between can lose
it. It has no key for a message either, so a lost receipt is ambiguous.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
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
from hobnob.channels.http import Unanswered
from hobnob.channels.text import whatsapp_text
from hobnob.channels.whatsapp import web_events, web_session
from hobnob.channels.whatsapp.web_events import GROUP, PHONE, Own
from hobnob.channels.whatsapp.web_session import DATABASE, NOT_LINKED, Session, open_session
from hobnob.inbound import Address, Media

LOGIN_S = 170.0  # WhatsApp shows six codes, one after the other
LOGOUT_S = 20.0
RECONNECT_S = 30.0  # how long the library may take to connect again, before the account counts as offline
LIMIT_S = 30.0  # WhatsApp does not say how long a limit lasts
_LOOKUP_S = 5.0
_MAX_TEXT = 4096
_MAX_REMEMBERED = 500
_MAX_UPLOAD_BYTES = 100 * 1024 * 1024
_IMAGES = ("image/jpeg", "image/png", "image/webp")
_log = logging.getLogger(__name__)


class Web(Channel):
    capabilities = Capabilities(
        text_limit=_MAX_TEXT,
        measure=lambda text: len(whatsapp_text(text)),
        reactions=True,
        typing_every_s=10.0,
        media_in=True,
        media_out=True,
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._client: Any = None
        self._own = Own(frozenset())
        self._known: OrderedDict[str, Any] = OrderedDict()  # id: message, for quotes, reactions and receipts
        self._newest: OrderedDict[str, str] = OrderedDict()  # chat: id of its newest message
        self._groups: dict[str, str] = {}

    # --- Receiving

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        if not (self.account.folder / DATABASE).exists():
            raise LoginNeeded(NOT_LINKED)
        try:
            async with open_session(self.account.folder) as session:
                await self._receive(session, inbox, ready)
        finally:
            self._client = None

    async def _receive(self, session: Session, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        limit_s: float | None = None
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    name, event = await session.next_event()
            except TimeoutError:
                raise Disconnected("WhatsApp cannot be reached any more.") from None
            if (reason := web_session.ended(name, event)) is not None:
                raise reason
            if name == "DisconnectedEv":
                limit_s = RECONNECT_S
            elif name == "ConnectedEv":
                limit_s = None
                identity = await self._identify(session)
                self._client = session.client
                ready(identity)
            elif name == "MessageEv":
                await self._take(event, session, inbox)

    async def _identify(self, session: Session) -> Identity:
        me = await session.client.get_me()
        self._own = Own(frozenset(user for user in (me.JID.User, me.LID.User) if user))
        return Identity(f"+{me.JID.User}", me.PushName or f"+{me.JID.User}")

    async def _take(self, event: Any, session: Session, inbox: Inbox) -> None:
        chat = event.Info.MessageSource.Chat
        name = await self._group_name(chat, session) if chat.Server == GROUP else ""
        found = web_events.translate(event, self._own, name)
        if found is None:
            return
        self._known[found.message_id] = event
        self._newest[found.address.to] = found.message_id
        for remembered in (self._known, self._newest):
            if len(remembered) > _MAX_REMEMBERED:
                remembered.popitem(last=False)
        await inbox.accept([found])

    async def _group_name(self, jid: Any, session: Session) -> str:
        if jid.User not in self._groups:
            try:
                async with asyncio.timeout(_LOOKUP_S):
                    about = await session.client.get_group_info(jid)
                self._groups[jid.User] = str(about.GroupName.Name)
            except Exception as error:  # whatever the library raises: the name is only shown
                _log.warning("name of a WhatsApp group not known: %s", error)
                return ""
        return self._groups[jid.User]

    async def probe(self) -> Identity:
        if self._client is not None:
            me = await self._client.get_me()
            return Identity(f"+{me.JID.User}", me.PushName or f"+{me.JID.User}")
        database = self.account.folder / DATABASE
        if not database.exists():
            raise LoginNeeded(NOT_LINKED)
        factory = web_session.library("aioze.client").ClientFactory
        devices = await asyncio.to_thread(factory.get_all_devices_from_db, str(database))
        if not devices:
            raise LoginNeeded(NOT_LINKED)
        number = f"+{devices[0].JID.User.partition(':')[0]}"
        return Identity(number, devices[0].PushName or number, "linked, not connected")

    async def login(self, show: Callable[[str], None]) -> Identity:
        """Link a phone: `show` is given the text of a QR code, again whenever it changes."""
        try:
            async with asyncio.timeout(LOGIN_S), open_session(self.account.folder) as session:
                while True:
                    name, event = await session.next_event()
                    if name == web_session.QR:
                        show(event.decode() if isinstance(event, bytes) else str(event))
                    elif name == "ConnectedEv":
                        return await self._identify(session)
                    elif (reason := web_session.ended(name, event)) is not None:
                        raise reason
        except TimeoutError:
            raise Disconnected("The code was not scanned in time. Try again.") from None

    async def logout(self) -> None:
        """Remove this device from the phone, as far as WhatsApp can be reached, and forget its keys."""
        if not (self.account.folder / DATABASE).exists():
            return
        try:
            async with asyncio.timeout(LOGOUT_S), open_session(self.account.folder) as session:
                while (await session.next_event())[0] not in ("ConnectedEv", web_session.QR):
                    pass
                await session.client.logout()
        except Exception as error:  # whatever the library raises: the keys are removed in any case
            _log.warning("the phone was not told of the logout, remove the device there: %s", error)
        web_session.forget(self.account.folder)

    async def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        if media.size is not None and media.size > limit:
            raise Undeliverable(f"The file is larger than {limit:,} bytes.")
        client, messages = self._connected(), web_session.library("proto.waE2E.WAWebProtobufsE2E_pb2")
        try:
            message = messages.Message.FromString(base64.b64decode(media.ref, validate=True))
            content = await client.download_any(message)
        except (binascii.Error, NotNow) as error:
            raise Undeliverable(f"The file cannot be fetched: {error}.") from None
        except Exception as error:  # whatever the library raises
            raise Undeliverable(f"The file could not be downloaded: {error}.") from None
        if not content or len(content) > limit:
            raise Undeliverable(f"The file is empty, or larger than {limit:,} bytes.")
        yield content

    # --- Sending

    async def send(self, part: Outgoing) -> str:
        client, jid = self._connected(), _jid(part.address.to)
        text = whatsapp_text(part.text)
        if part.file is not None:
            message = await self._file(client, part.file, text)
        else:
            message = self._text(text, part.reply_to)
        try:
            sent = await client.send_message(jid, message)
        except Exception as error:  # the library has one error for everything, with a text
            raise _failure(error) from error
        if not sent.ID:
            raise Unanswered("WhatsApp did not name the message it sent.")
        return str(sent.ID)

    def _text(self, text: str, reply_to: str | None) -> Any:
        messages = web_session.library("proto.waE2E.WAWebProtobufsE2E_pb2")
        quoted = self._known.get(reply_to or "")
        if quoted is None:
            return messages.Message(conversation=text)
        sender = quoted.Info.MessageSource.Sender
        context = messages.ContextInfo(
            stanzaID=quoted.Info.ID,
            participant=f"{sender.User}@{sender.Server}",
            quotedMessage=quoted.Message,
        )
        return messages.Message(
            extendedTextMessage=messages.ExtendedTextMessage(text=text, contextInfo=context)
        )

    async def _file(self, client: Any, file: OutgoingFile, caption: str) -> Any:
        """Upload a file. Nobody sees it until a message names it, so this can be repeated."""
        try:
            if file.path.stat().st_size > _MAX_UPLOAD_BYTES:
                raise Undeliverable(f"The file {file.name} is larger than the 100 MB that WhatsApp accepts.")
            content = await asyncio.to_thread(file.path.read_bytes)
        except OSError as error:
            raise Undeliverable(f"The file {file.name} cannot be read: {error.strerror}.") from error
        try:
            if file.mime_type in _IMAGES:
                try:
                    return await client.build_image_message(content, caption=caption or None)
                except (OSError, ValueError) as error:  # no image after all
                    _log.warning("%s is sent as a document: %s", file.name, error)
            return await client.build_document_message(
                content, caption=caption or None, filename=file.name, mimetype=file.mime_type
            )
        except Exception as error:  # whatever the library raises: nothing was sent
            raise Undeliverable(
                f"The file {file.name} could not be uploaded: {error}.", again=True
            ) from error

    async def react(self, address: Address, message_id: str, emoji: str | None) -> None:
        client, known = self._connected(), self._known.get(message_id)
        if known is None:
            raise Undeliverable("The message is not known any more.")
        source = known.Info.MessageSource
        message = await client.build_reaction(source.Chat, source.Sender, message_id, emoji or "")
        await client.send_message(source.Chat, message)

    async def typing(self, address: Address) -> None:
        """Show typing, and mark the newest message as read if that is wanted: it was admitted."""
        client, kinds = self._connected(), web_session.library("utils.enum")
        newest = self._newest.pop(address.to, None)
        known = self._known.get(newest or "")
        if newest and known is not None and self.account.settings.send_read_receipts:
            source = known.Info.MessageSource
            await client.mark_read(
                newest, chat=source.Chat, sender=source.Sender, receipt=kinds.ReceiptType.READ
            )
        await client.send_chat_presence(
            _jid(address.to),
            kinds.ChatPresence.CHAT_PRESENCE_COMPOSING,
            kinds.ChatPresenceMedia.CHAT_PRESENCE_MEDIA_TEXT,
        )

    def _connected(self) -> Any:
        if self._client is None:
            raise NotNow("WhatsApp is not connected", 1.0, scope="account")
        return self._client


def _jid(to: str) -> Any:
    """The id of a chat for the library."""
    user, at, server = to.removeprefix("+").partition("@")
    if not user or (not at and not user.isdigit()):
        raise Undeliverable(f"{to!r} is neither a number nor a chat of WhatsApp.")
    return web_session.library("utils.jid").build_jid(user, server or PHONE)


def _failure(error: Exception) -> Exception:
    """What an error of the library means for the message."""
    text = str(error)[:300]
    if "not logged in" in text or "not paired" in text:
        return LoginNeeded(NOT_LINKED)
    if "not connected" in text:
        return NotNow("WhatsApp is not connected", 1.0, scope="account")
    if "rate-overlimit" in text or "429" in text:
        return NotNow("WhatsApp limits messages", LIMIT_S, scope="account")
    return Unanswered(f"WhatsApp did not confirm the message: {text}.")
