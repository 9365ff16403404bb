"""Calls of the Graph API for one phone number, and what its errors mean."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from hobnob.channels import Account, LoginNeeded, NotNow, OutgoingFile, Scope, Undeliverable
from hobnob.channels import http as calls
from hobnob.channels.http import Unanswered
from hobnob.config.channels.whatsapp import WhatsAppAccount, WhatsAppCloud

UPLOAD_TIMEOUT_S = 55.0
FIRST_PAUSE_S, MAX_PAUSE_S = 6.0, 600.0
# Codes of errors, from Meta's list. No answer says how long to wait.
_LIMITS: dict[int, Scope] = {
    4: "account",
    80007: "account",
    130429: "account",
    131048: "account",
    131056: "chat",
}
_BAD_LOGIN = (0, 102, 190)
_MAY_HAVE_WORKED = (1, 2, 131000, 131016)
WINDOW_CLOSED = (470, 131047)
WINDOW = (
    "WhatsApp delivers answers only within 24 hours after the person's last message. Ask the person to write"
    " again, or send a template from the WhatsApp Manager"
)


def described(code: int, text: str) -> str:
    """The meaning of an error, for people."""
    return f"{WINDOW} ({code})." if code in WINDOW_CLOSED else f"WhatsApp refused it: {text} ({code})."


class Graph:
    def __init__(self, account: Account) -> None:
        self._account = account
        self._pauses: dict[str, float] = {}  # of chats that are limited: the last pause

    @property
    def cloud(self) -> WhatsAppCloud:
        settings = self._account.settings
        assert isinstance(settings, WhatsAppAccount)
        return settings.cloud

    def check(self) -> None:
        """Raises LoginNeeded, naming what is not set."""
        needed = ("phoneNumberId", "accessToken", "appSecret", "verifyToken")
        values = (
            self.cloud.phone_number_id,
            self.cloud.access_token,
            self.cloud.app_secret,
            self.cloud.verify_token,
        )
        if missing := [name for name, value in zip(needed, values, strict=True) if value is None]:
            where = f"channels.{self._account.channel}.cloud"
            raise LoginNeeded(f"Not set: {', '.join(f'{where}.{name}' for name in missing)}.")

    async def about_number(self) -> dict[str, Any]:
        """The phone number as people see it."""
        return await self._call(
            "GET", self._number(), params={"fields": "display_phone_number,verified_name"}
        )

    async def post(self, chat: str, message: dict[str, Any]) -> dict[str, Any]:
        """Post to the messages of the number. Raises as `_call`; a limit has a growing pause per chat."""
        body = {"messaging_product": "whatsapp", **message}
        answer = await self._call("POST", f"{self._number()}/messages", chat=chat, json=body)
        self._pauses.pop(chat, None)
        return answer

    async def upload(self, file: OutgoingFile) -> str:
        """Upload a file. Returns its id. Until a message names it, nobody sees it, so it can be repeated."""
        import aiohttp

        try:
            content = file.path.open("rb")
        except OSError as error:
            raise Undeliverable(f"The file {file.name} cannot be read: {error.strerror}.") from error
        with content:
            form = aiohttp.FormData({"messaging_product": "whatsapp", "type": file.mime_type})
            form.add_field("file", content, filename=file.name, content_type=file.mime_type)
            try:
                answer = await self._call(
                    "POST", f"{self._number()}/media", data=form, timeout_s=UPLOAD_TIMEOUT_S
                )
            except Unanswered as lost:
                raise Undeliverable(str(lost), again=True) from None
        return _text(answer, "id")

    async def download(self, media_id: str, limit: int) -> AsyncIterator[bytes]:
        """The content of a file that somebody sent."""
        if not media_id.isalnum():
            raise Undeliverable("The id of the file is not one of WhatsApp.")
        found = await self._call("GET", media_id)
        url = _text(found, "url")
        if self.cloud.api_url.startswith("https:") and not url.startswith("https:"):
            raise Undeliverable("WhatsApp offers the file at an address that is not encrypted.")
        async for piece in calls.download(self._account.http(), url, limit, headers=self._headers()):
            yield piece

    async def _call(
        self, method: str, path: str, *, chat: str = "", timeout_s: float = 30.0, **request: Any
    ) -> dict[str, Any]:
        """Raises Undeliverable, NotNow for a limit, LoginNeeded, Unanswered if the effect is not known."""
        self.check()
        url = f"{self.cloud.api_url.rstrip('/')}/{self.cloud.api_version}/{path}"
        answer = await calls.call(
            self._account.http(), method, url, timeout_s=timeout_s, headers=self._headers(), **request
        )
        body = answer.body if isinstance(answer.body, dict) else {}
        error = body.get("error")
        if answer.status == 200 and not isinstance(error, dict):
            return body
        if not isinstance(error, dict):
            if answer.status >= 500:
                raise Unanswered(f"WhatsApp answered with status {answer.status}.")
            raise Undeliverable(f"WhatsApp answered with status {answer.status}.")
        code = error.get("code") if type(error.get("code")) is int else -1
        assert isinstance(code, int)
        details = error.get("error_data")
        more = details.get("details") if isinstance(details, dict) else None
        text = str(more or error.get("message") or "no reason given")[:500]
        if (scope := _LIMITS.get(code)) is not None or answer.status == 429:
            pause = min(2 * self._pauses.get(chat, FIRST_PAUSE_S / 2), MAX_PAUSE_S)
            self._pauses[chat] = pause
            raise NotNow(f"WhatsApp limits messages ({code})", pause, scope=scope or "account")
        if code in _BAD_LOGIN or answer.status == 401:
            raise LoginNeeded(f"WhatsApp does not accept the access token: {text} ({code}).")
        if code in _MAY_HAVE_WORKED or answer.status >= 500:
            raise Unanswered(f"WhatsApp answered with an error of its own ({code}).")
        raise Undeliverable(described(code, text))

    def _number(self) -> str:
        number = self.cloud.phone_number_id or ""
        if not number.isdigit():
            raise LoginNeeded("cloud.phoneNumberId is the id of the phone number: digits, without a +.")
        return number

    def _headers(self) -> dict[str, str]:
        token = self.cloud.access_token
        return {"Authorization": f"Bearer {token.get_secret_value() if token else ''}"}


def _text(answer: dict[str, Any], name: str) -> str:
    value = answer.get(name)
    if not isinstance(value, str) or not value:
        raise Undeliverable(f"WhatsApp answered without {name}.", again=True)
    return value
