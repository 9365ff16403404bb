"""Tools of MCP servers: connect, reconnect, list the tools as `mcp__<server>__<tool>` and call them.

Results are data and bounded in size, and a server delays a turn by no more than its timeouts. The package
`mcp` is an optional dependency and slow to import: it is imported in a thread, once a server is configured.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from hobnob import redact
from hobnob.config.external import McpServer
from hobnob.error_texts import summary
from hobnob.errors import McpFailed, unwrap_exception_group
from hobnob.processes.records import ProcessRecord
from hobnob.tools import Context, Tool, tool

PREFIX = "mcp__"
MAX_TOOLS = 100  # per server
DESCRIPTION_CHARS, SCHEMA_BYTES, RESULT_CHARS = 1_000, 20_000, 60_000
_NAME_CHARS = 64  # the longest tool name that all model providers accept
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.2, 60.0
_CONNECTION_CLOSED = -32000  # error code of the package
_GRACE_S = 5.0  # before a server is killed
_ERROR_CHARS, _LOGGED_CHARS = 300, 8_000  # of an error, for the caller and in the debug log
_INVALID_CHARS = re.compile(r"[^A-Za-z0-9_-]")
_log = logging.getLogger(__name__)


class McpServers:
    """The configured servers. Created by `open_servers`."""

    def __init__(self, servers: Mapping[str, McpServerConnection]) -> None:
        self._servers = servers

    @property
    def tools(self) -> list[Tool]:
        """The tools listed so far. Those of a disconnected server stay: it is connected again."""
        return [tool for server in self._servers.values() for tool in server.tools.values()]

    async def ready(self) -> None:
        """Wait for the first connection attempt of each server, up to its `connectSeconds`."""
        for server in self._servers.values():
            if not server.tried.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(server.rules.connect_seconds):
                        await server.tried.wait()
                server.tried.set()  # wait only once, even if it never answers


class McpServerConnection:
    """One server. Reconnects with back-off whenever the connection is lost."""

    def __init__(self, name: str, rules: McpServer, records: Path) -> None:
        self.name = name
        self.rules = rules
        self.tools: dict[str, Tool] = {}
        self.tried = asyncio.Event()  # the first attempt is over
        self._records = records
        self._client: Any = None
        self._connected = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._stopping = False
        self._scope: Any = None
        self._backoff_s = _MIN_BACKOFF_S
        self._record: ProcessRecord | None = None
        self._problem = "it has not answered yet"

    def stop(self) -> None:
        """Let `run` return. It ends by its anyio scope: the package can hang when its task is cancelled."""
        self._stopping = True
        if self._scope is not None:
            self._scope.cancel()

    def kill(self) -> None:
        """Kill the server's process with everything it started. Blocks."""
        if self._record is not None:
            self._record.end()

    async def run(self) -> None:
        """Stay connected until stopped."""
        try:
            await asyncio.to_thread(importlib.import_module, "mcp")
        except ImportError:
            self._problem = "the package mcp is not installed (pip install 'hobnob[mcp]')"
            _log.error("MCP server %s not available, its tools are missing: %s", self.name, self._problem)
            self.tried.set()
            return
        import anyio

        self._scope = anyio.CancelScope()
        with self._scope:
            while not self._stopping:
                await self._run_connection()
                _log.warning(
                    "MCP server %s not connected, next attempt in %g s: %s",
                    self.name,
                    self._backoff_s,
                    self._problem,
                )
                await asyncio.sleep(self._backoff_s)
                self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)

    async def _run_connection(self) -> None:
        """Connect, and return when the connection is lost."""
        import anyio

        self._disconnected.clear()
        try:
            # One scope for connecting and running, without a deadline once connected: contexts that were
            # entered in a scope must be left in it.
            limit = anyio.CancelScope(deadline=anyio.current_time() + self.rules.connect_seconds)
            with limit:
                async with AsyncExitStack() as stack:
                    await self._connect(stack)
                    limit.deadline, self._backoff_s = math.inf, _MIN_BACKOFF_S
                    await self._disconnected.wait()
                    self._problem = "the connection ended, and a new one is being made"
            if limit.cancelled_caught:
                self._problem = f"it did not answer within {self.rules.connect_seconds} seconds"
        except Exception as error:  # whatever a third-party server does, it is connected again
            self._problem = _describe(error)
        finally:
            self._set_disconnected()
            self.tried.set()

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool of the server, once. Raises McpFailed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.rules.connect_seconds):
                await self._connected.wait()
        client = self._client
        if client is None:
            raise McpFailed(f"The MCP server {self.name} is not connected: {self._problem}.")
        try:
            async with asyncio.timeout(self.rules.timeout_seconds):
                result = await client.call_tool(name, arguments)
        except TimeoutError:
            raise McpFailed(
                f"{name} of the MCP server {self.name} took longer than {self.rules.timeout_seconds} seconds."
                " Whether it had an effect is unknown."
            ) from None
        except Exception as error:  # of the package or of its transport
            if getattr(error, "code", _CONNECTION_CLOSED) == _CONNECTION_CLOSED:
                self._set_disconnected()
            raise McpFailed(f"{name} of the MCP server {self.name} failed: {_describe(error)}") from None
        text = _text(result)
        if result.is_error:
            raise McpFailed(text or f"{name} of the MCP server {self.name} failed.")
        return {"status": "ok", "text": text}

    def _set_disconnected(self) -> None:
        """Drop the connection. Calls wait for the next one."""
        self._client = None
        self._connected.clear()
        self._disconnected.set()

    async def _connect(self, stack: AsyncExitStack) -> None:
        from mcp import Client

        transport = _with_eof_callback(await self._transport(stack), self._set_disconnected)
        client = await stack.enter_async_context(Client(transport, cache=None))
        self.tools = self._make_tools(await _list_tools(client))
        self._client = client
        self._connected.set()
        self.tried.set()

    async def _transport(self, stack: AsyncExitStack) -> Any:
        from hobnob.tools import mcp_transports

        rules = self.rules
        if rules.url is not None:
            from mcp.client.streamable_http import streamable_http_client

            http = await stack.enter_async_context(mcp_transports.http(rules.headers))
            return streamable_http_client(rules.url, http_client=http)
        assert rules.command is not None
        self._record = ProcessRecord(self._records)
        return mcp_transports.program(rules.command, rules.args, rules.env, rules.cwd, self._record)

    def _make_tools(self, remote_tools: list[Any]) -> dict[str, Tool]:
        """Our tools for those of the server. A tool that exceeds a limit is skipped and logged."""
        tools: dict[str, Tool] = {}
        for remote in remote_tools:
            name = f"{PREFIX}{self.name}__{_INVALID_CHARS.sub('_', remote.name)}"
            schema = dict(remote.input_schema) | {"type": "object"}
            fits = len(name) <= _NAME_CHARS and len(orjson.dumps(schema)) <= SCHEMA_BYTES
            if not fits or name in tools or len(tools) >= MAX_TOOLS:
                reason = "too many tools, a name that is too long or not unique, or a large schema"
                _log.warning("MCP server %s: tool %.80s skipped: %s", self.name, remote.name, reason)
                continue
            tools[name] = self._make_tool(name, remote, schema)
        return tools

    def _make_tool(self, name: str, remote: Any, schema: dict[str, Any]) -> Tool:
        async def function(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
            return await self.call(remote.name, arguments)

        description = (remote.description or "")[:DESCRIPTION_CHARS]
        function.__doc__ = f"A tool of the MCP server {self.name}. {description}"
        timeout_s = self.rules.timeout_seconds + self.rules.connect_seconds + 10
        facts: dict[str, Any] = {"name": name, "group": "mcp", "server": self.name}
        return tool(**facts, timeout_s=timeout_s, schema=schema)(function)


@asynccontextmanager
async def open_servers(servers: Mapping[str, McpServer], records: Path) -> AsyncIterator[McpServers]:
    """Connect to the enabled servers in the background, until the context is left."""
    connections = {
        name: McpServerConnection(name, rules, records) for name, rules in servers.items() if rules.enabled
    }
    with unwrap_exception_group():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(s.run(), name=f"mcp {name}") for name, s in connections.items()]
            try:
                yield McpServers(connections)
            finally:
                for server in connections.values():
                    server.stop()
                if tasks:
                    await asyncio.wait(tasks, timeout=_GRACE_S)
                    for server in connections.values():
                        await asyncio.to_thread(server.kill)


@asynccontextmanager
async def _with_eof_callback(transport: Any, on_eof: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
    """The transport, with a callback when the server closes its side. No output schema passes it."""
    import anyio

    async with transport as (read, write), anyio.create_task_group() as group:
        forward, receive = anyio.create_memory_object_stream[Any](0)

        async def relay() -> None:
            try:
                async with forward:
                    async for message in read:
                        _drop_output_schemas(message)
                        await forward.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # the context is being left
            on_eof()

        group.start_soon(relay)
        try:
            async with receive:
                yield receive, write
        finally:
            group.cancel_scope.cancel()


def _drop_output_schemas(received: Any) -> None:
    """Remove the output schemas from a list of tools.

    The package would validate each result on the event loop, and a pattern in a schema can take for ever.
    """
    result = getattr(getattr(received, "message", None), "result", None)
    tools = result.get("tools") if isinstance(result, dict) else None
    for each in tools if isinstance(tools, list) else []:
        if isinstance(each, dict):
            each.pop("outputSchema", None)


async def _list_tools(client: Any) -> list[Any]:
    tools: list[Any] = []
    cursor = None
    while len(tools) <= MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _text(result: Any) -> str:
    """The result of a tool as text. Other content, such as images, is replaced by its type."""
    parts = [
        part.text
        if getattr(part, "type", "") == "text"
        else f"[{getattr(part, 'type', 'something')} left out]"
        for part in result.content
    ]
    text = "\n".join(parts)
    if not text and result.structured_content is not None:
        text = orjson.dumps(result.structured_content, default=str).decode()
    if len(text) > RESULT_CHARS:
        text = f"{text[:RESULT_CHARS]}\n[… {len(text) - RESULT_CHARS:,} characters left out …]"
    return text


def _describe(error: BaseException) -> str:
    """What went wrong, on one line. The server may have sent a page or a stack trace."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error)
    if (short := summary(text, _ERROR_CHARS)) != text:
        _log.debug("an MCP server reported: %s", redact.excerpt(text, _LOGGED_CHARS))
    return f"{type(error).__name__}: {short}" if short else type(error).__name__
