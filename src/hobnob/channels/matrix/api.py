"""Calls of the Matrix client-server API, and the sign-in. Errors become those of the channel interface."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from hobnob import json_input, statedir
from hobnob.channels import Account, LoginNeeded, NotNow, Undeliverable
from hobnob.channels.http import Answer, Unanswered, call
from hobnob.config.channels.matrix import MatrixAccount
from hobnob.records import Struct, asdict

CLIENT = "_matrix/client/v3"
_LOGIN_FILE = "login.json"
_TOKEN_GONE = {"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED"}
_DEFAULT_PAUSE_S = 5.0


class Refused(Undeliverable):
    """The homeserver refused a request. `code` is the `errcode` of Matrix."""

    def __init__(self, code: str, text: str, status: int) -> None:
        super().__init__(f"The homeserver refused it: {code or status} {text}".strip())
        self.code = code
        self.status = status


class Login(Struct, frozen=True):
    """Who we are on the homeserver, and the token that proves it. A device belongs to the token."""

    homeserver: str
    user_id: str
    device_id: str
    access_token: str


class Api:
    """Calls for one account. `login` is set by `sign_in`."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.login: Login | None = None

    @property
    def settings(self) -> MatrixAccount:
        settings: MatrixAccount = self._account.settings
        return settings

    @property
    def me(self) -> Login:
        """The login. Raises NotNow before `sign_in`."""
        if self.login is None:
            raise NotNow("not connected yet", 1.0, scope="account")
        return self.login

    @property
    def homeserver(self) -> str:
        base = (self.settings.homeserver or "").rstrip("/")
        if not base.startswith(("https://", "http://")):
            raise LoginNeeded("The setting homeserver must be an address such as https://matrix.org.")
        return base

    def url(self, *parts: str) -> str:
        """The address of an endpoint. Parts after the first are escaped."""
        first, *rest = parts
        return "/".join([self.homeserver, first, *(quote(part, safe="") for part in rest)])

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.me.access_token}"}

    async def call(self, method: str, *parts: str, timeout_s: float = 30.0, **request: Any) -> dict[str, Any]:
        """Call an endpoint as the signed-in user.

        Raises Refused, LoginNeeded, NotNow (rate limit), Undeliverable (never left), Unanswered.
        """
        headers = self.authorization | request.pop("headers", {})
        http = self._account.http()
        answer = await call(http, method, self.url(*parts), timeout_s=timeout_s, headers=headers, **request)
        try:
            return checked(answer)
        except LoginNeeded:
            await self.forget()
            raise

    async def sign_in(self) -> Login:
        """Sign in with the token of the settings, else the kept one, else the password."""
        settings = self.settings
        if settings.access_token is not None:
            self.login = await self._who(settings.access_token.get_secret_value())
        elif (kept := await asyncio.to_thread(_kept, self._file, self.homeserver)) is not None:
            self.login = kept
        elif settings.password is not None and settings.user_id:
            self.login = await self._by_password(settings.user_id, settings.password.get_secret_value())
            await asyncio.to_thread(_keep, self._file, self.login)
        else:
            raise LoginNeeded("Matrix needs the setting accessToken, or userId and password.")
        return self.login

    async def sign_out(self) -> None:
        """End a session that was begun with a password, and forget it."""
        if (kept := await asyncio.to_thread(_kept, self._file, self.homeserver)) is not None:
            self.login = kept
            with contextlib.suppress(LoginNeeded):  # the homeserver has ended it already
                await self.call("POST", CLIENT, "logout", json={})
            await self.forget()

    async def forget(self) -> None:
        """Forget the login and delete the kept token, so that the next start signs in with the password."""
        self.login = None
        await asyncio.to_thread(self._file.unlink, missing_ok=True)

    @property
    def _file(self) -> Path:
        return self._account.folder / _LOGIN_FILE

    async def _who(self, token: str) -> Login:
        self.login = Login(self.homeserver, "", "", token)
        who = await self.call("GET", CLIENT, "account", "whoami")
        device = str(who.get("device_id") or self.settings.device_id or "")
        return Login(self.homeserver, str(who.get("user_id", "")), device, token)

    async def _by_password(self, user: str, password: str) -> Login:
        request = {
            "type": "m.login.password",
            "identifier": {"type": "m.id.user", "user": user},
            "password": password,
            "initial_device_display_name": self.settings.device_name,
        } | ({"device_id": self.settings.device_id} if self.settings.device_id else {})
        http = self._account.http()
        try:
            body = checked(await call(http, "POST", self.url(CLIENT, "login"), json=request))
        except Refused as error:
            if error.status in (400, 401, 403):
                raise LoginNeeded(f"The homeserver refused user id or password: {error.code}.") from None
            raise
        try:
            return Login(self.homeserver, body["user_id"], body["device_id"], body["access_token"])
        except KeyError as missing:
            raise LoginNeeded(f"The answer to the login has no {missing}.") from None


def checked(answer: Answer) -> dict[str, Any]:
    """The body of a good answer. A bad one is raised."""
    body = answer.body if isinstance(answer.body, dict) else None
    if 200 <= answer.status < 300 and body is not None:
        return body
    code, text = str((body or {}).get("errcode", "")), str((body or {}).get("error", ""))[:200]
    if code in _TOKEN_GONE and answer.status in (401, 403):
        raise LoginNeeded(f"The homeserver does not accept the access token: {code}.")
    if answer.status == 429:
        raise NotNow("the rate limit of the homeserver", _pause_s(answer, body or {}), scope="account")
    if body is None or answer.status >= 500:
        raise Unanswered(f"The homeserver answered with status {answer.status}.")
    raise Refused(code, text, answer.status)


def _pause_s(answer: Answer, body: dict[str, Any]) -> float:
    after_ms = body.get("retry_after_ms")
    if isinstance(after_ms, int | float) and after_ms >= 0:
        return after_ms / 1000
    try:
        return max(0.0, float(answer.header("Retry-After") or _DEFAULT_PAUSE_S))
    except ValueError:
        return _DEFAULT_PAUSE_S


def _kept(file: Path, homeserver: str) -> Login | None:
    """The login that was kept, if it is for this homeserver."""
    try:
        login = Login(**json_input.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return login if login.homeserver == homeserver else None


def _keep(file: Path, login: Login) -> None:
    new = file.with_suffix(".new")
    fd = statedir.open_private(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(fd, "wb") as out:
        out.write(orjson.dumps(asdict(login)))
        out.flush()
        os.fsync(out.fileno())
    new.replace(file)
