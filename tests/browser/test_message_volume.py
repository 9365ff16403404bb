"""Many messages at once: rendered once per frame, in order, in a window of constant size."""

from typing import Any

import pytest
from tests.browser.bulk_data import append_messages
from tests.browser.gateway_thread import StartGateway
from tests.browser.tab import OpenTab, Tab
from tests.integration.helpers import ANN, create_sessions, three_agents

BEFORE, AFTER = 200, 400  # a burst smaller than the window, so nothing is skipped
WINDOW = 240
STREAMED = 10_000

# Record what is added to the transcript: frame number, seqs, number of messages afterwards.
RECORD_RENDERS = """() => {
    const list = document.querySelector('.messages');
    window.renders = [];
    let frame = 0;
    const count = () => { frame += 1; requestAnimationFrame(count); };
    requestAnimationFrame(count);
    new MutationObserver((changes) => {
        const added = changes.flatMap((change) => [...change.addedNodes]).map((node) => +node.dataset.seq);
        if (added.length) window.renders.push([frame, added, list.querySelectorAll('.message').length]);
    }).observe(list, { childList: true });
}"""


@pytest.fixture
def renders(start_gateway: StartGateway, open_tab: OpenTab) -> list[tuple[int, list[int], int]]:
    """What the page renders while messages arrive in bursts."""
    server = start_gateway(three_agents())
    server.run(lambda gateway: create_sessions(gateway, ANN))
    server.run(lambda gateway: append_messages(gateway, ANN, range(BEFORE)))
    tab = open_tab(server)
    tab.open_session(ANN)
    tab.wait_for_text(f"number {BEFORE - 1} ", ".messages")
    tab.page.evaluate(RECORD_RENDERS)
    server.run(lambda gateway: append_messages(gateway, ANN, range(BEFORE, AFTER)))
    tab.wait_for_text(f"number {AFTER - 1} ", ".messages")
    return [tuple(render) for render in tab.page.evaluate("window.renders")]


@pytest.mark.promise("page.smooth")
def test_messages_between_two_frames_are_rendered_together(renders: Any) -> None:
    frames = [frame for frame, _, _ in renders]
    assert len(frames) == len(set(frames))
    assert len(frames) < AFTER - BEFORE


@pytest.mark.promise("page.smooth")
def test_every_message_is_rendered_once_and_in_order(renders: Any) -> None:
    assert [seq for _, added, _ in renders for seq in added] == list(range(BEFORE + 1, AFTER + 1))


@pytest.mark.promise("page.smooth")
def test_the_window_never_holds_more_messages_than_its_limit(renders: Any) -> None:
    counts = [count for _, _, count in renders]
    assert max(counts) <= WINDOW
    assert counts[-1] > BEFORE / 2


@pytest.mark.promise("page.does_not_grow")
@pytest.mark.timeout(60)
def test_memory_does_not_grow_with_ten_thousand_messages(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents())
    server.run(lambda gateway: create_sessions(gateway, ANN))
    tab = open_tab(server)
    tab.open_session(ANN)
    server.run(lambda gateway: append_messages(gateway, ANN, range(1000)))
    tab.wait_for_text("number 999 ", ".messages")
    before = memory_use(tab)
    server.run(lambda gateway: append_messages(gateway, ANN, range(1000, STREAMED)))
    tab.wait_for_text(f"number {STREAMED - 1} ", ".messages")
    after = memory_use(tab)
    assert after["nodes"] < before["nodes"] + 500
    assert after["bytes"] < before["bytes"] + 2_000_000


def memory_use(tab: Tab) -> dict[str, float]:
    devtools: Any = tab.page.context.new_cdp_session(tab.page)
    devtools.send("HeapProfiler.collectGarbage")
    heap, counters = devtools.send("Runtime.getHeapUsage"), devtools.send("Memory.getDOMCounters")
    devtools.detach()
    return {"bytes": heap["usedSize"], "nodes": counters["nodes"]}
