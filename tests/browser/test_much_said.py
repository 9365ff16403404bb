"""While much is said: all of it is shown once, a frame at a time, and the page does not grow."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.browser.house import House, Visit
from tests.browser.many import say_many
from tests.integration.team import ANN, made, team

Make = Callable[..., House]
Enter = Callable[..., Visit]
BEFORE, AFTER = 200, 400  # together fewer than a page has to leave out
WINDOW = 240
STREAMED = 10_000

# What is added to the transcript: in which frame, which messages, and how many there are then.
WATCH = """() => {
    const list = document.querySelector('.messages');
    window.draws = [];
    let frame = 0;
    const count = () => { frame += 1; requestAnimationFrame(count); };
    requestAnimationFrame(count);
    new MutationObserver((changes) => {
        const added = changes.flatMap((change) => [...change.addedNodes]).map((node) => +node.dataset.seq);
        if (added.length) window.draws.push([frame, added, list.querySelectorAll('.message').length]);
    }).observe(list, { childList: true });
}"""


@pytest.fixture
def drawn(house: Make, visit: Enter) -> list[tuple[int, list[int], int]]:
    """What a reader gets to see of many messages that come in bursts."""
    gateway = house(team())
    gateway.do(lambda inside: made(inside, ANN))
    gateway.do(lambda inside: say_many(inside, ANN, range(BEFORE)))
    one = visit(gateway)
    one.open(ANN)
    one.see(f"number {BEFORE - 1} ", ".messages")
    one.tab.evaluate(WATCH)
    gateway.do(lambda inside: say_many(inside, ANN, range(BEFORE, AFTER)))
    one.see(f"number {AFTER - 1} ", ".messages")
    return [tuple(draw) for draw in one.tab.evaluate("window.draws")]


@pytest.mark.promise("page.smooth")
def test_whatever_comes_between_two_frames_is_drawn_in_one_go(drawn: Any) -> None:
    frames = [frame for frame, _, _ in drawn]
    assert len(frames) == len(set(frames))
    assert len(frames) < AFTER - BEFORE


@pytest.mark.promise("page.smooth")
def test_all_that_is_said_is_shown_once_and_in_order(drawn: Any) -> None:
    assert [seq for _, added, _ in drawn for seq in added] == list(range(BEFORE + 1, AFTER + 1))


@pytest.mark.promise("page.smooth")
def test_no_more_than_a_window_of_messages_is_there_at_any_time(drawn: Any) -> None:
    counts = [count for _, _, count in drawn]
    assert max(counts) <= WINDOW
    assert counts[-1] > BEFORE / 2


@pytest.mark.promise("page.does_not_grow")
@pytest.mark.timeout(60)
def test_ten_thousand_messages_leave_the_page_as_large_as_a_thousand(house: Make, visit: Enter) -> None:
    gateway = house(team())
    gateway.do(lambda inside: made(inside, ANN))
    one = visit(gateway)
    one.open(ANN)
    gateway.do(lambda inside: say_many(inside, ANN, range(1000)))
    one.see("number 999 ", ".messages")
    before = size(one)
    gateway.do(lambda inside: say_many(inside, ANN, range(1000, STREAMED)), timeout_s=30)
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
