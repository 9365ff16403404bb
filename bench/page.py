"""The page in a browser: first paint, a busy conversation, and scrolling a list of 100,000 sessions."""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
from tests.browser.bulk_data import append_messages, create_sessions
from tests.browser.chromium import missing, open_browser
from tests.browser.gateway_thread import GatewayThread
from tests.browser.tab import Tab
from tests.integration.helpers import ANN, three_agents
from tests.integration.helpers import create_sessions as create_named_sessions

from bench import Figure
from hobnob.testing import say

LOADS = 9
PER_SECOND, SECONDS = 60, 4  # messages of the busy conversation
FEW, MANY = 1_000, 100_000
MAX_TASK_MS = 100
RICH = "Message {}: the quick brown fox jumps over the lazy dog. `code` **bold**\n- one\n- two"
PAINT = "performance.getEntriesByName('first-contentful-paint')"


def run() -> list[Figure]:
    if reason := missing():
        print(f"The page is not measured: {reason}.", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        home = Path(folder)
        page_ms, bare_ms = _paint_ms(browser, home / "paint")
        busy_ms, quiet_ms = _conversation_ms(browser, home / "talk")
        few_ms, many_ms = (_scroll_ms(browser, home / str(count), count) for count in (FEW, MANY))
    return [
        Figure(
            "the page, until its first paint",
            f"{page_ms:.0f} ms",
            f"{bare_ms:.0f} ms, a page of one word",
            page_ms / bare_ms,
            "< 1 s",
            page_ms < 1000,
        ),
        _longest_task(
            f"the page with {PER_SECOND} messages per second", busy_ms, quiet_ms, "without messages"
        ),
        _longest_task(f"scrolling a list of {MANY:,} sessions", many_ms, few_ms, f"at {FEW:,}"),
    ]


def _longest_task(name: str, value_ms: float, floor_ms: float, floor: str) -> Figure:
    return Figure(
        f"{name}, longest task",
        f"{value_ms:.1f} ms of CPU",
        f"{floor_ms:.1f} ms, {floor}",
        value_ms / floor_ms,
        f"≤ {MAX_TASK_MS} ms",
        value_ms <= MAX_TASK_MS,
    )


def _paint_ms(browser: Any, home: Path) -> tuple[float, float]:
    """Median time to the first paint without a cache: of the page, and of a page of one word."""
    with GatewayThread(home, three_agents()) as server, _one_word_page() as bare:
        server.run(lambda gateway: say(gateway, "say hi", ANN))
        page, word = [], []
        for _ in range(LOADS):  # in turn, so that both see the same machine
            page.append(_first_paint_ms(browser, f"{server.url}#token={server.token}"))
            word.append(_first_paint_ms(browser, bare))
        return statistics.median(page), statistics.median(word)


def _first_paint_ms(browser: Any, url: str) -> float:
    context = browser.new_context()  # with an empty cache
    tab = context.new_page()
    tab.goto(url)
    tab.wait_for_function(f"() => {PAINT}.length")
    paint_ms = float(tab.evaluate(f"{PAINT}[0].startTime"))
    context.close()
    return paint_ms


@contextmanager
def _one_word_page() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>word</title>word")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def _conversation_ms(browser: Any, home: Path) -> tuple[float, float]:
    """The longest task of a conversation while messages are added, and while none are."""
    with GatewayThread(home, three_agents()) as server, _open_tab(browser, server) as tab:
        server.run(lambda gateway: create_named_sessions(gateway, ANN))
        server.run(lambda gateway: append_messages(gateway, ANN, range(200)))
        tab.open_session(ANN)
        tab.wait_for_text("number 199 ", ".messages")
        with _tasks(tab) as quiet:
            tab.page.wait_for_timeout(SECONDS * 1000)
        numbers = range(PER_SECOND * SECONDS)
        with _tasks(tab) as busy:
            server.run(
                lambda gateway: append_messages(
                    gateway, ANN, numbers, text=RICH, per_write=1, pause_s=1 / PER_SECOND
                )
            )
            tab.wait_for_text(f"Message {numbers[-1]}:", ".messages")
        return max(busy), max(quiet)


def _scroll_ms(browser: Any, home: Path, count: int) -> float:
    """The longest task while scrolling to the end of a list of `count` sessions."""
    with GatewayThread(home, three_agents()) as server:
        server.run(lambda gateway: create_sessions(gateway, count), timeout_s=120)
        with _open_tab(browser, server) as tab:
            tab.wait_for_text("100 sessions loaded")
            with _tasks(tab) as tasks:
                tab.scroll_sessions_to_end(count, timeout_s=300)
            return max(tasks)


@contextmanager
def _open_tab(browser: Any, server: GatewayThread) -> Iterator[Tab]:
    tab = Tab(browser, server)
    tab.sign_in("#/")
    yield tab
    tab.close()


@contextmanager
def _tasks(tab: Tab) -> Iterator[list[float]]:
    """Collect the CPU time of each task of the page, in ms. Other programs do not count."""
    tasks: list[float] = []
    browser = tab.page.context.browser
    browser.start_tracing(page=tab.page, categories=["toplevel"])
    yield tasks
    events = orjson.loads(browser.stop_tracing())["traceEvents"]
    names = [e for e in events if e.get("name") == "thread_name" and e["args"]["name"] == "CrRendererMain"]
    threads = {(event["pid"], event["tid"]) for event in names}
    own = [e for e in events if (e["pid"], e["tid"]) in threads and e["name"].endswith("::RunTask")]
    tasks += [event["tdur"] / 1000 for event in own if "tdur" in event]
