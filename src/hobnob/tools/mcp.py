"""Tools from MCP servers: programs of others, kept running, listed under names of their own.

What they say is data, bounded like any other, and no server can hold up a turn for longer than its time. The
package is an extra and slow to import, so it is imported when a server is configured, and beside the loop.
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

from hobnob.config.mcp import McpServer
from hobnob.errors import McpFailed, unwrap_exception_group
from hobnob.processes.records import ProcessRecord
from hobnob.tools import Context, Tool, tool

PREFIX = "mcp__"
MOST_TOOLS = 100
DESCRIPTION_CHARS, SCHEMA_BYTES, RESULT_CHARS = 1_000, 20_000, 60_000
_NAME_CHARS = 64  # the longest name of a tool that all model providers take
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 60.0
_CLOSED = -32000  # the protocol's number for a connection that is gone
_GRACE_S = 5.0  # for a server to end, before it is made to
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_log = logging.getLogger(__name__)


class McpServers:
    """The servers that are configured. Get one from `open_servers`."""

    def __init__(self, servers: Mapping[str, McpServerConnection]) -> None:
        self._servers = servers

    @property
    def tools(self) -> list[Tool]:
        """The tools that are known by now. Those of a server that died stay: it is started again."""
        return [tool for server in self._servers.values() for tool in server.tools.values()]

    async def ready(self) -> None:
        """Wait until each server has been tried once, as long as each may take."""
        for server in self._servers.values():
            if not server.tried.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(server.rules.connect_seconds):
                        await server.tried.wait()
                server.tried.set()  # nobody waits for it a second time


class McpServerConnection:
    """One server, connected to again whenever it is gone."""

    def __init__(self, name: str, rules: McpServer, records: Path) -> None:
        self.name = name
        self.rules = rules
        self.tools: dict[str, Tool] = {}
        self.tried = asyncio.Event()
        self._records = records
        self._client: Any = None
        self._there = asyncio.Event()
        self._gone = asyncio.Event()
        self._stopping = False
        self._scope: Any = None
        self._pause_s = _FIRST_PAUSE_S
        self._record: ProcessRecord | None = None
        self._trouble = "it has not answered yet"

    def stop(self) -> None:
        """Have `run` come to its end, in the way of the package: cancelled like any task, it can hang."""
        self._stopping = True
        if self._scope is not None:
            self._scope.cancel()

    def kill(self) -> None:
        """Kill its program with everything it started. Blocks."""
        if self._record is not None:
            self._record.end()

    async def run(self) -> None:
        """Stay connected until stopped."""
        try:
            await asyncio.to_thread(importlib.import_module, "mcp")
        except ImportError:
            self._trouble = "the package mcp is not installed (pip install 'hobnob[mcp]')"
            _log.error("the MCP server %s cannot be used: %s", self.name, self._trouble)
            self.tried.set()
            return
        import anyio

        self._scope = anyio.CancelScope()
        with self._scope:
            while not self._stopping:
                await self._stay()
                _log.warning("the MCP server %s is gone: %s", self.name, self._trouble)
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    async def _stay(self) -> None:
        """Be connected for as long as it goes well."""
        import anyio

        self._gone.clear()
        try:
            # One scope around it all, whose time stops counting: what is entered in it has to be left in it.
            limit = anyio.CancelScope(deadline=anyio.current_time() + self.rules.connect_seconds)
            with limit:
                async with AsyncExitStack() as stack:
                    await self._connect(stack)
                    limit.deadline, self._pause_s = math.inf, _FIRST_PAUSE_S
                    await self._gone.wait()
                    self._trouble = "it ended; it is started again"
            if limit.cancelled_caught:
                self._trouble = f"it did not answer within {self.rules.connect_seconds} seconds"
        except Exception as trouble:  # whatever a server of others does, it is tried again
            self._trouble = _said(trouble)
        finally:
            self._lost()
            self.tried.set()

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool of the server, once. Raises McpFailed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.rules.connect_seconds):
                await self._there.wait()
        client = self._client
        if client is None:
            raise McpFailed(f"The MCP server {self.name} is not there: {self._trouble}.")
        try:
            async with asyncio.timeout(self.rules.timeout_seconds):
                result = await client.call_tool(name, arguments)
        except TimeoutError:
            said = (
                f"{name} of the MCP server {self.name} took longer than {self.rules.timeout_seconds} seconds"
            )
            raise McpFailed(f"{said}. Nobody knows what it did.") from None
        except Exception as trouble:  # of its own kinds, and of its transport's
            if getattr(trouble, "code", _CLOSED) == _CLOSED:
                self._lost()
            raise McpFailed(f"{name} of the MCP server {self.name} failed: {_said(trouble)}") from None
        text = _text(result)
        if result.is_error:
            raise McpFailed(text or f"{name} of the MCP server {self.name} failed.")
        return {"status": "ok", "text": text}

    def _lost(self) -> None:
        """The connection is of no use any more. Calls wait for the next one."""
        self._client = None
        self._there.clear()
        self._gone.set()

    async def _connect(self, stack: AsyncExitStack) -> None:
        from mcp import Client

        transport = _watched(await self._transport(stack), self._lost)
        client = await stack.enter_async_context(Client(transport, cache=None))
        self.tools = self._named(await _listed(client))
        self._client = client
        self._there.set()
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

    def _named(self, found: list[Any]) -> dict[str, Tool]:
        """Our tools for theirs. What does not fit is left out, and the log says so."""
        tools: dict[str, Tool] = {}
        for each in found:
            name = f"{PREFIX}{self.name}__{_UNFIT.sub('_', each.name)}"
            schema = dict(each.input_schema) | {"type": "object"}
            fits = len(name) <= _NAME_CHARS and len(orjson.dumps(schema)) <= SCHEMA_BYTES
            if not fits or name in tools or len(tools) >= MOST_TOOLS:
                _log.warning("a tool of the MCP server %s is left out: %.80s", self.name, each.name)
                continue
            tools[name] = self._tool(name, each, schema)
        return tools

    def _tool(self, name: str, theirs: Any, schema: dict[str, Any]) -> Tool:
        async def function(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
            return await self.call(theirs.name, arguments)

        function.__doc__ = f"Of the MCP server {self.name}. {(theirs.description or '')[:DESCRIPTION_CHARS]}"
        longest = self.rules.timeout_seconds + self.rules.connect_seconds + 10
        facts: dict[str, Any] = {"name": name, "group": "mcp", "server": self.name}
        return tool(**facts, timeout_s=longest, schema=schema)(function)


@asynccontextmanager
async def open_servers(servers: Mapping[str, McpServer], records: Path) -> AsyncIterator[McpServers]:
    """The servers, started in the background, until the context is left."""
    wanted = {
        name: McpServerConnection(name, rules, records) for name, rules in servers.items() if rules.enabled
    }
    with unwrap_exception_group():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(s.run(), name=f"mcp {name}") for name, s in wanted.items()]
            try:
                yield McpServers(wanted)
            finally:
                for server in wanted.values():
                    server.stop()
                if tasks:
                    await asyncio.wait(tasks, timeout=_GRACE_S)
                    for server in wanted.values():
                        await asyncio.to_thread(server.kill)


@asynccontextmanager
async def _watched(transport: Any, lost: Callable[[], None]) -> AsyncIterator[tuple[Any, Any]]:
    """A transport that tells when its server has nothing more to say."""
    import anyio

    async with transport as (read, write), anyio.create_task_group() as group:
        pass_on, receive = anyio.create_memory_object_stream[Any](0)

        async def relay() -> None:
            try:
                async with pass_on:
                    async for message in read:
                        await pass_on.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # we are leaving
            lost()

        group.start_soon(relay)
        try:
            async with receive:
                yield receive, write
        finally:
            group.cancel_scope.cancel()


async def _listed(client: Any) -> list[Any]:
    found: list[Any] = []
    cursor = None
    while len(found) <= MOST_TOOLS:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


def _text(result: Any) -> str:
    """What a tool said, as text. Pictures and the like are named."""
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


def _said(trouble: BaseException) -> str:
    while isinstance(trouble, BaseExceptionGroup):
        trouble = trouble.exceptions[0]
    return f"{type(trouble).__name__}: {trouble}"[:300] if str(trouble) else type(trouble).__name__
