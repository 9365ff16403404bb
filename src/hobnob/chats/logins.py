"""Logins of channels that are linked with a phone: a code is shown until somebody has scanned it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from hobnob import redact
from hobnob.channels import Channel, Identity
from hobnob.chats.accounts import AccountKey, Accounts

State = Literal["starting", "scan", "connected", "failed"]
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Login:
    """A login that goes on, or how it ended. `code` is the text of the QR code to show."""

    state: State = "starting"
    code: str | None = None
    identity: Identity | None = None
    error: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def has_ended(self) -> bool:
        return self.state in ("connected", "failed")

    def change(self, state: State, **values: object) -> None:
        self.state = state
        for name, value in values.items():
            setattr(self, name, value)
        self.changed.set()
        self.changed = asyncio.Event()


class Logins:
    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._logins: dict[AccountKey, Login] = {}

    async def start(self, channel: str, account_id: str, timeout_s: float) -> Login:
        """Begin a login, or join the one that goes on. Returns when there is a code, or it has ended."""
        key = (channel, account_id)
        login = self._logins.get(key)
        if login is None or login.has_ended:
            login = self._logins[key] = Login()
            login.task = asyncio.create_task(self._run(key, login), name=f"login {channel} {account_id}")
        return await self._until(login, lambda: login.state != "starting", timeout_s)

    async def wait(self, channel: str, account_id: str, seen: str | None, timeout_s: float) -> Login | None:
        """Wait until a login has ended, or shows another code than `seen`. None if there is no login."""
        login = self._logins.get((channel, account_id))
        if login is None:
            return None
        return await self._until(login, lambda: login.has_ended or login.code != seen, timeout_s)

    async def close(self) -> None:
        """End the logins that go on."""
        tasks = [login.task for login in self._logins.values() if login.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: AccountKey, login: Login) -> None:
        try:
            channel = await self._accounts.taken_over(*key)
            login.identity = await channel.login(lambda code: login.change("scan", code=code))
        except Exception as error:  # whatever the channel raises is how the login ended
            why = redact.text(str(error))[0] or type(error).__name__
            _log.warning("login to %s, account %s failed: %s", *key, why)
            login.change("failed", code=None, error=why)
            return
        finally:
            if not login.has_ended and login.identity is None:
                login.change("failed", code=None, error="The login was cancelled.")
        self._accounts.start(*key)
        login.change("connected", code=None)

    async def _until(self, login: Login, condition: Callable[[], bool], timeout_s: float) -> Login:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await login.changed.wait()
        return login


def can_login(channel: Channel | None) -> bool:
    """Whether a channel has a login of its own."""
    return channel is not None and type(channel).login is not Channel.login
