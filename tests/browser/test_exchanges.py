"""Who talks to whom, on the page: live, step by step, with warnings; and why something is refused."""

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.browser.house import House, Visit
from tests.integration.team import ANN, BOB, EVE, Gate, team

from hobnob.cli.demo_script import SETTINGS
from hobnob.gateway import Gateway
from hobnob.testing import OWNER, calls, exchange_ended, say

Make = Callable[..., House]
Enter = Callable[..., Visit]
ADA, BO, CY = "agent:ada:main", "agent:bo:main", "agent:cy:main"


async def _party(inside: Gateway) -> None:
    """What `hobnob demo` does: Bo is asked by Ada, and a sub-agent counts chairs."""
    await say(inside, "The street party is on Saturday. How is the weather?", BO)
    await say(inside, "Plan the street party on Saturday.", ADA)
    page = await inside.sessions.queries.exchanges(OWNER)
    await exchange_ended(inside, page["exchanges"][0]["id"])
    await say(inside, "Do we have enough chairs?", ADA)
    page = await inside.sessions.queries.exchanges(OWNER)
    await exchange_ended(inside, page["exchanges"][0]["id"])


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A gateway at which it has happened. It is only looked at."""
    with House(tmp_path_factory.mktemp("party") / "home", copy.deepcopy(SETTINGS)) as house:
        house.do(_party)
        yield house


def steps(card: Any) -> list[str]:
    return [beat.get_attribute("class").split()[1] for beat in card.locator(".beat").all()]


@pytest.mark.promise("page.exchanges_live")
def test_an_exchange_appears_step_by_step_as_it_happens(house: Make, visit: Enter) -> None:
    gateway = house(copy.deepcopy(SETTINGS))
    one = visit(gateway, "#/exchanges")
    one.see("No agent has written to another yet")
    gateway.do(_party)
    sent = one.tab.locator(".card", has_text="Ada → Bo")
    sent.get_by_text("delivered").wait_for()
    assert steps(sent) == ["send", "answer", "reply", "reply", "silent", "announce"]
    assert "“How long does it stay dry on Saturday?”" in sent.locator(".beat").first.inner_text()
    assert re.search(r"answers · \d+ in, 9 out", sent.locator(".beat.answer").inner_text())
    assert sent.locator(".span.wait").count() == 1
    spawn = one.tab.locator(".card", has_text="Ada → chairs")
    spawn.locator(".beat.announce").wait_for()
    assert [b.get_attribute("class").split()[1] for b in spawn.locator(".beat").all()] == [
        "spawn",
        "work",
        "announce",
    ]
    assert one.tab.locator(".lane").all_inner_texts() == ["A\nAda", "B\nchairs", "B\nBo"]


def test_the_graph_counts_messages_and_a_pair_narrows_the_timeline(party: House, visit: Enter) -> None:
    one = visit(party, "#/exchanges")
    edge = one.tab.get_by_role("button", name="Ada to Bo: 6 messages")
    edge.wait_for()
    one.see("10 messages", ".sums")
    one.until(lambda: one.tab.locator(".card").count() == 2)
    edge.focus()
    one.tab.keyboard.press("Enter")
    one.see("Only Ada → Bo")
    one.until(lambda: one.tab.locator(".card").count() == 1)
    assert one.tab.locator(".lane").count() == 2
    one.tab.keyboard.press("Escape")
    one.tab.locator(".card").nth(1).wait_for()


@pytest.mark.promise("page.both_transcripts")
def test_a_step_opens_both_transcripts_where_it_happened(party: House, visit: Enter) -> None:
    one = visit(party, "#/exchanges")
    one.tab.locator(".card", has_text="Ada → Bo").locator(".beat.answer").click()
    here, there = one.tab.locator(".two .conversation").nth(0), one.tab.locator(".two .conversation").nth(1)
    here.locator(".pointed", has_text="Dry until five").wait_for()
    there.locator(".pointed", has_text="Dry until five").wait_for()
    assert here.locator("h2").inner_text().startswith("Bo")
    assert there.locator("h2").inner_text().startswith("Ada")
    one.tab.get_by_role("button", name="Back to the timeline").click()
    one.tab.locator(".beat.announce").first.wait_for()


@pytest.mark.promise("page.warnings")
def test_a_wait_that_was_refused_is_warned_of(house: Make, visit: Enter) -> None:
    scripts = {
        ANN: [calls("sessions_send", sessionKey=BOB, message="first"), "ok"],
        BOB: [calls("sessions_send", sessionKey=ANN, message="and you?"), "refused"],
    }
    gateway = house(team(scripts))
    one = visit(gateway, "#/exchanges")
    gateway.do(lambda inside: say(inside, "go", ANN))
    one.see("bob was refused: Waiting here would never end", ".warnings")
    one.see("deadlock", ".warnings")
    one.tab.locator(".warning").click()
    one.see("deadlock", ".messages .refusal")


@pytest.mark.promise("page.warnings")
def test_a_chain_that_nears_its_limit_is_warned_of(house: Make, visit: Enter) -> None:
    scripts = {
        ANN: [calls("sessions_send", sessionKey=BOB, message="first"), "ok"],
        BOB: [calls("sessions_send", sessionKey=EVE, message="second"), "ok"],
        EVE: ["third"],
    }
    gateway = house(team(scripts, session={"agentToAgent": {"maxHops": 3}}))
    one = visit(gateway, "#/exchanges")
    gateway.do(lambda inside: say(inside, "go", ANN))
    one.see("eve is at hop 2 of 3", ".warnings")
    one.see("hop 2 of 3", ".card .badge.warn")


@pytest.mark.promise("page.explains")
def test_a_refusal_is_explained_with_its_rule_and_its_setting(party: House, visit: Enter) -> None:
    one = visit(party, "#/explain")
    one.tab.get_by_label("From").fill(ADA)
    one.tab.get_by_label("Action").select_option("history")
    one.tab.get_by_label("To", exact=True).fill(CY)
    one.tab.get_by_role("button", name="Explain").click()
    one.see("a2a.not_allowed", ".verdict")
    assert one.tab.locator(".verdict h2").inner_text() == "No"
    one.see('tools.agentToAgent.allow = ["ada","bo","cy"]', ".verdict")
    one.tab.get_by_label("To", exact=True).fill(BO)
    one.tab.keyboard.press("Enter")
    one.see("Yes", ".verdict h2")
    one.see("visibility.all", ".verdict")
    one.tab.get_by_label("To", exact=True).fill("agent:..:main")
    one.tab.keyboard.press("Enter")
    one.tab.locator(".verdict [role=alert]").wait_for()


@pytest.mark.promise("page.exchanges_live")
def test_a_wait_that_goes_on_is_seen_in_the_timeline(house: Make, visit: Enter) -> None:
    gate = Gate()
    scripts = {ANN: [calls("sessions_send", sessionKey=BOB, message="?"), "ok"], BOB: [calls("hold"), "yes"]}
    gateway = house(team(scripts), tools=[gate.tool])
    one = visit(gateway, "#/exchanges")
    gateway.do(lambda inside: inside.sessions.send(OWNER, ANN, "go"))
    one.see("Under way: primary.", ".card")
    one.tab.locator(".span.wait").wait_for()
    one.see("is at work", ".card")

    async def let(inside: Gateway) -> None:
        gate.open.set()

    gateway.do(let)
    one.see("“yes”", ".beat.answer")
