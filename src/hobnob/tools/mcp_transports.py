"""How MCP servers are talked to, in messages that are bounded before they are read whole.

The package has wires of its own, which keep an endless line until there is no memory left. This module needs
the package, so it is imported only where a server is configured.
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
    """A server that is a program: one JSON message per line on its stdin and stdout."""
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
    """Pass on the server's messages. One that is too long ends the connection."""
    with contextlib.suppress(anyio.BrokenResourceError):  # the receiver is closed
        async with incoming:
            try:
                while line := await stdout.readline():
                    await incoming.send(_message(line))
            except ValueError:
                _log.warning("an MCP server begins a message of more than %d bytes", MESSAGE_BYTES)


async def _write_messages(stdin: asyncio.StreamWriter, outgoing: Any) -> None:
    with contextlib.suppress(ConnectionError):  # the server is gone: the end of its stdout reports that
        async for item in outgoing:
            stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await stdin.drain()


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as problem:
        return problem


def http(headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """A client for a server over HTTP, whose answers end where they are too long."""
    return httpx2.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},  # what is packed small may be large
        timeout=httpx2.Timeout(_CONNECT_S, read=_READ_S),
        event_hooks={"response": [_bounded]},
    )


async def _bounded(response: httpx2.Response) -> None:
    """Let only so much of an answer in. The events of a stream are bounded by the package, one by one."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    packed = response.headers.get("content-encoding", "identity") != "identity"
    events = response.headers.get("content-type", "").startswith("text/event-stream")
    if packed or not events:
        response.stream = _Stream(response.stream, 0 if packed else MESSAGE_BYTES)


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, room: int) -> None:
        self._inner = inner
        self._room = room

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._room -= len(piece)
            if self._room < 0:
                raise httpx2.ReadError(f"an answer that is packed, or has more than {MESSAGE_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
