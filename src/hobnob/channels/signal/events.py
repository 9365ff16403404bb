"""JSON-RPC with a `signal-cli` daemon over HTTP: calls by POST, messages as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from hobnob import json_input
from hobnob.channels.http import Unanswered, call, proxy_for
from hobnob.channels.signal.rpc import CALL_S, Rpc, RpcError, serving

if TYPE_CHECKING:
    import aiohttp

_EVENT_BYTES = 4 * 1024 * 1024
_SILENCE_S = 120.0  # the daemon sends a comment every 15 seconds
_log = logging.getLogger(__name__)


class HttpRpc(Rpc):
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        super().__init__()
        self._http = http
        self._url = url.rstrip("/")
        self._account: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._opened = asyncio.Event()

    async def call(self, method: str, timeout_s: float = CALL_S, **params: Any) -> Any:
        request = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params}
        url = f"{self._url}/api/v1/rpc"
        answer = await call(self._http, "POST", url, timeout_s=timeout_s, json=request)
        match answer.body:
            case {"error": dict(error)}:
                raise RpcError.of(error)
            case {"result": result}:
                return result
        raise Unanswered(f"signal-cli answered with status {answer.status}.")

    async def subscribe(self, account: str) -> None:
        self._account.set_result(account)
        async with asyncio.timeout(CALL_S):
            await self._opened.wait()

    async def serve(self) -> None:
        account = await self._account
        try:
            await self._read(account)
            why = "signal-cli ended the connection."
        except Exception as error:  # whatever the connection raises: it has ended
            why = f"The connection to signal-cli was lost: {type(error).__name__}."
        self._opened.set()
        self._end(why)

    async def _read(self, account: str) -> None:
        import aiohttp

        url = f"{self._url}/api/v1/events"
        limits = aiohttp.ClientTimeout(total=None, connect=15.0, sock_read=_SILENCE_S)
        query = {"account": account}
        async with self._http.get(url, params=query, timeout=limits, proxy=proxy_for(url)) as response:
            response.raise_for_status()
            self._opened.set()
            buffer = bytearray()
            async for chunk in response.content.iter_any():
                buffer += chunk
                while (end := buffer.find(b"\n")) >= 0:
                    line = bytes(buffer[:end]).strip()
                    del buffer[: end + 1]
                    if line.startswith(b"data:"):
                        await self._take(line[5:])
                if len(buffer) > _EVENT_BYTES:
                    raise ValueError("an event without an end")

    async def _take(self, data: bytes) -> None:
        try:
            message = json_input.loads(data)
        except ValueError:
            _log.warning("signal: an event that is no JSON was skipped")
            return
        if isinstance(message, dict):
            await self._received.put(message)


@asynccontextmanager
async def open_http(http: aiohttp.ClientSession, url: str) -> AsyncIterator[Rpc]:
    """A daemon that the user runs with `--http`."""
    async with serving(HttpRpc(http, url)) as rpc:
        yield rpc
