"""Transports to MCP servers that bound the size of each message while it is read.

The transports of the package `mcp` buffer an endless line until memory runs out. This module imports the
package, so it is imported only when a server is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import httpx2
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from hobnob import json_input
from hobnob.processes.launcher import Grace, launch
from hobnob.processes.records import ProcessRecord
from hobnob.sandbox import ProcessSpec

MESSAGE_BYTES = 8 * 1024 * 1024
_GRACE = Grace(eof_s=2.0, kill_s=2.0)
_CONNECT_S, _READ_S = 30.0, 300.0
_log = logging.getLogger(__name__)


@asynccontextmanager
async def program(
    command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None, record: ProcessRecord
) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server as a program: one JSON message per line on its stdin and stdout."""
    spec = ProcessSpec(
        [command, *args], get_default_environment() | dict(env), cwd=Path(cwd) if cwd is not None else None
    )
    process = launch(spec, stdin=PIPE, stdout=PIPE, record=record)
    incoming, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    send, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        stdin, stdout = await process.open_stdin(), await process.open_stdout(limit=MESSAGE_BYTES)
        async with incoming, receive, send, outgoing, anyio.create_task_group() as group:
            group.start_soon(_read_messages, stdout, incoming)
            group.start_soon(_write_messages, stdin, outgoing)
            yield receive, send
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await process.end(_GRACE)


async def _read_messages(stdout: asyncio.StreamReader, incoming: Any) -> None:
    """Forward the server's messages. One that is too long ends the connection."""
    with contextlib.suppress(anyio.BrokenResourceError):  # the receiver is closed
        async with incoming:
            try:
                while line := await stdout.readline():
                    await incoming.send(_message(line))
            except ValueError:
                _log.warning("MCP server disconnected: a message exceeds %d bytes", MESSAGE_BYTES)


async def _write_messages(stdin: asyncio.StreamWriter, outgoing: Any) -> None:
    with contextlib.suppress(ConnectionError):  # the server is gone: the end of its stdout reports that
        async for item in outgoing:
            stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await stdin.drain()


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        json_input.check_size(line)
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as problem:
        return problem


def http(headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """An HTTP client that fails on responses that are compressed or too long."""
    return httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},  # decompression would be unbounded
        timeout=httpx2.Timeout(_CONNECT_S, read=_READ_S),
        event_hooks={"response": [_limit_response]},
    )


async def _limit_response(response: httpx2.Response) -> None:
    """Bound the body of a response. For an event stream, the package bounds each event itself.

    The parameters of its type are dropped: the parser of the package takes quadratic time for them, and
    decodes with any charset, some of which do too.
    """
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    response.headers["content-type"] = kind
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    compressed = response.headers.get("content-encoding", "identity") != "identity"
    if compressed or kind != "text/event-stream":
        response.stream = _LimitedStream(response.stream, 0 if compressed else MESSAGE_BYTES)


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._bytes_left = max_bytes
        self._containers = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._bytes_left -= len(chunk)
            if self._bytes_left < 0:
                raise httpx2.ReadError(f"the response is compressed or has more than {MESSAGE_BYTES} bytes")
            self._containers += json_input.count(chunk)
            if self._containers > json_input.MAX_CONTAINERS:
                raise httpx2.ReadError("the response has too many objects and lists")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
