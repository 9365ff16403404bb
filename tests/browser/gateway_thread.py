"""Run a gateway in its own thread, so that synchronous browser tests can drive it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from tests.waiting import LIMIT_S

from hobnob.api.auth import owner_token
from hobnob.api.server import open_server
from hobnob.gateway import Gateway, api_services
from hobnob.testing import rehearse
from hobnob.tools import Tool

T = TypeVar("T")
READ_ONLY_TOKEN = "read-only-token"
READER = {"name": "reader", "token": READ_ONLY_TOKEN, "scopes": ["operator.read"]}


class GatewayThread:
    """A gateway that can be stopped and started again on the same port."""

    def __init__(self, home: Path, settings: dict[str, Any], *, tools: Iterable[Tool] = ()) -> None:
        home.mkdir()
        self._home = home
        self._settings = settings
        self._tools = list(tools)
        self._port = 0
        self._thread: threading.Thread | None = None
        self.start()

    def start(self) -> None:
        ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(ready,), name="gateway")
        self._thread.start()
        assert ready.wait(15), "the gateway did not start"
        if self._error:
            raise self._error

    def stop(self) -> None:
        if self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(15)
        assert not self._thread.is_alive(), "the gateway did not stop"
        self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, work: Callable[[Gateway], Awaitable[T]], timeout_s: float = LIMIT_S) -> T:
        """Run `work` on the gateway's event loop and return its result."""

        async def call() -> T:
            return await work(self.gateway)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(timeout_s)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            self._error = error
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        defaults = {"port": self._port, "auth": {"tokens": [READER]}}
        settings = {**self._settings, "gateway": defaults | self._settings.get("gateway", {})}
        async with (
            rehearse(self._home, settings, tools=self._tools) as gateway,
            open_server(api_services(gateway)) as url,
        ):
            self.gateway, self._port = gateway, urlsplit(url).port or 0
            self.token = owner_token(gateway.config)
            ready.set()
            await self._stop.wait()


StartGateway = Callable[..., GatewayThread]
