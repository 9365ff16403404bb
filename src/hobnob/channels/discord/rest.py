"""Discord's REST API: requests, rate limits, and what each answer means for a delivery."""

from __future__ import annotations

import asyncio
import math
import os
import time
from typing import Any
from urllib.parse import quote

from hobnob import __version__
from hobnob.channels import Account, Disconnected, LoginNeeded, NotNow, Undeliverable
from hobnob.channels.http import Answer, Unanswered, call, reconnecting
from hobnob.config.channels import DEFAULT_ACCOUNT

API_URL = "https://discord.com/api/v10"
_MAX_WAIT_S = 300.0
_DEFAULT_WAIT_S = 5.0  # after a rate limit that does not say how long
_MAX_BUCKETS = 1000


class Refused(Undeliverable):
    """Discord refused a request for good. `code` is its own code for the reason."""

    def __init__(self, why: str, status: int, code: int) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


class Rest:
    """The REST API with the token of an account."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._limits = Limits()

    @property
    def api_url(self) -> str:
        """The root of the API. An address without a path, or up to `/api`, is completed."""
        url: str = self._account.settings.api_url or os.environ.get("DISCORD_API_URL") or API_URL
        url = url.rstrip("/")
        if "/" not in url.partition("://")[2]:
            url += "/api"
        return url + "/v10" if url.endswith("/api") else url

    def token(self) -> str:
        secret = self._account.settings.token
        token: str = secret.get_secret_value() if secret else ""
        if not token and self._account.account_id == DEFAULT_ACCOUNT:
            token = os.environ.get("DISCORD_BOT_TOKEN", "")
        token = token.strip().removeprefix("Bot ").strip()
        if not token:
            raise LoginNeeded("There is no bot token: set channels.discord.token or $DISCORD_BOT_TOKEN.")
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise LoginNeeded(
                "The bot token contains characters that no token of Discord has: copy it again."
            )
        return token

    async def call(self, method: str, path: str, *ids: str, timeout_s: float = 30.0, **request: Any) -> Any:
        """Make a request; each `{}` in the path is replaced by an id. Returns the body of the answer.

        Raises NotNow at a rate limit, LoginNeeded, Refused, Undeliverable(again) if the request never left,
        and Unanswered if it may have had its effect.
        """
        route, major = f"{method} {path}", ids[0] if ids else ""
        self._limits.check(route, major)
        headers = {
            "Authorization": f"Bot {self.token()}",
            "User-Agent": f"DiscordBot (hobnob, {__version__})",
        }
        url = self.api_url + path.format(*(quote(part, safe="") for part in ids))
        answer = await call(
            self._account.http(),
            method,
            url,
            timeout_s=timeout_s,
            headers=headers,
            allow_redirects=False,
            **request,
        )
        self._limits.learn(route, major, answer)
        return _body(answer)

    async def fetch(self, method: str, path: str, *ids: str, **request: Any) -> Any:
        """Make a request of the receiving side: waits while limited. Raises Disconnected, Refused."""
        while True:
            try:
                return await self.call(method, path, *ids, **request)
            except NotNow as limited:
                if limited.after_s > _MAX_WAIT_S:
                    raise Disconnected(f"{limited} for {limited.after_s:.0f} s") from limited
                await asyncio.sleep(limited.after_s)
            except Refused:
                raise
            except (Unanswered, Undeliverable) as error:
                raise reconnecting(error) from error


class Limits:
    """Rate limits. Discord counts requests in buckets, and tells the bucket of a route in its answers."""

    def __init__(self) -> None:
        self._buckets: dict[str, str] = {}
        self._until: dict[tuple[str, str], float] = {}
        self._all_until = 0.0

    def check(self, route: str, major: str) -> None:
        """Raise NotNow if the route is known to be limited. `major` is the chat that is counted by itself."""
        now = time.monotonic()
        if self._all_until > now:
            raise NotNow("Discord limits all requests of the bot", self._all_until - now, scope="account")
        until = self._until.get((self._buckets.get(route, route), major), 0.0)
        if until > now:
            raise NotNow("Discord limits the messages of this chat", until - now)

    def learn(self, route: str, major: str, answer: Answer) -> None:
        """Note the limits that an answer states. Raises NotNow if the request exceeded one."""
        now = time.monotonic()
        bucket = answer.header("X-RateLimit-Bucket") or route
        if bucket != route:
            self._buckets[route] = bucket  # there are as many as routes
        if answer.status == 429:
            raise self._refused(bucket, major, answer, now)
        if answer.header("X-RateLimit-Remaining") == "0":
            self._close(bucket, major, now + _seconds(answer.header("X-RateLimit-Reset-After"), 0.0))

    def _refused(self, bucket: str, major: str, answer: Answer, now: float) -> NotNow:
        body = answer.body if isinstance(answer.body, dict) else None
        told = body.get("retry_after") if body else None
        after_s = _seconds(told if told is not None else answer.header("Retry-After"), _DEFAULT_WAIT_S)
        # An answer without a body in JSON comes from the proxy in front of the API, which bars the address.
        if body is None or body.get("global") or answer.header("X-RateLimit-Scope") == "global":
            self._all_until = now + after_s
            return NotNow("Discord limits all requests of the bot", after_s, scope="account")
        self._close(bucket, major, now + after_s)
        return NotNow("Discord limits the messages of this chat", after_s)

    def _close(self, bucket: str, major: str, until: float) -> None:
        if len(self._until) >= _MAX_BUCKETS:
            now = time.monotonic()
            self._until = {key: at for key, at in self._until.items() if at > now}
        self._until[bucket, major] = until


def _body(answer: Answer) -> Any:
    """The body of an answer; an error for one that is no success."""
    if 200 <= answer.status < 300:
        return answer.body
    body = answer.body if isinstance(answer.body, dict) else {}
    said, code = str(body.get("message") or "no reason given")[:200], body.get("code")
    if answer.status == 401:
        raise LoginNeeded("Discord does not accept the bot token: copy a new one from the developer portal.")
    if answer.status >= 500:
        raise Unanswered(f"Discord answered with status {answer.status}.")
    why = f"Discord refused it with status {answer.status}: {said} (code {code})."
    raise Refused(why, answer.status, code if isinstance(code, int) else 0)


def _seconds(value: object, default: float) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]  # of another type: not a number either
    except (TypeError, ValueError):
        return default
    return min(max(seconds, 0.0), 3600.0) if math.isfinite(seconds) else default
