"""Webhooks: post the finished run of a job to an address.

The body of a repeated attempt is the same, and the header `Idempotency-Key` lets the receiver recognise it.
Private addresses are refused when the socket is created, unless the host is allowed in the settings.
"""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

from hobnob import __version__
from hobnob.channels import Undeliverable
from hobnob.config import Config
from hobnob.schedule.deliveries import WEBHOOK
from hobnob.tools.web import is_public
from hobnob.types import Delivery

_TIMEOUT_S = 20.0
_REPEAT = (408, 425, 429)  # statuses that may pass, besides those of a failing server


class Webhook:
    name = WEBHOOK

    def __init__(self, config: Config) -> None:
        self._config = config

    async def post(self, delivery: Delivery) -> str:
        import aiohttp

        settings = self._config.settings.cron
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"Hobnob/{__version__}",
            "Idempotency-Key": delivery.delivery_id,
        }
        if settings.webhook_token is not None:
            headers["Authorization"] = f"Bearer {settings.webhook_token.get_secret_value()}"
        host = (urlsplit(delivery.recipient).hostname or "").lower()
        allowed = host in {name.lower() for name in settings.webhook_ssrf_policy.allowed_hostnames}
        sockets = _Sockets(private=allowed)
        connector = aiohttp.TCPConnector(socket_factory=sockets.create, use_dns_cache=False)
        limit = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, trust_env=False, timeout=limit) as client,
                client.post(
                    delivery.recipient, data=delivery.text.encode(), headers=headers, allow_redirects=False
                ) as response,
            ):
                status = response.status
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            if sockets.refused:
                raise Undeliverable(
                    f"{host} has the private address {sockets.refused};"
                    " cron.webhookSsrfPolicy.allowedHostnames does not name it",
                    again=False,
                ) from None
            raise Undeliverable(str(error)[:200] or type(error).__name__, again=True) from None
        if not 200 <= status < 300:
            raise Undeliverable(f"{host} answered {status}", again=status in _REPEAT or status >= 500)
        return delivery.delivery_id


class _Sockets:
    """Creates the sockets of a request. Addresses that are not public are refused unless `private`."""

    def __init__(self, *, private: bool) -> None:
        self._private = private
        self.refused: str | None = None

    def create(self, address_info: tuple[Any, ...]) -> socket.socket:
        family, kind, proto, _, sockaddr = address_info
        host = str(sockaddr[0])
        if family not in (socket.AF_INET, socket.AF_INET6) or not (self._private or is_public(host)):
            self.refused = host
            raise OSError(f"{host} is not public")
        return socket.socket(family, kind, proto)
