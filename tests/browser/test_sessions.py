"""The list of sessions on the page: live, narrowed, paged, as a tree, by keys."""

from collections.abc import Callable

import pytest
from tests.browser.house import House, Visit
from tests.browser.many import make_many, scroll_to_the_end
from tests.integration.team import ANN, BOB, Gate, made, spawned, team
from tests.integration.team import house as family

from hobnob.gateway import Gateway
from hobnob.testing import OWNER, calls, say

Make = Callable[..., House]
Enter = Callable[..., Visit]
MANY = 5_000


def names(one: Visit) -> list[str]:
    return one.tab.locator(".row b").all_inner_texts()


@pytest.mark.promise("page.sessions_live")
def test_a_session_appears_and_moves_up_as_things_happen(house: Make, visit: Enter) -> None:
    gateway = house(team())
    one = visit(gateway)
    one.see("No sessions yet")
    gateway.do(lambda inside: say(inside, "say from ann", ANN))
    one.see("from ann", ".row")
    gateway.do(lambda inside: say(inside, "say from bob", BOB))
    one.see("from bob", ".row")
    rows = one.tab.locator(".row")
    rows.nth(1).wait_for()
    tops = {row.locator("b").inner_text(): row.bounding_box()["y"] for row in rows.all()}
    assert tops["bob"] < tops["ann"]
    assert "main · webchat" in rows.first.inner_text()
    one.until(lambda: "tok" in rows.first.inner_text())


@pytest.mark.promise("page.sessions_live")
def test_a_row_says_whom_the_session_waits_for_and_that_it_failed(house: Make, visit: Enter) -> None:
    gate = Gate()
    scripts = {ANN: [calls("sessions_send", sessionKey=BOB, message="?"), "ok"], BOB: [calls("hold"), "yes"]}
    gateway = house(team(scripts | {"agent:eve:main": [{"error": "the model is gone"}]}), tools=[gate.tool])
    one = visit(gateway)
    gateway.do(lambda inside: inside.sessions.send(OWNER, ANN, "go"))
    one.see("waiting for bob", ".row")
    one.see("running", ".row")
    gateway.do(lambda inside: inside.sessions.send(OWNER, "agent:eve:main", "go"))
    one.see("failed", ".row")

    async def let(inside: Gateway) -> None:
        gate.open.set()

    gateway.do(let)
    one.tab.locator(".row", has_text="waiting for bob").wait_for(state="detached")


def test_the_list_is_narrowed_by_kind_by_agent_and_by_words(house: Make, visit: Enter) -> None:
    gateway = house(team())
    gateway.do(lambda inside: made(inside, ANN, BOB, "agent:bob:cron:7", "agent:ann:irc:group:ops"))
    gateway.do(lambda inside: inside.sessions.patch(OWNER, "agent:bob:cron:7", label="nightly"))
    one = visit(gateway)
    one.see("4 sessions")
    one.tab.get_by_label("Kind").select_option("cron")
    one.see("1 session", ".list-foot")
    one.until(lambda: names(one) == ["nightly"])
    one.tab.get_by_label("Kind").select_option("")
    one.tab.get_by_label("Agent", exact=True).select_option("ann")
    one.see("2 sessions", ".list-foot")
    one.until(lambda: sorted(names(one)) == ["ann", "ann · irc:group:ops"])
    one.tab.get_by_label("Agent", exact=True).select_option("")
    one.tab.keyboard.press("/")
    one.tab.keyboard.type("night")
    one.see("1 session", ".list-foot")
    one.until(lambda: names(one) == ["nightly"])
    one.tab.keyboard.type("xxx")
    one.see("No session fits")
    one.tab.get_by_role("button", name="Show all sessions").click()
    one.see("4 sessions")


@pytest.mark.promise("page.sessions_paged")
def test_a_long_list_is_read_and_drawn_in_pieces(house: Make, visit: Enter) -> None:
    gateway = house(team())
    gateway.do(lambda inside: make_many(inside, MANY))
    one = visit(gateway)
    one.see("100 sessions so far")
    assert one.tab.locator(".row").count() < 40
    scroll_to_the_end(one, MANY)
    one.see(f"hook:{MANY - 1:05}", ".row")
    assert one.tab.locator(".row").count() < 40
    # What moves to the top does not move what one looks at.
    looked_at = one.tab.locator(f"[data-key='agent:bob:hook:{MANY - 4:05}']")
    before = looked_at.bounding_box()
    gateway.do(lambda inside: say(inside, "say hi", ANN))
    one.see(f"{MANY + 1:,} sessions")
    one.settle()
    assert looked_at.bounding_box() == before


def test_spawned_sessions_stand_below_their_parents_in_the_tree(house: Make, visit: Enter) -> None:
    gateway = house(family({"*": ["done", "all done"]}))
    gateway.do(lambda inside: spawned(inside, task="count", label="counting", agentId="bob"))
    one = visit(gateway)
    one.see("2 sessions")
    one.tab.get_by_role("button", name="Tree").click()
    child = one.tab.get_by_role("treeitem", name="counting")
    assert child.get_attribute("aria-level") == "2"
    assert one.tab.get_by_role("treeitem").first.get_attribute("aria-level") == "1"
    one.tab.locator(".twist").click()
    child.wait_for(state="detached")
    one.tab.locator(".twist").click()
    child.click()
    one.see("spawned by", ".conversation-head")


def test_the_list_is_used_with_keys(house: Make, visit: Enter) -> None:
    gateway = house(team())
    gateway.do(lambda inside: made(inside, "agent:ann:hook:a", "agent:ann:hook:b", "agent:ann:hook:c"))
    one = visit(gateway)
    one.see("3 sessions")
    for key in ("j", "j", "j", "k", "Enter"):
        one.tab.keyboard.press(key)
    one.tab.wait_for_selector(".conversation .key:text-is('agent:ann:hook:b')")
    assert one.tab.locator("[aria-selected=true] b").inner_text() == "ann · hook:b"
    active = one.tab.locator(".rows").get_attribute("aria-activedescendant")
    assert one.tab.locator(f"#{active} b").inner_text() == "ann · hook:b"
    one.tab.keyboard.press("c")
    assert one.tab.evaluate("document.activeElement.tagName") == "TEXTAREA"
    one.tab.keyboard.press("Escape")
    one.tab.keyboard.press("Escape")
    one.see("Choose a session")
    one.tab.keyboard.press("?")
    one.see("find a session", "dialog")
    one.tab.keyboard.press("Escape")
    one.tab.wait_for_function("!document.querySelector('dialog[open]')")
    one.tab.keyboard.press("2")
    one.see("No agent has written to another yet")


def test_on_a_phone_the_list_gives_way_to_a_conversation_and_comes_back(house: Make, visit: Enter) -> None:
    gateway = house(team())
    gateway.do(lambda inside: say(inside, "say hi", ANN))
    one = visit(gateway, width=390, height=844)
    one.tab.locator(".row").click()
    one.see("hi", ".messages")
    assert not one.tab.locator(".rows").is_visible()
    one.tab.get_by_role("button", name="Back to the list").click()
    one.tab.locator(".row").wait_for()
    assert not one.tab.locator(".conversation").is_visible()
