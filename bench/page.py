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
from tests.browser.chromium import missing, open_browser
from tests.browser.house import House, Visit
from tests.browser.many import make_many, say_many, scroll_to_the_end
from tests.integration.team import ANN, made, team

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
    with House(home, team()) as house, _one_word_page() as bare_url:
        house.do(lambda inside: say(inside, "say hi", ANN))
        page, bare = [], []
        for _ in range(LOADS):  # alternating, so that noise of the machine affects both
            page.append(_first_paint_ms(browser, f"{house.page}#token={house.token}"))
            bare.append(_first_paint_ms(browser, bare_url))
        return statistics.median(page), statistics.median(bare)


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
    with House(home, team()) as house, _visit(browser, house) as one:
        house.do(lambda inside: made(inside, ANN))
        house.do(lambda inside: say_many(inside, ANN, range(200)))
        one.open(ANN)
        one.see("number 199 ", ".messages")
        with _tasks(one) as quiet:
            one.tab.wait_for_timeout(SECONDS * 1000)
        numbers = range(PER_SECOND * SECONDS)
        with _tasks(one) as busy:
            house.do(
                lambda inside: say_many(inside, ANN, numbers, text=RICH, at_once=1, pause_s=1 / PER_SECOND)
            )
            one.see(f"Message {numbers[-1]}:", ".messages")
        return max(busy), max(quiet)


def _scroll_ms(browser: Any, home: Path, count: int) -> float:
    """The longest task while scrolling to the end of a list of `count` sessions."""
    with House(home, team()) as house:
        house.do(lambda inside: make_many(inside, count), timeout_s=120)
        with _visit(browser, house) as one:
            one.see("100 sessions so far")
            with _tasks(one) as tasks:
                scroll_to_the_end(one, count, within_s=300)
            return max(tasks)


@contextmanager
def _visit(browser: Any, house: House) -> Iterator[Visit]:
    one = Visit(browser, house)
    one.enter("#/")
    yield one
    one.leave()


@contextmanager
def _tasks(one: Visit) -> Iterator[list[float]]:
    """Collect the CPU time of each task of the page, in ms. Other programs do not count."""
    tasks: list[float] = []
    browser = one.tab.context.browser
    browser.start_tracing(page=one.tab, categories=["toplevel"])
    yield tasks
    events = orjson.loads(browser.stop_tracing())["traceEvents"]
    names = [e for e in events if e.get("name") == "thread_name" and e["args"]["name"] == "CrRendererMain"]
    threads = {(event["pid"], event["tid"]) for event in names}
    own = [e for e in events if (e["pid"], e["tid"]) in threads and e["name"].endswith("::RunTask")]
    tasks += [event["tdur"] / 1000 for event in own if "tdur" in event]
