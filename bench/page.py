"""The page in a browser: first paint, longest task at a high message rate and along a long session list."""

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
from tests.integration.team import ANN, made, team

from bench import Figure
from hobnob.testing import say

LOADS = 9
A_SECOND, SECONDS = 60, 4
FEW, MANY = 1_000, 100_000
MOST_MS = 100
RICH = "Message {}: the quick brown fox jumps over the lazy dog. `code` **bold**\n- one\n- two"
PAINT = "performance.getEntriesByName('first-contentful-paint')"


def run() -> list[Figure]:
    if reason := missing():
        print(f"The page is not measured: {reason}.", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        home = Path(folder)
        page_ms, word_ms = _paint_ms(browser, home / "paint")
        talk_ms, quiet_ms = _talk_ms(browser, home / "talk")
        few_ms, many_ms = (_scroll_ms(browser, home / str(count), count) for count in (FEW, MANY))
    return [
        Figure(
            "the page, until its first paint",
            f"{page_ms:.0f} ms",
            f"{word_ms:.0f} ms, a page of one word",
            page_ms / word_ms,
            "< 1 s",
            page_ms < 1000,
        ),
        _longest(f"the page while {A_SECOND} messages a second are said", talk_ms, quiet_ms, "nothing said"),
        _longest(f"the page along a list of {MANY:,} sessions", many_ms, few_ms, f"at {FEW:,}"),
    ]


def _longest(name: str, value_ms: float, floor_ms: float, floor: str) -> Figure:
    return Figure(
        f"{name}, longest task",
        f"{value_ms:.1f} ms of CPU",
        f"{floor_ms:.1f} ms, {floor}",
        value_ms / floor_ms,
        f"≤ {MOST_MS} ms",
        value_ms <= MOST_MS,
    )


def _paint_ms(browser: Any, home: Path) -> tuple[float, float]:
    """Until something is painted on a first visit, at the median: the page, and the least there can be."""
    with GatewayThread(home, team()) as server, _one_word() as bare:
        server.run(lambda gateway: say(gateway, "say hi", ANN))
        page, word = [], []
        for _ in range(LOADS):  # in turn, so that both see the same machine
            page.append(_painted_ms(browser, f"{server.url}#token={server.token}"))
            word.append(_painted_ms(browser, bare))
        return statistics.median(page), statistics.median(word)


def _painted_ms(browser: Any, url: str) -> float:
    context = browser.new_context()  # nothing is remembered from the visit before
    tab = context.new_page()
    tab.goto(url)
    tab.wait_for_function(f"() => {PAINT}.length")
    painted = float(tab.evaluate(f"{PAINT}[0].startTime"))
    context.close()
    return painted


@contextmanager
def _one_word() -> Iterator[str]:
    class Word(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>word</title>word")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Word) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def _talk_ms(browser: Any, home: Path) -> tuple[float, float]:
    """The longest task of a conversation in which much is said, and of one in which nothing is."""
    with GatewayThread(home, team()) as server, _open_tab(browser, server) as tab:
        server.run(lambda gateway: made(gateway, ANN))
        server.run(lambda gateway: append_messages(gateway, ANN, range(200)))
        tab.open_session(ANN)
        tab.wait_for_text("number 199 ", ".messages")
        with _tasks(tab) as quiet:
            tab.page.wait_for_timeout(SECONDS * 1000)
        numbers = range(A_SECOND * SECONDS)
        with _tasks(tab) as busy:
            server.run(
                lambda gateway: append_messages(
                    gateway, ANN, numbers, text=RICH, per_write=1, pause_s=1 / A_SECOND
                )
            )
            tab.wait_for_text(f"Message {numbers[-1]}:", ".messages")
        return max(busy), max(quiet)


def _scroll_ms(browser: Any, home: Path, count: int) -> float:
    """The longest task on the way to the end of a list of so many sessions."""
    with GatewayThread(home, team()) as server:
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
    """What each task of the page took of the processor, once it is over: other programs do not count."""
    tasks: list[float] = []
    browser = tab.page.context.browser
    browser.start_tracing(page=tab.page, categories=["toplevel"])
    yield tasks
    events = orjson.loads(browser.stop_tracing())["traceEvents"]
    names = [e for e in events if e.get("name") == "thread_name" and e["args"]["name"] == "CrRendererMain"]
    threads = {(event["pid"], event["tid"]) for event in names}
    own = [e for e in events if (e["pid"], e["tid"]) in threads and e["name"].endswith("::RunTask")]
    tasks += [event["tdur"] / 1000 for event in own if "tdur" in event]
