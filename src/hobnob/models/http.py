"""HTTP client shared by all providers: connection reuse, event streams, a timeout on every wait."""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from hobnob import tracing
from hobnob.models import failures
from hobnob.models.failures import CallFailed
from hobnob.models.sse import EventParser
from hobnob.records import Struct

if TYPE_CHECKING:
    import aiohttp

MAX_ERROR_BYTES = 64 * 1024
_LINGER_S = 0.2  # wait for EOF after the last event, so that the connection can be reused


class Timeouts(Struct, frozen=True):
    """Limits for connecting, for the first byte of the answer, and for the gap between two chunks."""

    connect_s: float = 15.0
    first_byte_s: float = 300.0
    idle_s: float = 180.0


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One HTTP request. The headers hold the API key, so they stay out of the repr."""

    url: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict, repr=False)


class ResponseStream:
    """The event data of one response, in batches as they arrive from the network."""

    def __init__(self, response: aiohttp.ClientResponse, deadline: float, idle_s: float) -> None:
        self._content = response.content
        self._deadline: float | None = deadline
        self._idle_s = idle_s
        self._parser = EventParser()
        self.ended = False

    async def next(self) -> list[bytes]:
        """The data of the next events; empty when the stream has ended."""
        while True:
            chunk = await self._read()
            if not chunk:
                self.ended = True
                return self._parser.end()
            if events := self._parser.feed(chunk):
                return events

    async def _read(self) -> bytes:
        import aiohttp

        content = self._content
        try:
            chunk = content.read_nowait()  # buffered bytes need no timer, and timers are expensive
            if not chunk and not content.at_eof():
                now = asyncio.get_running_loop().time()
                async with asyncio.timeout_at(self._deadline or now + self._idle_s):
                    chunk = await content.readany()
        except TimeoutError:
            if self._deadline:
                raise CallFailed("unreachable", "did not start to answer before the timeout") from None
            raise CallFailed("cut", f"sent nothing for {self._idle_s:g} s in mid-answer") from None
        except (aiohttp.ClientError, OSError):
            raise CallFailed("cut", "closed the connection in mid-answer") from None
        self._deadline = None
        return chunk

    async def drain(self) -> None:
        """Read to EOF so that the connection can be reused; give up if the server keeps sending."""
        if self._content.at_eof():
            return
        try:
            async with asyncio.timeout(_LINGER_S):
                while not self.ended:
                    self.ended = not await self._read()
        except (TimeoutError, CallFailed):
            return


class Http:
    """Opens its session on the first call: without remote models, aiohttp is never imported."""

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        self.timeouts = timeouts or Timeouts()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @asynccontextmanager
    async def post(self, request: ProviderRequest) -> AsyncIterator[ResponseStream]:
        """Send a request and stream the response. Raises CallFailed. Leaving early closes the connection."""
        deadline = asyncio.get_running_loop().time() + self.timeouts.first_byte_s
        response = await self._send(request, deadline)
        try:
            await _require_stream(response, deadline)
            stream = ResponseStream(response, deadline, self.timeouts.idle_s)
            yield stream
            await stream.drain()
        finally:
            # Returns the connection to the pool after EOF, else closes it.
            response.release()

    async def warm_up(self) -> None:
        """Open the session before the first call."""
        if not self._closed:
            await self._open_session()

    async def close(self) -> None:
        self._closed = True
        if self._session:
            await self._session.close()

    async def _send(self, request: ProviderRequest, deadline: float) -> aiohttp.ClientResponse:
        session = await self._open_session()
        import aiohttp

        try:
            data = orjson.dumps(request.body)
        except TypeError as error:
            raise CallFailed("refused", f"the request cannot be encoded as JSON: {error}") from None
        origin = _origin(request.url)
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **request.headers}
        if (trace := tracing.traceparent()) is not None:
            headers["traceparent"] = trace
        try:
            async with asyncio.timeout_at(deadline):
                # No redirects: the key must reach no other address than the configured one.
                return await session.post(request.url, data=data, headers=headers, allow_redirects=False)
        except aiohttp.ConnectionTimeoutError:
            raise CallFailed("unreachable", f"no connection to {origin} before the timeout") from None
        except TimeoutError:
            raise CallFailed("unreachable", f"no answer from {origin} before the timeout") from None
        except aiohttp.ClientResponseError:
            raise CallFailed("garbled", f"{origin} does not speak HTTP") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise CallFailed("refused", f"{origin} is not a valid address; check baseUrl") from None
        except (aiohttp.ClientError, OSError) as error:
            hint = "check that it runs, and baseUrl"
            raise CallFailed("unreachable", f"{origin} cannot be reached{_reason(error)}; {hint}") from None
        except ValueError:
            # The text of the exception would repeat the header, and with it the key.
            raise CallFailed("refused", "invalid API key or address; check apiKey and baseUrl") from None

    async def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # In a thread: the import takes a quarter of a second and would block the event loop.
            await asyncio.to_thread(importlib.import_module, "aiohttp")
        if self._closed:
            raise CallFailed("unreachable", "the model connections are closed")
        import aiohttp

        if self._session is None:  # checked again: another call may have opened it meanwhile
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # maxConcurrent of each provider is the limit
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.timeouts.connect_s),
                headers={"User-Agent": "hobnob", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def _require_stream(response: aiohttp.ClientResponse, deadline: float) -> None:
    # Not response.content_type: the parser behind it takes quadratic time.
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if response.status == 200 and kind not in ("text/html", "application/json"):
        return
    body = await _read_error_body(response, deadline)
    if response.status == 200:
        raise failures.from_ok_body(body)
    if 300 <= response.status < 400:
        raise CallFailed("refused", f"answered {response.status}: redirects are not followed; check baseUrl")
    raise failures.from_response(response.status, response.headers, body)


async def _read_error_body(response: aiohttp.ClientResponse, deadline: float) -> bytes:
    """The beginning of a body; if the connection fails, the bytes that arrived until then."""
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
    """Host and port only: a URL can contain a password."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or "the address"
    except ValueError:
        return "the address"


def _reason(error: Exception) -> str:
    inner = getattr(error, "os_error", error)
    number, text = getattr(inner, "errno", None), getattr(inner, "strerror", None)
    if isinstance(number, int) and number in errno.errorcode:
        text = os.strerror(number)  # asyncio replaces it by "Connect call failed"
    return f": {text}" if isinstance(text, str) and text else ""
