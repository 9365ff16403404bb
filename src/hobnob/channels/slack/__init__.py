"""Slack over Socket Mode. A message is acknowledged to Slack after the inbox has stored it.

Slack sends an envelope again if it is not answered, so a message that was not stored comes again. A part of a
delivery carries its key as metadata of the message, so that a part whose receipt was lost can be found.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Disconnected,
    Identity,
    Inbox,
    NotNow,
    Outgoing,
    Undeliverable,
)
from hobnob.channels.http import Unanswered
from hobnob.channels.slack import emoji as emoji_names
from hobnob.channels.slack.directory import Directory
from hobnob.channels.slack.events import Me
from hobnob.channels.slack.files import Files
from hobnob.channels.slack.receiving import Receiver
from hobnob.channels.slack.web_api import Refused, WebApi, messages_of
from hobnob.channels.text import slack_text
from hobnob.inbound import Address, Media

TEXT_LIMIT = 8_000  # Slack takes 40,000 characters, but shows such a message folded
METADATA = "hobnob_part"
_ADDRESS = re.compile(r"(?:(?P<kind>user|channel):)?(?P<id>[A-Z][A-Z0-9]{1,30})")
_PAGE = 200
_MAX_PAGES = 5
_FIND_AGE_S = 48 * 3600  # deliveries are given up after a day
_MAX_LIMIT_S = 60.0


class Slack(Channel):
    capabilities = Capabilities(
        chat_types=("direct", "group", "channel"),
        text_limit=TEXT_LIMIT,
        measure=lambda text: len(slack_text(text)),
        threads=True,
        edits=True,
        deletes=True,
        reactions=True,
        media_in=True,
        media_out=True,
        finds_sent=True,
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._api = WebApi(account)
        self._directory = Directory(self._api)
        self._files = Files(account, self._api)

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        try:
            me, identity = await self._sign_in()
            receiver = Receiver(self.account, self._api, self._directory, me, inbox)
            await receiver.run(lambda: ready(identity))
        except NotNow as limited:
            await asyncio.sleep(min(limited.after_s, _MAX_LIMIT_S))
            raise Disconnected(str(limited)) from limited
        except (Undeliverable, Unanswered) as error:
            raise Disconnected(str(error)) from error

    async def probe(self) -> Identity:
        try:
            _, identity = await self._sign_in()
            await self._api.open_connection()
        except (NotNow, Undeliverable, Unanswered) as error:
            raise Disconnected(str(error)) from error
        return identity

    async def _sign_in(self) -> tuple[Me, Identity]:
        found = await self._api.call("auth.test", timeout_s=15.0)
        user, bot, team, name = (str(found.get(k) or "") for k in ("user_id", "bot_id", "team_id", "user"))
        return Me(user, bot, team, name), Identity(user, name, f"workspace {found.get('team')}")

    async def send(self, part: Outgoing) -> str:
        channel = await self._channel_of(part.address)
        text = slack_text(part.text)
        if part.file is not None:
            return await self._files.send(part, part.file, channel, _thread_of(part), text)
        return await self._post(channel, _thread_of(part), text, part.key)

    async def _post(self, channel: str, thread: str | None, text: str, key: str | None = None) -> str:
        unfurl = self._api.settings.unfurl_links
        metadata = {"event_type": METADATA, "event_payload": {"key": key}} if key else None
        answer = await self._api.call(
            "chat.postMessage",
            channel=channel,
            text=text,
            thread_ts=thread,
            unfurl_links=unfurl,
            unfurl_media=unfurl,
            metadata=metadata,
        )
        return str(answer.get("ts") or "")

    async def find(self, part: Outgoing) -> str | None:
        channel, thread = await self._channel_of(part.address), _thread_of(part)
        if part.file is not None:
            return await self._files.find(part, channel)
        method = "conversations.replies" if thread else "conversations.history"
        oldest = f"{time.time() - _FIND_AGE_S:.6f}"
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            answer = await self._api.call(
                method,
                channel=channel,
                ts=thread,
                oldest=oldest,
                limit=_PAGE,
                include_all_metadata=True,
                cursor=cursor,
            )
            for message in messages_of(answer):
                if _key_of(message) == part.key:
                    return str(message.get("ts") or "")
            pages = answer.get("response_metadata")
            cursor = str(pages.get("next_cursor") or "") if isinstance(pages, dict) else ""
            if not cursor:
                return None
        raise Unanswered("The conversation has too many messages to look for this one.")

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        channel = await self._channel_of(address)
        await self._api.call("chat.update", channel=channel, ts=message_id, text=slack_text(text))

    async def delete(self, address: Address, message_id: str) -> None:
        channel = await self._channel_of(address)
        with _unless("message_not_found"):
            await self._api.call("chat.delete", channel=channel, ts=message_id)

    async def react(self, address: Address, message_id: str, emoji: str | None) -> None:
        where: dict[str, Any] = {"channel": await self._channel_of(address), "timestamp": message_id}
        if emoji:
            with _unless("already_reacted"):
                await self._api.call("reactions.add", name=emoji_names.name(emoji), **where)
            return
        me, _ = await self._sign_in()
        message = (await self._api.call("reactions.get", **where)).get("message")
        reactions = message.get("reactions") if isinstance(message, dict) else None
        for reaction in reactions if isinstance(reactions, list) else ():
            if me.user_id in reaction.get("users", ()):
                with _unless("no_reaction"):
                    await self._api.call("reactions.remove", name=reaction["name"], **where)

    async def can_open_thread(self, address: Address) -> str | None:
        if (await self._channel_of(address)).startswith("D"):
            return "Threads of a direct conversation on Slack belong to its session: ask in a channel."
        return None

    async def open_thread(self, address: Address, title: str, root_message_id: str | None) -> str:
        if refusal := await self.can_open_thread(address):
            raise Undeliverable(refusal)
        return root_message_id or await self._post(await self._channel_of(address), None, slack_text(title))

    def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        return self._files.content(media, limit)

    async def _channel_of(self, address: Address) -> str:
        """The conversation of an address: `channel:C…`, `user:U…`, or a plain id."""
        found = _ADDRESS.fullmatch(address.to)
        if found is None:
            raise Undeliverable(f"{address.to!r} is no address on Slack: user:U…, channel:C… or a plain id.")
        is_person = found["kind"] == "user" or (found["kind"] is None and found["id"][0] in "UW")
        return await self._directory.direct_with(found["id"]) if is_person else found["id"]


def channel(account: Account) -> Channel:
    return Slack(account)


def _thread_of(part: Outgoing) -> str | None:
    """An answer to a message is a reply in its thread: Slack has no other quotes."""
    return part.address.thread_id or part.reply_to


@contextmanager
def _unless(code: str) -> Iterator[None]:
    """Ignore a refusal which says that there is nothing left to do."""
    try:
        yield
    except Refused as refused:
        if refused.code != code:
            raise


def _key_of(message: dict[str, Any]) -> str | None:
    """The key of the part that a message of the bot shows."""
    metadata = message.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("event_type") != METADATA:
        return None
    payload = metadata.get("event_payload")
    return payload.get("key") if isinstance(payload, dict) else None
