"""A gateway on a thread of its own, and a visitor that looks at its page."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

from hobnob.api.auth import owner_token
from hobnob.api.server import open_server
from hobnob.gateway import Gateway, api_services
from hobnob.testing import rehearse
from hobnob.tools import Tool

T = TypeVar("T")
READER = {"name": "reader", "token": "read-only-token", "scopes": ["operator.read"]}


class House:
    """A gateway that can be stopped and started again at the same address."""

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
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(ready,), name="house")
        self._thread.start()
        assert ready.wait(15), "the gateway does not start"
        if self._failed:
            raise self._failed

    def stop(self) -> None:
        if self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(15)
        assert not self._thread.is_alive(), "the gateway does not stop"
        self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def do(self, work: Callable[[Gateway], Awaitable[T]], timeout_s: float = 15) -> T:
        """Do something in the gateway, and wait until it is done."""

        async def done() -> T:
            return await work(self.gateway)

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(timeout_s)

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as problem:
            self._failed = problem
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        own = {"port": self._port, "auth": {"tokens": [READER]}}
        settings = {**self._settings, "gateway": own | self._settings.get("gateway", {})}
        async with (
            rehearse(self._home, settings, tools=self._tools) as gateway,
            open_server(api_services(gateway)) as url,
        ):
            self.gateway, self._port = gateway, urlsplit(url).port or 0
            self.token = owner_token(gateway.config)
            ready.set()
            await self._leave.wait()


class Visit:
    """A tab. Errors of the page, and requests to anywhere else, are remembered and fail the test."""

    def __init__(
        self,
        browser: Any,
        house: House,
        *,
        token: str | None = None,
        width: int = 1280,
        height: int = 800,
        scheme: str = "light",
        scale: float = 1,
    ) -> None:
        self._context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            device_scale_factor=scale,
            timezone_id="Asia/Tokyo",
            locale="en-GB",
        )
        self._context.set_default_timeout(10_000)
        self.house, self.token = house, token or house.token
        self.tab = self._context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("console", self._console)
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("websocket", lambda socket: self.requests.append(socket.url))

    def enter(self, place: str) -> None:
        self.tab.goto(f"{self.house.page}#token={self.token}")
        self.tab.wait_for_selector(".bar")
        if place != "#/":
            self.go(place)

    def go(self, place: str) -> None:
        self.tab.evaluate("place => { location.hash = place }", place)

    def open(self, key: str) -> None:
        self.go(f"#/s/{quote(key, safe='')}")
        self.tab.wait_for_selector(f".conversation .key:text-is('{key}')")

    def see(self, text: str, within: str = "#app") -> None:
        """Wait until a text is on the page."""
        self.tab.locator(within).get_by_text(text).first.wait_for()

    def until(self, holds: Callable[[], bool], timeout_s: float = 8) -> None:
        """Wait for something that no text tells."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, "it does not come about"
            self.tab.wait_for_timeout(20)

    def settle(self) -> None:
        """Wait until what has changed is painted and what moves has come to rest."""
        self.tab.evaluate("""async () => {
            const brief = (move) => move.effect.getComputedTiming().endTime < Infinity;
            for (let frames = 0; frames < 2; frames += 1) await new Promise(requestAnimationFrame);
            await Promise.allSettled(document.getAnimations().filter(brief).map((move) => move.finished));
        }""")

    def write(self, text: str) -> None:
        self.tab.locator(".composer textarea").fill(text)
        self.tab.keyboard.press("Enter")

    def leave(self) -> None:
        elsewhere = [url for url in self.requests if urlsplit(url).netloc != urlsplit(self.house.page).netloc]
        self._context.close()
        assert elsewhere == [], "the page asked another address"
        assert self.problems == [], self.problems

    def _console(self, message: Any) -> None:
        # That the gateway is away for a moment is what some tests are about.
        if message.type in ("error", "warning") and "ERR_CONNECTION" not in message.text:
            self.problems.append(message.text)


class Line:
    """The connection of a tab to its gateway, through which nothing more comes after a chosen event.

    What belongs together may well arrive apart. The tab connects anew to have it.
    """

    def __init__(self, one: Visit, stop_after: Callable[[str, Any], bool]) -> None:
        self._stop_after = stop_after
        self._kept: list[str | bytes] | None = None
        one.tab.route_web_socket("**", self._connected)
        one.tab.reload()

    def go_on(self) -> None:
        for frame in self._kept or ():
            self._page.send(frame)
        self._kept, self._stop_after = None, lambda *_: False

    def _connected(self, page: Any) -> None:
        self._page = page
        page.connect_to_server().on_message(self._heard)

    def _heard(self, frame: str | bytes) -> None:
        if self._kept is not None:
            self._kept.append(frame)
            return
        self._page.send(frame)
        told = json.loads(frame)
        if told["type"] == "event" and self._stop_after(told["event"], told["payload"]):
            self._kept = []
