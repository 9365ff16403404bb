"""A browser tab with the page open, and a WebSocket proxy that holds back frames."""

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from tests.browser.gateway_thread import GatewayThread
from tests.waiting import LIMIT_S

_SCROLL_TO_END = """async ([last, timeout_ms]) => {
    const rows = document.querySelector('.rows');
    const footer = document.querySelector('.list-foot');
    const end = performance.now() + timeout_ms;
    while (footer.textContent !== last && performance.now() < end) {
        rows.scrollTop = rows.scrollHeight;
        await new Promise(requestAnimationFrame);
    }
    rows.scrollTop = rows.scrollHeight;
    return footer.textContent;
}"""


class Tab:
    """A tab in its own browser context. Page errors and requests to other hosts fail the test on `close`."""

    def __init__(
        self,
        browser: Any,
        server: GatewayThread,
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
        self._context.set_default_timeout(LIMIT_S * 1000)
        self.server, self.token = server, token or server.token
        self.page = self._context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._on_console)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("websocket", lambda socket: self.requests.append(socket.url))

    def sign_in(self, fragment: str = "#/") -> None:
        self.page.goto(f"{self.server.url}#token={self.token}")
        self.page.wait_for_selector(".bar")
        if fragment != "#/":
            self.navigate(fragment)

    def navigate(self, fragment: str) -> None:
        self.page.evaluate("fragment => { location.hash = fragment }", fragment)

    def open_session(self, key: str) -> None:
        self.navigate(f"#/s/{quote(key, safe='')}")
        self.page.wait_for_selector(f".conversation .key:text-is('{key}')")

    def wait_for_text(self, text: str, within: str = "#app") -> None:
        self.page.locator(within).get_by_text(text).first.wait_for()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = LIMIT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "condition not met in time"
            self.page.wait_for_timeout(20)

    def wait_for_paint(self) -> None:
        """Wait until changes are painted and finite animations have ended."""
        self.page.evaluate("""async () => {
            const finite = (animation) => animation.effect.getComputedTiming().endTime < Infinity;
            for (let frames = 0; frames < 2; frames += 1) await new Promise(requestAnimationFrame);
            const running = document.getAnimations().filter(finite);
            await Promise.allSettled(running.map((animation) => animation.finished));
        }""")

    def send_message(self, text: str) -> None:
        self.page.locator(".composer textarea").fill(text)
        self.page.keyboard.press("Enter")

    def scroll_sessions_to_end(self, count: int, timeout_s: float = LIMIT_S) -> None:
        """Scroll the session list, one step per frame, until all `count` sessions are loaded."""
        last = f"{count:,} sessions"
        assert self.page.evaluate(_SCROLL_TO_END, [last, timeout_s * 1000]) == last

    def close(self) -> None:
        own_host = urlsplit(self.server.url).netloc
        foreign = [url for url in self.requests if urlsplit(url).netloc != own_host]
        self._context.close()
        assert foreign == [], "the page sent a request to another host"
        assert self.errors == [], self.errors

    def _on_console(self, message: Any) -> None:
        # Some tests stop the gateway on purpose.
        if message.type in ("error", "warning") and "ERR_CONNECTION" not in message.text:
            self.errors.append(message.text)


OpenTab = Callable[..., Tab]


class HeldSocket:
    """A proxy on a tab's WebSocket that holds back all frames after a chosen event, until `release`.

    Frames sent together may arrive apart. The tab is reloaded to connect through the proxy.
    """

    def __init__(self, tab: Tab, hold_after: Callable[[str, Any], bool]) -> None:
        self._hold_after = hold_after
        self._held: list[str | bytes] | None = None
        tab.page.route_web_socket("**", self._on_connect)
        tab.page.reload()

    def release(self) -> None:
        for frame in self._held or ():
            self._socket.send(frame)
        self._held, self._hold_after = None, lambda *_: False

    def _on_connect(self, socket: Any) -> None:
        self._socket = socket
        socket.connect_to_server().on_message(self._on_frame)

    def _on_frame(self, frame: str | bytes) -> None:
        if self._held is not None:
            self._held.append(frame)
            return
        self._socket.send(frame)
        message = json.loads(frame)
        if message["type"] == "event" and self._hold_after(message["event"], message["payload"]):
            self._held = []
