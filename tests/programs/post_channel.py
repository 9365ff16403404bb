"""A channel on a plain HTTP server: it gets messages after a position, and posts messages.

The server cannot recognise a message that is posted again.
"""

from collections.abc import Callable
from typing import Any

import aiohttp

from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Disconnected,
    Identity,
    Inbox,
    Outgoing,
    Undeliverable,
)
from hobnob.inbound import Address, Inbound, Sender
from hobnob.types import now_ms


class PostChannel(Channel):
    capabilities = Capabilities(chat_types=("direct",))

    @property
    def _url(self) -> str:
        return str(self.account.settings.options["url"])

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        ready(Identity("bot", "Bot"))
        position = int(await inbox.cursor() or 0)
        while True:
            try:
                async with self.account.http().get(self._url, params={"after": position}) as answer:
                    said = await answer.json()
            except (aiohttp.ClientError, OSError) as error:
                raise Disconnected(str(error)) from None
            if said:
                events = [_inbound(position + i, message) for i, message in enumerate(said)]
                position += len(said)
                await inbox.accept(events, str(position))

    async def send(self, part: Outgoing) -> str:
        body = {"key": part.key, "to": part.address.to, "text": part.text}
        try:
            posted = await self.account.http().post(self._url, json=body)
        except aiohttp.ClientConnectorError as error:
            raise Undeliverable(str(error), again=True) from None
        async with posted:
            posted.raise_for_status()
            return str(await posted.text())

    async def probe(self) -> Identity:
        return Identity("bot", "Bot")


def _inbound(number: int, message: dict[str, Any]) -> Inbound:
    sender = message["from"]
    return Inbound(
        event_id=str(number),
        message_id=str(number),
        sender=Sender(id=sender, name=sender),
        chat_id=sender,
        chat_type="direct",
        address=Address(sender),
        text=message["text"],
        at_ms=now_ms(),
    )


def channel(account: Account) -> Channel:
    return PostChannel(account)
