"""The MCP server over stdio: each request is passed on to `/mcp` of the gateway, with a grant.

This module imports the package `mcp`. A request has its own connection, so that a restart of the gateway
costs no more than the requests it interrupts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from hobnob import __version__
from hobnob.api.mcp.calls import INSTRUCTIONS
from hobnob.cli import connection, mcp_clients
from hobnob.cli.endpoint import Endpoint
from hobnob.errors import HobnobError
from hobnob.tools import mcp_transports
from hobnob.types import now_ms

_TTL_S = 3600
_RENEW_MS = 10 * 60_000  # before its end, a grant is replaced
_REFUSED = {
    401: "The gateway refuses the token: the grant was revoked, has expired, or its maker's secret changed.",
    403: "The gateway refuses the request.",
    404: "The session of the grant was deleted.",
    409: "The session of the grant is archived.",
    429: "The gateway has too many requests.",
    503: "The MCP server of the gateway is not available: is the extra installed there?",
}


class _Bridge:
    """Passes requests on. Without a given token it makes grants itself, as whoever runs the command."""

    def __init__(self, endpoint: Endpoint, token: str | None, session: str, *, read_only: bool) -> None:
        self._endpoint = endpoint
        self._token = token
        self._session = session
        self._read_only = read_only
        self._renew_at_ms: int | None = None if token else 0
        self._grants: list[str] = []
        self._granting = asyncio.Lock()

    async def _grant(self) -> str:
        """The token of a grant that is valid for a while."""
        async with self._granting:
            if self._renew_at_ms is not None and now_ms() >= self._renew_at_ms:
                params: dict[str, Any] = {"sessionKey": self._session, "ttlSeconds": _TTL_S}
                params |= {"name": "hobnob mcp", "readOnly": self._read_only}
                async with connection.open_connection(self._endpoint) as gateway:
                    made = await gateway.call("mcp.grants.create", **params)
                self._token = made["token"]
                self._grants.append(made["grant"]["grantId"])
                self._renew_at_ms = made["grant"]["expiresAtMs"] - _RENEW_MS
            assert self._token is not None
            return self._token

    async def revoke(self) -> None:
        """Revoke the grants that were made here, if the gateway can be reached."""
        if not self._grants:
            return
        try:
            async with asyncio.timeout(5), connection.open_connection(self._endpoint) as gateway:
                for grant in self._grants:
                    await gateway.call("mcp.grants.revoke", grantId=grant)
        except (HobnobError, TimeoutError, OSError):
            pass  # they end by themselves, within the hour

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A connection to the gateway for one request. Errors are reported to the client of this server."""
        refused: list[int] = []

        async def note_status(response: httpx2.Response) -> None:
            if response.status_code in _REFUSED:
                refused.append(response.status_code)

        with _reported(refused):
            headers = {"Authorization": f"Bearer {await self._grant()}"}
            url = mcp_clients.url_of(self._endpoint)
            async with mcp_transports.http(headers) as http:
                http.event_hooks["response"].append(note_status)
                transport = streamable_http_client(url, http_client=http)
                async with Client(transport, cache=None) as client:
                    yield client

    def server(self) -> Server[Any]:
        async def list_tools(ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
            async with self.client() as client:
                return await client.list_tools(cursor=params.cursor if params else None)

        async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
            async with self.client() as client:
                return await client.call_tool(
                    params.name, params.arguments, progress_callback=ctx.session.report_progress
                )

        async def list_resources(
            ctx: Any, params: types.PaginatedRequestParams | None
        ) -> types.ListResourcesResult:
            async with self.client() as client:
                return await client.list_resources(cursor=params.cursor if params else None)

        async def list_templates(
            ctx: Any, params: types.PaginatedRequestParams | None
        ) -> types.ListResourceTemplatesResult:
            async with self.client() as client:
                return await client.list_resource_templates(cursor=params.cursor if params else None)

        async def read_resource(
            ctx: Any, params: types.ReadResourceRequestParams
        ) -> types.ReadResourceResult:
            async with self.client() as client:
                return await client.read_resource(params.uri)

        return Server(
            "hobnob",
            version=__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            on_list_resources=list_resources,
            on_list_resource_templates=list_templates,
            on_read_resource=read_resource,
        )


def run(endpoint: Endpoint, token: str | None, session: str, *, read_only: bool) -> None:
    """Serve on stdin and stdout until stdin ends."""

    async def main() -> None:
        bridge = _Bridge(endpoint, token, session, read_only=read_only)
        server = bridge.server()
        try:
            async with stdio_server() as (read, write):
                await server.run(read, write, server.create_initialization_options())
        finally:
            await bridge.revoke()

    asyncio.run(main())


@contextmanager
def _reported(refused: list[int]) -> Iterator[None]:
    """Report failures of the gateway in words that the client can show. `refused`: statuses it answered."""
    try:
        yield
    except (Exception, BaseExceptionGroup) as error:
        first: BaseException = error
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if refused:
            raise MCPError(types.INTERNAL_ERROR, _REFUSED[refused[-1]]) from None
        if isinstance(first, HobnobError):
            raise MCPError(types.INTERNAL_ERROR, f"{first.message} {first.fix or ''}".strip()) from None
        if isinstance(first, httpx2.HTTPError | OSError):
            why = "The gateway cannot be reached: is `hobnob serve` running?"
            raise MCPError(types.INTERNAL_ERROR, why) from None
        raise first from None
