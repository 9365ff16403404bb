"""HTTP calls of channels: bounded answers, and errors that tell whether a request may have had an effect."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from hobnob import json_input
from hobnob.channels import Disconnected, Undeliverable
from hobnob.records import Struct

if TYPE_CHECKING:
    import aiohttp

MAX_ANSWER_BYTES = 8 * 1024 * 1024
_CHUNK = 64 * 1024


class Unanswered(Exception):
    """The request left, but no usable answer came back: it may or may not have had its effect."""


class Answer(Struct, frozen=True):
    """An answer with its body, decoded as JSON; None if it is not JSON."""

    status: int
    headers: Mapping[str, str]  # the case of names does not matter
    body: Any

    def header(self, name: str) -> str | None:
        return self.headers.get(name)


async def call(
    http: aiohttp.ClientSession, method: str, url: str, *, timeout_s: float = 30.0, **request: Any
) -> Answer:
    """Send a request and read its answer as JSON, at most 8 MB.

    Raises Undeliverable(again) if the request never left, Unanswered if its answer was lost. The status is up
    to the caller.
    """
    async with _requested(http, method, url, timeout_s, request) as response:
        raw = await _read(response, MAX_ANSWER_BYTES)
    try:
        body = json_input.loads(raw) if raw else None
    except ValueError:
        body = None
    return Answer(response.status, response.headers, body)


async def download(
    http: aiohttp.ClientSession, url: str, limit: int, *, timeout_s: float = 60.0, **request: Any
) -> AsyncIterator[bytes]:
    """The content at a URL in pieces. Raises Undeliverable when it is refused or larger than `limit`."""
    read = 0
    async with _requested(http, "GET", url, timeout_s, request) as response:
        if response.status != 200:
            raise Undeliverable(f"The file could not be downloaded: status {response.status}.")
        async for chunk in response.content.iter_chunked(_CHUNK):
            if (read := read + len(chunk)) > limit:
                raise Undeliverable(f"The file is larger than {limit:,} bytes.")
            yield chunk


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for an address (`https_proxy`, `no_proxy`, …)."""
    parts = urlsplit(url)
    scheme = {"wss": "https", "ws": "http"}.get(parts.scheme, parts.scheme)
    if f"{scheme}_proxy" not in os.environ and f"{scheme}_proxy".upper() not in os.environ:
        return None
    if not parts.hostname or (proxy := getproxies().get(scheme)) is None:
        return None
    return None if proxy_bypass(parts.hostname) else proxy


@asynccontextmanager
async def _requested(
    http: aiohttp.ClientSession, method: str, url: str, timeout_s: float, request: dict[str, Any]
) -> AsyncIterator[aiohttp.ClientResponse]:
    import aiohttp

    limits = aiohttp.ClientTimeout(total=timeout_s, connect=min(timeout_s, 15.0))
    try:
        async with http.request(method, url, timeout=limits, proxy=proxy_for(url), **request) as response:
            yield response
    except aiohttp.ClientConnectorError as error:  # includes name resolution and TLS
        raise Undeliverable(f"{error.host} cannot be reached: {error.os_error}.", again=True) from error
    except aiohttp.InvalidURL as error:
        raise Undeliverable(f"The address {url.partition('?')[0]!r} is not valid.") from error
    except aiohttp.ConnectionTimeoutError as error:
        raise Undeliverable("The server did not accept a connection in time.", again=True) from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Unanswered(f"The connection was lost: {type(error).__name__}.") from error


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body. A body over the limit counts as an unusable answer."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(_CHUNK):
        if (size := size + len(chunk)) > limit:
            raise Unanswered(f"The answer is larger than {limit:,} bytes.")
        pieces.append(chunk)
    return b"".join(pieces)


def reconnecting(error: Exception) -> Disconnected:
    """A failure of a receiving call as the reason to connect again."""
    return Disconnected(str(error) or type(error).__name__)
