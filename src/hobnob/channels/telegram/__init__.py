"""The channel `telegram`: a bot that receives by long polling.

Telegram forgets an update when a later `getUpdates` names a higher offset. The offset is the cursor of this
channel, stored together with the messages, so an update that was not stored comes again.
"""

from __future__ import annotations

import asyncio
import html
import logging
import re
import time
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
from hobnob.channels.telegram import updates
from hobnob.channels.telegram.bot_api import BotApi, Refused
from hobnob.channels.telegram.updates import GENERAL_TOPIC, Bot, Update
from hobnob.channels.text import plain_text, telegram_html, telegram_length
from hobnob.inbound import Address, Media

POLL_S = 25
ALBUM_WAIT_S = 0.5  # the files of an album are separate updates, and may come in two answers
MAX_UPLOAD_BYTES = 50_000_000
MAX_PHOTO_BYTES = 10_000_000
_MAX_CAPTION = 1024
_MAX_TEXT = 4096
_MAX_TOPIC_NAME = 128
_MAX_LIMIT_WAIT_S = 60.0
# After a week without updates Telegram may begin with another number, possibly a lower one.
_CURSOR_VALID_S = 6 * 24 * 3600
_TAGS = re.compile(r"<[^>]*>")
_log = logging.getLogger(__name__)


def channel(account: Account) -> Channel:
    return Telegram(account)


class Telegram(Channel):
    capabilities = Capabilities(
        chat_types=("direct", "group", "channel"),
        text_limit=_MAX_TEXT,
        measure=telegram_length,
        threads=True,
        edits=True,
        deletes=True,
        reactions=True,
        typing_every_s=4.0,
        media_in=True,
        media_out=True,
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._api = BotApi(account)
        self._bot: Bot | None = None
        self._moved: dict[str, str] = {}

    # --- Receiving

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        try:
            identity = await self._sign_in()
            await self._api.call("deleteWebhook")  # with a webhook there is no polling
            ready(identity)
            assert self._bot is not None
            await self._poll(inbox, self._bot)
        except NotNow as limit:
            await asyncio.sleep(min(limit.after_s, _MAX_LIMIT_WAIT_S))
            raise Disconnected(str(limit)) from None
        except Refused as refusal:
            if refusal.status == 409:
                raise Disconnected("Another program receives the messages of this bot.") from None
            raise reconnecting(refusal) from None
        except (Undeliverable, Unanswered) as failure:
            raise reconnecting(failure) from None

    async def _poll(self, inbox: Inbox, bot: Bot) -> None:
        offset, stored_at = _position(await inbox.cursor())
        album: list[int] = []
        while True:
            if time.time() - stored_at > _CURSOR_VALID_S:
                offset = None
            found = await self._updates(offset, bot)
            if not found:
                continue
            waiting = _open_album(found)
            if waiting and [update.id for update in waiting] != album:
                # More of it may come. It stays unconfirmed meanwhile.
                album = [update.id for update in waiting]
                found = found[: -len(waiting)]
                wait_s = ALBUM_WAIT_S
            else:
                album, wait_s = [], 0.0
            if found:
                offset, stored_at = found[-1].id + 1, time.time()
                await inbox.accept(updates.events(found), f"{offset} {int(stored_at)}")
            await asyncio.sleep(wait_s)

    async def _updates(self, offset: int | None, bot: Bot) -> list[Update]:
        params: dict[str, Any] = {
            "timeout": POLL_S,
            "limit": 50,
            "allowed_updates": ["message", "channel_post"],
        }
        if offset is not None:
            params["offset"] = offset
        result = await self._api.call("getUpdates", params, timeout_s=POLL_S + 15)
        found = updates.translate(result, bot) if isinstance(result, list) else []
        if not found and result != []:
            raise Disconnected("Telegram sent updates without ids.")  # the offset could not move
        return found

    async def _sign_in(self) -> Identity:
        me = await self._api.call("getMe")
        if not isinstance(me, dict) or type(me.get("id")) is not int:
            raise Disconnected("Telegram did not say who the bot is.")
        self._bot = Bot(
            me["id"],
            str(me.get("username") or ""),
            has_topics=me.get("has_topics_enabled") is True,
            reads_groups=me.get("can_read_all_group_messages") is True,
        )
        name = f"@{self._bot.username}" if self._bot.username else str(me.get("first_name") or "")
        hint = "" if self._bot.reads_groups else "in groups it sees only what is addressed to it"
        return Identity(str(self._bot.id), name, hint)

    async def probe(self) -> Identity:
        try:
            return await self._sign_in()
        except (Undeliverable, Unanswered, NotNow) as failure:
            raise reconnecting(failure) from None

    async def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        try:
            file = await self._api.call("getFile", {"file_id": media.ref})
        except (NotNow, LoginNeeded, Unanswered) as failure:
            raise Undeliverable(str(failure)) from None
        if not isinstance(file, dict) or not isinstance(path := file.get("file_path"), str):
            raise Undeliverable("Telegram does not offer the file for download.")
        async for piece in self._api.download(path, limit):
            yield piece

    # --- Sending

    async def send(self, part: Outgoing) -> str:
        if part.file is None:
            return await self._send_text(part, part.text)
        if telegram_length(part.text) > _MAX_CAPTION:
            raise Undeliverable(f"The text with a file has more than {_MAX_CAPTION:,} characters.")
        return await self._send_file(part, part.file, part.text)

    async def _send_text(self, part: Outgoing, text: str) -> str:
        params = self._target(part)
        if not self.account.settings.link_preview:
            params["link_preview_options"] = {"is_disabled": True}
        return _message_id(await self._formatted("sendMessage", params, "text", text))

    async def _send_file(self, part: Outgoing, file: OutgoingFile, caption: str) -> str:
        try:
            size = file.path.stat().st_size
        except OSError as error:
            raise Undeliverable(f"The file {file.name} cannot be read: {error.strerror}.") from error
        if size > MAX_UPLOAD_BYTES:
            raise Undeliverable(
                f"The file {file.name} is larger than the {MAX_UPLOAD_BYTES:,} bytes of bots."
            )
        method, field = _upload_method(file, size)

        async def upload(target: dict[str, Any]) -> Any:
            params = {k: v if isinstance(v, str) else _json(v) for k, v in target.items()}
            return await self._api.upload(method, params, field, file.path, file.name)

        formatted = {"caption": telegram_html(caption), "parse_mode": "HTML"} if caption else {}
        try:
            return _message_id(await self._following(upload, self._target(part) | formatted))
        except Refused as refusal:
            if "can't parse entities" in refusal.description:
                plain = {"caption": _shown(caption, _MAX_CAPTION)}
                return _message_id(await self._following(upload, self._target(part) | plain))
            if refusal.status != 400 or method == "sendDocument":
                raise
        # What Telegram does not take as a photo, a voice message or a video, it takes as a file.
        method, field = "sendDocument", "document"
        return _message_id(await self._following(upload, self._target(part) | formatted))

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        params = {"chat_id": self._chat(address), "message_id": _number(message_id)}
        if not self.account.settings.link_preview:
            params["link_preview_options"] = {"is_disabled": True}
        try:
            await self._formatted("editMessageText", params, "text", text)
        except Refused as refusal:
            if "message is not modified" not in refusal.description:
                raise

    async def delete(self, address: Address, message_id: str) -> None:
        params = {"chat_id": self._chat(address), "message_id": _number(message_id)}
        try:
            await self._call("deleteMessage", params)
        except Refused as refusal:
            if "message to delete not found" not in refusal.description:
                raise

    async def react(self, address: Address, message_id: str, emoji: str | None) -> None:
        reaction = [{"type": "emoji", "emoji": emoji}] if emoji else []
        params = {"chat_id": self._chat(address), "message_id": _number(message_id), "reaction": reaction}
        await self._call("setMessageReaction", params)

    async def typing(self, address: Address) -> None:
        params: dict[str, Any] = {"chat_id": self._chat(address), "action": "typing"}
        if address.thread_id is not None:
            params["message_thread_id"] = _number(address.thread_id)  # here the general topic has its number
        await self._call("sendChatAction", params)

    async def can_open_thread(self, address: Address) -> str | None:
        chat = await self._call("getChat", {"chat_id": self._chat(address)})
        if not isinstance(chat, dict) or chat.get("is_forum") is not True:
            return "This Telegram chat has no topics; they can be enabled in the settings of a group."
        if self._bot is None:
            await self._sign_in()
        assert self._bot is not None
        params = {"chat_id": self._chat(address), "user_id": self._bot.id}
        member = await self._call("getChatMember", params)
        if not isinstance(member, dict) or not (
            member.get("status") == "creator" or member.get("can_manage_topics") is True
        ):
            return "The bot may not open topics here; make it an administrator who can manage topics."
        return None

    async def open_thread(self, address: Address, title: str, root_message_id: str | None) -> str:
        name = " ".join(title.split())[:_MAX_TOPIC_NAME] or "Topic"
        topic = await self._call("createForumTopic", {"chat_id": self._chat(address), "name": name})
        if not isinstance(topic, dict) or type(topic.get("message_thread_id")) is not int:
            raise Unanswered("Telegram did not name the topic it opened.")
        return str(topic["message_thread_id"])

    # --- Calls

    def _target(self, part: Outgoing) -> dict[str, Any]:
        params: dict[str, Any] = {"chat_id": self._chat(part.address)}
        # Telegram does not find the general topic by its number.
        if part.address.thread_id not in (None, GENERAL_TOPIC):
            params["message_thread_id"] = _number(part.address.thread_id or "")
        if part.reply_to is not None:
            reply = {"message_id": _number(part.reply_to), "allow_sending_without_reply": True}
            params["reply_parameters"] = reply
        return params

    def _chat(self, address: Address) -> str:
        return self._moved.get(address.to, address.to)

    async def _formatted(self, method: str, params: dict[str, Any], field: str, text: str) -> Any:
        """Call a method with a Markdown text; without markup if Telegram does not understand ours."""
        try:
            return await self._call(method, params | {field: telegram_html(text), "parse_mode": "HTML"})
        except Refused as refusal:
            if "can't parse entities" not in refusal.description:
                raise
            _log.warning("Telegram did not understand the markup of a message: sent without")
        return await self._call(method, params | {field: _shown(text, _MAX_TEXT)})

    async def _call(self, method: str, params: dict[str, Any]) -> Any:
        return await self._following(lambda p: self._api.call(method, p), params)

    async def _following(self, call: Callable[[dict[str, Any]], Any], params: dict[str, Any]) -> Any:
        """Call a method; if the group has another id now, with that one."""
        try:
            return await call(params)
        except Refused as refusal:
            if refusal.migrated_to is None:
                raise
            _log.warning("the Telegram group %s has the id %s now", params["chat_id"], refusal.migrated_to)
            self._moved[str(params["chat_id"])] = refusal.migrated_to
            return await call(params | {"chat_id": refusal.migrated_to})


def _position(cursor: str | None) -> tuple[int | None, float]:
    """The offset, and when it was stored."""
    try:
        offset, stored_at = (cursor or "").split()
        return int(offset), float(stored_at)
    except ValueError:
        return None, time.time()


def _open_album(found: list[Update]) -> list[Update]:
    """The updates at the end that belong to one album."""
    album = found[-1].album
    start = len(found)
    while album and start and found[start - 1].album == album:
        start -= 1
    return found[start:]


def _upload_method(file: OutgoingFile, size: int) -> tuple[str, str]:
    match file.mime_type.partition(";")[0]:
        case "image/jpeg" | "image/png" | "image/webp" if size <= MAX_PHOTO_BYTES:
            return "sendPhoto", "photo"
        case "audio/ogg":
            return "sendVoice", "voice"
        case "audio/mpeg" | "audio/mp4":
            return "sendAudio", "audio"
        case "video/mp4":
            return "sendVideo", "video"
    return "sendDocument", "document"


def _shown(text: str, limit: int) -> str:
    """A Markdown text without markup, within the limit."""
    plain = plain_text(text)
    if len(plain.encode("utf-16-le")) // 2 <= limit:
        return plain
    return html.unescape(_TAGS.sub("", telegram_html(text)))


def _message_id(result: Any) -> str:
    if not isinstance(result, dict) or type(result.get("message_id")) is not int:
        raise Unanswered("Telegram did not name the message it sent.")
    return str(result["message_id"])


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Undeliverable(f"{text!r} is not the id of a message or topic on Telegram.") from None


def _json(value: Any) -> str:
    import orjson

    return orjson.dumps(value).decode()
