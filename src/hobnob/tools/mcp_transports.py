"""How MCP servers are talked to, in messages that are bounded before they are read whole.

The package has wires of its own, which keep an endless line until there is no memory left. This module needs
the package, so it is imported only where a server is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

MESSAGE_BYTES = 8 * 1024 * 1024
_END_S = 2.0  # for a program to end by itself when nobody talks to it any more
_CONNECT_S, _READ_S = 30.0, 300.0
_log = logging.getLogger(__name__)


@asynccontextmanager
async def program(
    command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None
) -> AsyncIterator[tuple[Any, Any]]:
    """A server that is a program: one message a line, in and out."""
    process = await asyncio.create_subprocess_exec(
        command,
        *args,
        env=get_default_environment() | dict(env),
        cwd=cwd,
        limit=MESSAGE_BYTES,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    told, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    say, to_say = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with told, heard, say, to_say, anyio.create_task_group() as group:
            group.start_soon(_listen, process, told)
            group.start_soon(_speak, process, to_say)
            yield heard, say
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Leave it alone, so that it can end; then end it. What it still says is let go by."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    with anyio.move_on_after(_END_S):
        await process.wait()
    if process.returncode is None:  # its number is its own until then
        os.killpg(process.pid, signal.SIGKILL)
    with anyio.move_on_after(_END_S):  # something it started may hold on to its output
        while await process.stdout.read(MESSAGE_BYTES):
            pass
        await process.wait()


async def _listen(process: asyncio.subprocess.Process, told: Any) -> None:
    """Pass on what it says, line by line. One that is too long is its last."""
    assert process.stdout is not None
    with contextlib.suppress(anyio.BrokenResourceError):  # nobody listens any more
        async with told:
            try:
                while line := await process.stdout.readline():
                    await told.send(_message(line))
            except ValueError:
                _log.warning("an MCP server begins a message of more than %d bytes", MESSAGE_BYTES)


async def _speak(process: asyncio.subprocess.Process, to_say: Any) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # it is gone, which is heard on its other end
        async for said in to_say:
            process.stdin.write(
                said.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            )
            await process.stdin.drain()


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
