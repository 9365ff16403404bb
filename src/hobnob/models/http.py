"""The one HTTP client of all providers: kept connections, streams, and a time limit for every wait."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from hobnob.models import failures
from hobnob.models.failures import CallFailed
from hobnob.models.sse import Events

if TYPE_CHECKING:
    import aiohttp

MAX_ERROR_BYTES = 64 * 1024
_LINGER_S = 0.2  # how long we wait for a stream to close after its last event, to keep the connection


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long we wait: for a connection, for the first byte of the answer, and between two of its chunks."""

    connect_s: float = 15.0
    first_byte_s: float = 300.0
    idle_s: float = 180.0


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One request, ready to be sent. Headers hold the key and are never shown."""

    url: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class ResponseStream:
    """The data of the events of one answer, in batches as the network delivers them."""

    def __init__(self, response: aiohttp.ClientResponse, deadline: float, idle_s: float) -> None:
        self._content = response.content
        self._deadline: float | None = deadline
        self._idle_s = idle_s
        self._events = Events()
        self.ended = False

    async def next(self) -> list[bytes]:
        """The next events; none when the stream is over."""
        while True:
            chunk = await self._read()
            if not chunk:
                self.ended = True
                return self._events.end()
            if events := self._events.feed(chunk):
                return events

    async def _read(self) -> bytes:
        import aiohttp

        content = self._content
        try:
            chunk = content.read_nowait()  # what is there already needs no clock, and clocks cost
            if not chunk and not content.at_eof():
                now = asyncio.get_running_loop().time()
                async with asyncio.timeout_at(self._deadline or now + self._idle_s):
                    chunk = await content.readany()
        except TimeoutError:
            if self._deadline:
                raise CallFailed("unreachable", "did not begin to answer in time") from None
            raise CallFailed("cut", f"was silent for {self._idle_s:g} s amid its answer") from None
        except (aiohttp.ClientError, OSError):
            raise CallFailed("cut", "closed the connection in the middle of its answer") from None
        self._deadline = None
        return chunk

    async def drain(self) -> None:
        """Read to the end, so that the connection can be used again. A server that keeps talking loses it."""
        if self._content.at_eof():
            return
        try:
            async with asyncio.timeout(_LINGER_S):
                while not self.ended:
                    self.ended = not await self._read()
        except (TimeoutError, CallFailed):
            return


class Http:
    """Opened by the first call, so that who talks to no provider pays for no client."""

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        self.timeouts = timeouts or Timeouts()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @asynccontextmanager
    async def post(self, call: ProviderRequest) -> AsyncIterator[ResponseStream]:
        """Send a call and read its events. Raises CallFailed. Leaving early closes the connection."""
        deadline = asyncio.get_running_loop().time() + self.timeouts.first_byte_s
        response = await self._answer(call, deadline)
        try:
            await _must_stream(response, deadline)
            stream = ResponseStream(response, deadline, self.timeouts.idle_s)
            yield stream
            await stream.drain()
        finally:
            # Gives the connection back when all was read, and closes it when not.
            response.release()

    async def close(self) -> None:
        self._closed = True
        if self._session:
            await self._session.close()

    async def _answer(self, call: ProviderRequest, deadline: float) -> aiohttp.ClientResponse:
        session = await self._opened()
        import aiohttp

        try:
            data = orjson.dumps(call.body)
        except TypeError as error:
            raise CallFailed("refused", f"the request cannot be written as JSON: {error}") from None
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **call.headers}
        try:
            async with asyncio.timeout_at(deadline):
                # No redirects: a key is for the address it was given for.
                return await session.post(call.url, data=data, headers=headers, allow_redirects=False)
        except aiohttp.ConnectionTimeoutError:
            raise CallFailed("unreachable", f"no connection to {_origin(call.url)} in time") from None
        except TimeoutError:
            raise CallFailed("unreachable", f"no answer from {_origin(call.url)} in time") from None
        except aiohttp.ClientResponseError:
            raise CallFailed("garbled", f"{_origin(call.url)} does not speak HTTP") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise CallFailed("refused", f"{_origin(call.url)} is no address; check baseUrl") from None
        except (aiohttp.ClientError, OSError) as error:
            said = f"{_origin(call.url)} cannot be reached{_reason(error)}"
            raise CallFailed("unreachable", said) from None
        except ValueError:
            # Their text would repeat the header, and with it the key.
            raise CallFailed("refused", "key or address cannot be used; check apiKey and baseUrl") from None

    async def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # In a thread: this takes a quarter of a second in which others want to be served.
            await asyncio.to_thread(importlib.import_module, "aiohttp")
        if self._closed:
            raise CallFailed("unreachable", "the models are closed")
        import aiohttp

        if self._session is None:  # still: another call may have come first
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # the limit is the provider's maxConcurrent
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.timeouts.connect_s),
                headers={"User-Agent": "hobnob", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def _must_stream(response: aiohttp.ClientResponse, deadline: float) -> None:
    kind = response.content_type
    if response.status == 200 and kind not in ("text/html", "application/json"):
        return
    body = await _some(response, deadline)
    if response.status == 200:
        raise failures.in_body(body)
    if 300 <= response.status < 400:
        raise CallFailed("refused", f"answered {response.status}, pointing elsewhere; check baseUrl")
    raise failures.from_answer(response.status, response.headers, body)


async def _some(response: aiohttp.ClientResponse, deadline: float) -> bytes:
    """The beginning of a body; what arrived when it breaks off says enough."""
    import aiohttp

    body = b""
    try:
        async with asyncio.timeout_at(deadline):
            while len(body) < MAX_ERROR_BYTES and (chunk := await response.content.read(8192)):
                body += chunk
    except (aiohttp.ClientError, OSError, TimeoutError):
        pass
    return body[:MAX_ERROR_BYTES]


def _origin(url: str) -> str:
    """Host and port only: an address can hold a password."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or "the address"
    except ValueError:
        return "the address"


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", error)
    text = getattr(inner, "strerror", None)
    return f": {text}" if isinstance(text, str) and text else ""
