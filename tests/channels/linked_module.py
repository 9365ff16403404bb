"""A channel that is linked with a phone: its login shows one code, and ends when a file exists."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from hobnob.channels import Account, Channel, Identity, Inbox, LoginNeeded


class Linked(Channel):
    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        if not Path(self.account.settings.options["scanned"]).exists():
            raise LoginNeeded("No phone is linked yet.")
        ready(Identity("bot", "Bot"))
        await asyncio.Event().wait()

    async def login(self, show: Callable[[str], None]) -> Identity:
        show("2@a-code")
        while not Path(self.account.settings.options["scanned"]).exists():
            await asyncio.sleep(0.02)
        return Identity("bot", "Bot")


def channel(account: Account) -> Channel:
    return Linked(account)
