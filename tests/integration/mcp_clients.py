"""Real MCP clients of a gateway: over HTTP with a grant, and over stdio with `hobnob mcp`."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import orjson
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.integration.web import OWNER_TOKEN, Web
from tests.waiting import LIMIT_S


async def grant(web: Web, session: str = "main", *, token: str = OWNER_TOKEN, **more: Any) -> dict[str, Any]:
    """A new grant, as the answer of the method."""
    answer = await web.ask(
        "POST", "/rpc/mcp.grants.create", {"params": {"sessionKey": session, **more}}, token=token
    )
    assert answer.status == 200, answer.json
    made: dict[str, Any] = answer.json["payload"]
    return made


async def call(web: Web, method: str, *, token: str = OWNER_TOKEN, **params: Any) -> Any:
    return (await web.ask("POST", f"/rpc/{method}", {"params": params}, token=token)).json


@asynccontextmanager
async def over_http(url: str, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=LIMIT_S) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode, cache=None) as client,
    ):
        yield client


@asynccontextmanager
async def over_stdio(web: Web, *arguments: str, mode: str = "auto", **env: str) -> AsyncIterator[Client]:
    """A client of the command `hobnob mcp`, which uses the gateway at its address."""
    environment = dict(os.environ) | {
        "HOBNOB_HOME": str(web.gateway.config.home / "of the command"),
        "HOBNOB_URL": web.url,
        "HOBNOB_TOKEN": OWNER_TOKEN,
    }
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "hobnob", "mcp", *arguments], env=environment | env
    )
    async with Client(stdio_client(command), mode=mode, cache=None) as client:
        yield client


@asynccontextmanager
async def connected(web: Web, transport: str, session: str = "main", mode: str = "auto") -> Any:
    """A client that acts as a session, over one of the two transports."""
    if transport == "stdio":
        async with over_stdio(web, "--session", session, mode=mode) as client:
            yield client
    else:
        async with over_http(web.url, (await grant(web, session))["token"], mode) as client:
            yield client


async def use(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool. Returns its structured result, after a check that the text says the same."""
    result = await client.call_tool(tool, arguments)
    assert result.structured_content is not None, result
    assert orjson.loads(result.content[0].text) == result.structured_content
    return dict(result.structured_content) | {"isError": result.is_error}
