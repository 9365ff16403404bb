"""Calls of the Telegram Bot API: the token, the address, and what its errors mean."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hobnob.channels import Account, LoginNeeded, NotNow, Undeliverable
from hobnob.channels import http as calls
from hobnob.channels.http import Unanswered
from hobnob.config.channels import DEFAULT_ACCOUNT
from hobnob.config.channels.telegram import TelegramAccount

TIMEOUT_S = 30.0
UPLOAD_TIMEOUT_S = 55.0
_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}")
_MAX_TOKEN_FILE = 4096
_DEFAULT_WAIT_S = 1.0


class Refused(Undeliverable):
    """The Bot API answered with an error. `migrated_to` is the new id of a group that has one."""

    def __init__(self, status: int, description: str, migrated_to: str | None = None) -> None:
        super().__init__(f"Telegram refused it: {description} ({status}).")
        self.status = status
        self.description = description.lower()
        self.migrated_to = migrated_to


class BotApi:
    def __init__(self, account: Account) -> None:
        self._account = account
        self._known_token: str | None = None

    async def call(
        self, method: str, params: dict[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> Any:
        """Call a method with JSON. Returns `result`; see `_request` for what it raises."""
        return await self._request(method, timeout_s, json=params or {})

    async def upload(self, method: str, params: dict[str, str], field: str, file: Path, name: str) -> Any:
        """Call a method with a file. The parameters are texts."""
        import aiohttp

        try:
            content = file.open("rb")
        except OSError as error:
            raise Undeliverable(f"The file {name} cannot be read: {error.strerror}.") from error
        with content:
            form = aiohttp.FormData()
            for key, value in params.items():
                form.add_field(key, value)
            form.add_field(field, content, filename=name)
            return await self._request(method, UPLOAD_TIMEOUT_S, data=form)

    async def download(self, file_path: str, limit: int) -> AsyncIterator[bytes]:
        """The content of a file that `getFile` named."""
        url = f"{self._root}/file/bot{self._token}/{quote(file_path.lstrip('/'))}"
        try:
            async for piece in calls.download(self._account.http(), url, limit):
                yield piece
        except (Undeliverable, Unanswered) as error:
            raise Undeliverable(self._without_token(str(error))) from None

    async def _request(self, method: str, timeout_s: float, **request: Any) -> Any:
        """Send a request. Raises Refused, NotNow for a rate limit, LoginNeeded for a refused token,
        Undeliverable(again) if it never left, and Unanswered if its effect is not known."""
        url = f"{self._root}/bot{self._token}/{method}"
        try:
            answer = await calls.call(self._account.http(), "POST", url, timeout_s=timeout_s, **request)
        # The errors of the HTTP client may name the address, and the address contains the token.
        except Undeliverable as error:
            raise Undeliverable(self._without_token(str(error)), again=error.again) from None
        except Unanswered as error:
            raise Unanswered(self._without_token(str(error))) from None
        body = answer.body if isinstance(answer.body, dict) else {}
        if body.get("ok") is True and "result" in body:
            return body["result"]
        if answer.status >= 500 or body.get("ok") is not False:
            raise Unanswered(f"Telegram answered with status {answer.status} and no result.")
        described = body.get("description")
        description = self._without_token(described[:500] if isinstance(described, str) else "no description")
        extra = body.get("parameters")
        extra = extra if isinstance(extra, dict) else {}
        if answer.status == 401 or (answer.status == 404 and method == "getMe"):
            raise LoginNeeded(f"Telegram does not accept the bot token ({description}).")
        if answer.status == 429:
            wait = extra.get("retry_after")
            after_s = float(wait) if isinstance(wait, int | float) and wait > 0 else _DEFAULT_WAIT_S
            raise NotNow(f"Telegram asks to wait {after_s:g} s", after_s)
        moved = extra.get("migrate_to_chat_id")
        raise Refused(answer.status, description, str(moved) if isinstance(moved, int) else None)

    @property
    def _settings(self) -> TelegramAccount:
        settings = self._account.settings
        assert isinstance(settings, TelegramAccount)
        return settings

    @property
    def _root(self) -> str:
        return self._settings.api_root.rstrip("/")

    @property
    def _token(self) -> str:
        if self._known_token is None:
            token = _token_of(self._settings, is_default=self._account.account_id == DEFAULT_ACCOUNT)
            if not _TOKEN.fullmatch(token):
                raise LoginNeeded("The bot token is not one that @BotFather gave: it has the form 123:ABC.")
            self._known_token = token
        return self._known_token

    def _without_token(self, text: str) -> str:
        return text.replace(self._token, "…").replace(quote(self._token), "…")


def _token_of(settings: TelegramAccount, *, is_default: bool) -> str:
    if settings.bot_token is not None:
        return settings.bot_token.get_secret_value().strip()
    if settings.token_file is not None:
        return _read_token(Path(settings.token_file).expanduser())
    if is_default and (token := os.environ.get("TELEGRAM_BOT_TOKEN")):
        return token.strip()
    raise LoginNeeded("There is no bot token: set channels.telegram.botToken or $TELEGRAM_BOT_TOKEN.")


def _read_token(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise LoginNeeded(f"The token file {path} is not a regular file.")
            return file.read(_MAX_TOKEN_FILE).decode("utf-8", "replace").strip()
    except OSError as error:
        raise LoginNeeded(f"The token file {path} cannot be read: {error.strerror}.") from error
