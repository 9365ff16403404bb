"""The exchanges and explain views: timeline, graph, transcripts side by side, warnings, verdicts."""

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser.gateway_thread import GatewayThread, StartGateway
from tests.browser.tab import OpenTab
from tests.integration.helpers import ANN, BOB, EVE, Gate, three_agents

from hobnob.cli.demo_script import SETTINGS
from hobnob.gateway import Gateway
from hobnob.testing import OWNER, calls, exchange_ended, say

ADA, BO, CY = "agent:ada:main", "agent:bo:main", "agent:cy:main"


async def _play_demo(gateway: Gateway) -> None:
    """The story of `hobnob demo`: Ada asks Bo, and a sub-agent counts chairs."""
    await say(gateway, "The street party is on Saturday. How is the weather?", BO)
    await say(gateway, "Plan the street party on Saturday.", ADA)
    page = await gateway.sessions.queries.exchanges(OWNER)
    await exchange_ended(gateway, page["exchanges"][0]["id"])
    await say(gateway, "Do we have enough chairs?", ADA)
    page = await gateway.sessions.queries.exchanges(OWNER)
    await exchange_ended(gateway, page["exchanges"][0]["id"])


@pytest.fixture(scope="module")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayThread]:
    """A gateway after the demo story, read-only for the tests."""
    with GatewayThread(tmp_path_factory.mktemp("demo") / "home", copy.deepcopy(SETTINGS)) as server:
        server.run(_play_demo)
        yield server


def row_kinds(card: Any) -> list[str]:
    return [row.get_attribute("class").split()[1] for row in card.locator(".exchange-row").all()]


@pytest.mark.promise("page.exchanges_live")
def test_an_exchange_appears_step_by_step_live(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    server = start_gateway(copy.deepcopy(SETTINGS))
    tab = open_tab(server, "#/exchanges")
    tab.wait_for_text("No exchanges yet")
    server.run(_play_demo)
    sent = tab.page.locator(".card", has_text="Ada → Bo")
    sent.get_by_text("delivered").wait_for()
    assert row_kinds(sent) == ["send", "answer", "reply", "reply", "silent", "announce"]
    assert "“How long does it stay dry on Saturday?”" in sent.locator(".exchange-row").first.inner_text()
    assert re.search(r"answers · \d+ in, 9 out", sent.locator(".exchange-row.answer").inner_text())
    assert sent.locator(".activity.wait").count() == 1
    spawn = tab.page.locator(".card", has_text="Ada → chairs")
    spawn.locator(".exchange-row.announce").wait_for()
    assert row_kinds(spawn) == ["spawn", "work", "announce"]
    assert tab.page.locator(".column-head").all_inner_texts() == ["A\nAda", "B\nchairs", "B\nBo"]


def test_selecting_an_edge_filters_the_timeline_to_its_pair(
    demo_server: GatewayThread, open_tab: OpenTab
) -> None:
    tab = open_tab(demo_server, "#/exchanges")
    edge = tab.page.get_by_role("button", name="Ada to Bo: 6 messages")
    edge.wait_for()
    tab.wait_for_text("10 messages", ".totals")
    tab.wait_until(lambda: tab.page.locator(".card").count() == 2)
    edge.focus()
    tab.page.keyboard.press("Enter")
    tab.wait_for_text("Only Ada → Bo")
    tab.wait_until(lambda: tab.page.locator(".card").count() == 1)
    assert tab.page.locator(".column-head").count() == 2
    tab.page.keyboard.press("Escape")
    tab.page.locator(".card").nth(1).wait_for()


@pytest.mark.promise("page.both_transcripts")
def test_a_step_opens_both_transcripts_at_its_position(demo_server: GatewayThread, open_tab: OpenTab) -> None:
    tab = open_tab(demo_server, "#/exchanges")
    tab.page.locator(".card", has_text="Ada → Bo").locator(".exchange-row.answer").click()
    panes = tab.page.locator(".split-panes .conversation")
    left, right = panes.nth(0), panes.nth(1)
    left.locator(".highlighted", has_text="Dry until five").wait_for()
    right.locator(".highlighted", has_text="Dry until five").wait_for()
    assert left.locator("h2").inner_text().startswith("Bo")
    assert right.locator("h2").inner_text().startswith("Ada")
    tab.page.get_by_role("button", name="Back to the timeline").click()
    tab.page.locator(".exchange-row.announce").first.wait_for()


@pytest.mark.promise("page.both_transcripts", "page.phone")
def test_on_a_phone_the_two_transcripts_are_tabs_with_one_message_box(
    demo_server: GatewayThread, open_tab: OpenTab
) -> None:
    tab = open_tab(demo_server, "#/exchanges", width=390, height=844)
    tab.page.locator(".card", has_text="Ada → Bo").locator(".exchange-row.answer").click()
    boxes = tab.page.locator(".composer textarea")
    tab.wait_until(lambda: boxes.count() == 2)

    def placeholders() -> list[str]:
        return [box.get_attribute("placeholder") for box in boxes.all() if box.is_visible()]

    assert placeholders() == ["Write to Bo…"]
    tab.page.locator(".conversation.chosen .message", has_text="Dry until five").first.wait_for()
    ada = tab.page.get_by_role("tab", name="Ada")
    assert ada.get_attribute("aria-selected") == "false"
    ada.click()
    assert placeholders() == ["Write to Ada…"]
    answer = tab.page.locator(".conversation.chosen .message.peer", has_text="Dry until five")
    answer.wait_for()
    assert answer.evaluate(
        "(el) => { const box = el.getBoundingClientRect(); return box.top > 0 && box.bottom < 844 }"
    )
    tab.page.keyboard.press("ArrowLeft")
    assert placeholders() == ["Write to Bo…"]


@pytest.mark.promise("page.explains")
def test_an_example_question_is_answered_when_it_is_chosen(
    demo_server: GatewayThread, open_tab: OpenTab
) -> None:
    tab = open_tab(demo_server, "#/explain")
    tab.page.get_by_role("link", name="May Ada send a message to Bo?").click()
    tab.wait_for_text("Yes", ".verdict h2")
    assert tab.page.get_by_label("From").input_value() == ADA
    assert tab.page.get_by_role("combobox", name=re.compile("^To")).input_value() == BO
    for example, answer in (
        ("May Bo read the history of Ada?", "read the history of agent:ada:main"),
        ("May Ada spawn a sub-agent of Bo?", "spawn a sub-agent of bo"),
        ("May your token reset or delete Ada?", "reset or delete agent:ada:main"),
    ):
        tab.page.get_by_role("link", name=example).click()
        tab.page.locator(".verdict p", has_text=answer).wait_for()


@pytest.mark.promise("page.warnings")
def test_a_refused_wait_shows_a_warning(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    scripts = {
        ANN: [calls("sessions_send", sessionKey=BOB, message="first"), "ok"],
        BOB: [calls("sessions_send", sessionKey=ANN, message="and you?"), "refused"],
    }
    server = start_gateway(three_agents(scripts))
    tab = open_tab(server, "#/exchanges")
    server.run(lambda gateway: say(gateway, "go", ANN))
    tab.wait_for_text("bob was refused: Waiting here would never end", ".warnings")
    tab.wait_for_text("deadlock", ".warnings")
    tab.page.locator(".warning").click()
    tab.wait_for_text("deadlock", ".messages .refusal")


@pytest.mark.promise("page.warnings")
def test_a_chain_near_the_hop_limit_shows_a_warning(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    scripts = {
        ANN: [calls("sessions_send", sessionKey=BOB, message="first"), "ok"],
        BOB: [calls("sessions_send", sessionKey=EVE, message="second"), "ok"],
        EVE: ["third"],
    }
    server = start_gateway(three_agents(scripts, session={"agentToAgent": {"maxHops": 3}}))
    tab = open_tab(server, "#/exchanges")
    server.run(lambda gateway: say(gateway, "go", ANN))
    tab.wait_for_text("eve is at hop 2 of 3", ".warnings")
    tab.wait_for_text("hop 2 of 3", ".card .badge.warn")


@pytest.mark.promise("page.explains")
def test_a_refusal_is_explained_with_its_rule_and_setting(
    demo_server: GatewayThread, open_tab: OpenTab
) -> None:
    tab = open_tab(demo_server, "#/explain")
    tab.page.get_by_label("From").fill(ADA)
    assert tab.page.locator(".explain-view label > span").all_inner_texts() == ["From", "Action", "To"]
    tab.page.get_by_label("Action").select_option("history")
    tab.page.get_by_role("combobox", name=re.compile("^To")).fill(CY)
    tab.page.get_by_role("button", name="Explain").click()
    tab.wait_for_text("a2a.not_allowed", ".verdict")
    assert tab.page.locator(".verdict h2").inner_text() == "No"
    tab.wait_for_text('tools.agentToAgent.allow = ["ada","bo","cy"]', ".verdict")
    tab.page.get_by_role("combobox", name=re.compile("^To")).fill(BO)
    tab.page.keyboard.press("Enter")
    tab.wait_for_text("Yes", ".verdict h2")
    tab.wait_for_text("visibility.all", ".verdict")
    tab.page.get_by_role("combobox", name=re.compile("^To")).fill("agent:..:main")
    tab.page.keyboard.press("Enter")
    tab.page.locator(".verdict [role=alert]").wait_for()


@pytest.mark.promise("page.exchanges_live")
def test_the_timeline_shows_a_wait_in_progress(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    gate = Gate()
    scripts = {ANN: [calls("sessions_send", sessionKey=BOB, message="?"), "ok"], BOB: [calls("hold"), "yes"]}
    server = start_gateway(three_agents(scripts), tools=[gate.tool])
    tab = open_tab(server, "#/exchanges")
    server.run(lambda gateway: gateway.sessions.send(OWNER, ANN, "go"))
    tab.wait_for_text("In progress: primary.", ".card")
    tab.page.locator(".activity.wait").wait_for()
    tab.wait_for_text("is running", ".card")

    async def release(gateway: Gateway) -> None:
        gate.open.set()

    server.run(release)
    tab.wait_for_text("“yes”", ".exchange-row.answer")


@pytest.mark.promise("page.exchanges_live")
def test_a_message_whose_sender_does_not_wait_is_not_drawn_as_a_wait(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    gate = Gate()
    told = calls("sessions_send", sessionKey=BOB, message="by the way", timeoutSeconds=0)
    scripts = {ANN: [told, calls("hold"), "ok"], BOB: ["noted", "ANNOUNCE_SKIP"]}
    server = start_gateway(
        three_agents(scripts, session={"agentToAgent": {"maxPingPongTurns": 0}}), tools=[gate.tool]
    )
    tab = open_tab(server, "#/exchanges")

    async def tell(gateway: Gateway) -> str:
        turn = await gateway.sessions.send(OWNER, ANN, "go")
        await gate.reached.wait()
        page = await gateway.sessions.queries.exchanges(OWNER)
        await exchange_ended(gateway, page["exchanges"][0]["id"])
        gate.open.set()  # ann goes on only now: she was running when the answer came
        await gateway.sessions.wait(turn.turn_id, 15)
        return turn.turn_id

    server.run(tell)
    tab.navigate("#/")
    tab.navigate("#/exchanges")
    tab.wait_for_text("“noted”", ".exchange-row.answer")
    assert tab.page.locator(".activity.wait").count() == 0
    assert "sends, without waiting" in tab.page.locator(".exchange-row.send").inner_text()
