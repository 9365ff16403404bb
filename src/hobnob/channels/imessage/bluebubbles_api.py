"""Calls of a BlueBubbles server, and what its errors mean. The password is part of each address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hobnob.channels import Account, LoginNeeded, Undeliverable
from hobnob.channels import http as calls
from hobnob.channels.http import Unanswered
from hobnob.config.channels.imessage import BlueBubbles, IMessageAccount

SEND_TIMEOUT_S = 50.0  # the server waits until Messages has written the message down


class Server:
    def __init__(self, account: Account) -> None:
        self._account = account

    @property
    def settings(self) -> BlueBubbles:
        settings = self._account.settings
        assert isinstance(settings, IMessageAccount)
        return settings.bluebubbles

    async def get(self, path: str, **query: str) -> Any:
        return await self._call("GET", path, query)

    async def post(self, path: str, body: dict[str, Any], *, timeout_s: float = 30.0) -> Any:
        return await self._call("POST", path, {}, json=body, timeout_s=timeout_s)

    async def delete(self, path: str) -> Any:
        return await self._call("DELETE", path, {})

    async def upload(self, path: str, fields: dict[str, str], file: Path, name: str) -> Any:
        import aiohttp

        try:
            content = file.open("rb")
        except OSError as error:
            raise Undeliverable(f"The file {name} cannot be read: {error.strerror}.") from error
        with content:
            form = aiohttp.FormData(fields)
            form.add_field("attachment", content, filename=name)
            return await self._call("POST", path, {}, data=form, timeout_s=SEND_TIMEOUT_S)

    async def download(self, guid: str, limit: int) -> AsyncIterator[bytes]:
        """The content of a file of a message."""
        url = self._url(f"attachment/{quote(guid, safe='')}/download")
        try:
            async for piece in calls.download(self._account.http(), url, limit, params=self._query()):
                yield piece
        except (Undeliverable, Unanswered) as error:
            raise Undeliverable(self._without_password(str(error))) from None

    async def _call(
        self, method: str, path: str, query: dict[str, str], *, timeout_s: float = 30.0, **request: Any
    ) -> Any:
        """Returns `data`. Raises Undeliverable, LoginNeeded, and Unanswered if the effect is not known."""
        try:
            answer = await calls.call(
                self._account.http(),
                method,
                self._url(path),
                timeout_s=timeout_s,
                params=self._query() | query,
                **request,
            )
        # The errors of the HTTP client may name the address, and the address contains the password.
        except Undeliverable as error:
            raise Undeliverable(self._without_password(str(error)), again=error.again) from None
        except Unanswered as error:
            raise Unanswered(self._without_password(str(error))) from None
        body = answer.body if isinstance(answer.body, dict) else {}
        if answer.status in (200, 201):
            return body.get("data")
        if answer.status in (401, 403):
            raise LoginNeeded("The BlueBubbles server does not accept the password.")
        told = body.get("error")
        reason = told.get("message") if isinstance(told, dict) else told
        text = self._without_password(str(reason or body.get("message") or "no reason given"))[:500]
        if answer.status >= 500:  # also when Messages took longer than the server waited
            raise Unanswered(f"BlueBubbles reports: {text} ({answer.status}).")
        raise Undeliverable(f"BlueBubbles refused it: {text} ({answer.status}).")

    def _url(self, path: str) -> str:
        if not self.settings.server_url:
            raise LoginNeeded("Not set: channels.imessage.bluebubbles.serverUrl.")
        return f"{self.settings.server_url.rstrip('/')}/api/v1/{path}"

    def _query(self) -> dict[str, str]:
        return {"password": self._password()}

    def _password(self) -> str:
        if self.settings.password is None:
            raise LoginNeeded("Not set: channels.imessage.bluebubbles.password.")
        return self.settings.password.get_secret_value()

    def _without_password(self, text: str) -> str:
        return text.replace(self._password(), "…").replace(quote(self._password()), "…")
