"""That the page is quick, stays smooth while much is said, and does not grow."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.browser.house import House, Visit
from tests.integration.team import ANN, made, team

from hobnob.gateway import Gateway
from hobnob.store import Tx, entries, sessions
from hobnob.testing import say

Make = Callable[..., House]
Enter = Callable[..., Visit]
A_SECOND = 60
STREAMED = 10_000


@pytest.mark.promise("page.quick")
def test_the_first_paint_comes_within_a_second(house: Make, visit: Enter) -> None:
    gateway = house(team())
    gateway.do(lambda inside: say(inside, "say hi", ANN))
    one = visit(gateway)
    one.tab.reload()
    one.see("hi", ".row")
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    assert one.tab.evaluate(paint) < 1000


@pytest.mark.promise("page.smooth")
def test_sixty_messages_a_second_stay_smooth(house: Make, visit: Enter) -> None:
    gateway = house(team())
    gateway.do(lambda inside: made(inside, ANN))
    gateway.do(lambda inside: _say_many(inside, 0, 200))
    one = visit(gateway)
    one.open(ANN)
    one.see("number 199 ", ".messages")
    one.tab.evaluate("""() => {
        window.long = [];
        new PerformanceObserver((list) => window.long.push(...list.getEntries().map((e) => e.duration)))
            .observe({ type: 'longtask' });
    }""")

    async def stream(inside: Gateway) -> None:
        session = await inside.store.read(sessions.get, ANN)
        for n in range(4 * A_SECOND):
            text = f"Message {n}: the quick brown fox jumps over the lazy dog. `code` **bold**\n- one\n- two"
            await inside.store.write(entries.append, session.session_id, _message(n, text))
            await asyncio.sleep(1 / A_SECOND)

    gateway.do(stream)
    one.see(f"Message {4 * A_SECOND - 1}:", ".messages")
    assert [ms for ms in one.tab.evaluate("window.long") if ms > 100] == []
    assert one.tab.locator(".message").count() <= 240


@pytest.mark.promise("page.does_not_grow")
@pytest.mark.timeout(60)
def test_ten_thousand_messages_leave_the_page_as_large_as_a_thousand(house: Make, visit: Enter) -> None:
    gateway = house(team())
    gateway.do(lambda inside: made(inside, ANN))
    one = visit(gateway)
    one.open(ANN)
    gateway.do(lambda inside: _say_many(inside, 0, 1000))
    one.see("number 999 ", ".messages")
    before = size(one)
    gateway.do(lambda inside: _say_many(inside, 1000, STREAMED), timeout_s=30)
    one.see(f"number {STREAMED - 1} ", ".messages")
    after = size(one)
    assert after["nodes"] < before["nodes"] + 500
    assert after["bytes"] < before["bytes"] + 2_000_000


def size(one: Visit) -> dict[str, float]:
    devtools: Any = one.tab.context.new_cdp_session(one.tab)
    devtools.send("HeapProfiler.collectGarbage")
    heap, counted = devtools.send("Runtime.getHeapUsage"), devtools.send("Memory.getDOMCounters")
    devtools.detach()
    return {"bytes": heap["usedSize"], "nodes": counted["nodes"]}


async def _say_many(inside: Gateway, first: int, last: int) -> None:
    session = await inside.store.read(sessions.get, ANN)

    def add(tx: Tx, numbers: range) -> None:
        for n in numbers:
            entries.append(tx, session.session_id, _message(n, f"This is number {n} of many."))

    for at in range(first, last, 50):
        await inside.store.write(add, range(at, min(at + 50, last)))
        await asyncio.sleep(0.01)


def _message(number: int, text: str) -> dict[str, Any]:
    role = "user" if number % 2 else "assistant"
    return {
        "role": role,
        "content": [{"type": "text", "text": text}],
        "timestamp": 1_700_000_000_000 + number,
    }
