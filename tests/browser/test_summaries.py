"""Summaries of older messages in a conversation on the page."""

from typing import Any

from tests.browser.gateway_thread import StartGateway
from tests.browser.tab import OpenTab, Tab
from tests.integration.helpers import transcript

from hobnob.gateway import Gateway
from hobnob.testing import say

MAIN = "agent:main:main"
SUMMARY = "They agreed on tea at four, and on **two** cakes."


def settings(step: Any) -> dict[str, Any]:
    compaction = {"keepRecentTokens": 200, "memoryFlush": {"enabled": False}}
    return {
        "agents": {"defaults": {"compaction": compaction}},
        "models": {"rehearsal": {"scripts": {"compaction": [step]}}},
    }


async def talk(gateway: Gateway) -> int:
    """Some messages and a compaction. Returns how many messages its summary covers."""
    for number in range(6):
        await say(gateway, f"say Fact {number}. {'lorem ipsum ' * 30}")
    await say(gateway, "/compact")
    (found,) = [m for m in await transcript(gateway, MAIN) if "compaction" in m]
    return int(found["compaction"]["covers"][1])


def open_summary(tab: Tab) -> Any:
    tab.open_session(MAIN)
    tab.wait_for_text("The older part of the conversation is summarised", ".messages")
    return tab.page.locator(".messages .summary")


def test_a_summary_is_folded_and_says_how_many_messages_it_covers(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway(settings(SUMMARY)))
    count = tab.server.run(talk)
    summary = open_summary(tab)
    assert f"Summary of {count} messages" in summary.inner_text()
    assert "tea at four" not in summary.inner_text()
    summary.locator("summary").click()
    tab.wait_for_text("tea at four", ".messages .summary")
    assert summary.locator(".summary-text strong").inner_text() == "two"
    assert "Fact 0." in tab.page.locator(".messages").inner_text()  # what it covers stays


def test_a_summary_that_failed_says_so(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    tab = open_tab(start_gateway(settings({"error": "no credit"})))
    count = tab.server.run(talk)
    summary = open_summary(tab)
    assert f"Incomplete summary of {count} messages" in summary.inner_text()


def test_a_summary_before_an_answer_does_not_end_the_running_turn(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    small = settings(SUMMARY)
    small["agents"]["defaults"]["contextTokens"] = 1000
    tab = open_tab(start_gateway(small))
    tab.server.run(lambda gateway: say(gateway, f"say {'lorem ipsum ' * 100}"))
    tab.open_session(MAIN)
    tab.wait_for_text("lorem ipsum", ".messages")
    tab.send_message(f"say Done. {'lorem ipsum ' * 100}")
    tab.wait_for_text("Summary of", ".messages .summary")
    tab.wait_for_text("Done.", ".messages .message.agent")
