"""A gateway on a real socket, and a client that speaks HTTP with it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from tests.waiting import LIMIT_S

from hobnob.api import Services
from hobnob.api.server import open_server
from hobnob.config import Config
from hobnob.gateway import Gateway, api_services
from hobnob.testing import rehearse
from hobnob.tools import Tool

READ, WRITE, ADMIN = "operator.read", "operator.write", "operator.admin"
OWNER_TOKEN, READER, WRITER, FOR_BOB = "the-owners-token", "may-only-read", "may-write-too", "writes-to-bob"
TOKENS = [
    {"name": "reader", "token": READER, "scopes": [READ]},
    {"name": "writer", "token": WRITER, "scopes": [WRITE]},
    {"name": "for bob", "token": FOR_BOB, "scopes": [WRITE], "agents": ["bob"]},
]
HOOK_TOKEN = "the-token-of-the-hooks"
HOOKS = {"enabled": True, "token": HOOK_TOKEN}


@dataclass
class Answered:
    status: int
    json: Any
    headers: Any


@dataclass
class Web:
    """A client of one gateway. Without another token it is the owner's."""

    http: aiohttp.ClientSession
    url: str
    gateway: Gateway
    services: Services

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def ask(
        self, verb: str, path: str, json: Any = None, *, token: str | None = OWNER_TOKEN, **more: Any
    ) -> Answered:
        async with self.open(verb, path, json, token=token, **more) as response:
            text = await response.text()
            is_json = response.content_type == "application/json"
            return Answered(response.status, await response.json() if is_json else text, response.headers)

    def open(
        self, verb: str, path: str, json: Any = None, *, token: str | None = OWNER_TOKEN, **more: Any
    ) -> Any:
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return self.http.request(verb, self.url + path, json=json, headers=headers, **more)

    async def raw(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which these bytes were sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        await writer.drain()
        return reader, writer


@asynccontextmanager
async def web_of(
    home: Path, settings: dict[str, Any] | None = None, *, tools: tuple[Tool, ...] = (), gateway: Any = None
) -> AsyncIterator[Web]:
    """A gateway with the agents ann (the default) and bob, on a free port."""
    agents = {"list": [{"id": "ann", "default": True}, {"id": "bob"}]}
    auth = {"token": OWNER_TOKEN, "tokens": TOKENS}
    whole = {"agents": agents, "gateway": {"port": 0, "auth": auth, **(gateway or {})}} | (settings or {})
    async with rehearse(home, whole, tools=tools) as inside:
        services = api_services(inside)
        async with (
            open_server(services) as url,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as http,
        ):
            yield Web(http, url.replace("ws://", "http://"), inside, services)


def withdraw_narrow_tokens(web: Web) -> None:
    """Remove every token but the owner's, as a reload of the settings does."""
    settings = web.gateway.config.settings
    auth = settings.gateway.auth.model_copy(update={"tokens": []})
    gateway = settings.gateway.model_copy(update={"auth": auth})
    fresh = settings.model_copy(update={"gateway": gateway})
    web.gateway.config.reload(Config(fresh, web.gateway.config.home))
