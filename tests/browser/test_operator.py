"""What an operator does to sessions on the page, and what is not offered."""

from collections.abc import Callable

import pytest
from tests.browser.house import House, Visit
from tests.integration.team import ANN, Gate, team
from tests.integration.team import house as family

from hobnob.gateway import Gateway
from hobnob.store import sessions, turns
from hobnob.testing import calls, say

Make = Callable[..., House]
Enter = Callable[..., Visit]


def menu(one: Visit, name: str) -> None:
    one.tab.get_by_role("button", name="More actions").click()
    one.tab.get_by_role("menuitem", name=name).click()


def opened(house: Make, visit: Enter) -> tuple[House, Visit]:
    gateway = house(team())
    gateway.do(lambda inside: say(inside, "say hi", ANN))
    one = visit(gateway)
    one.open(ANN)
    one.see("hi", ".messages")
    return gateway, one


def test_label_thinking_model_and_send_policy_are_changed(house: Make, visit: Enter) -> None:
    gateway, one = opened(house, visit)
    menu(one, "Settings…")
    dialog = one.tab.get_by_role("dialog")
    dialog.get_by_label("Label").fill("front desk")
    dialog.get_by_label("Model").fill("rehearsal/rehearsal")
    dialog.get_by_label("Thinking").select_option("low")
    dialog.get_by_label("Messages into this session").select_option("deny")
    one.tab.get_by_role("button", name="Save").click()
    one.see("front desk", ".row")
    one.see("front desk", ".conversation-head")
    one.see("send deny", ".conversation-head")
    kept = gateway.do(lambda inside: inside.store.read(sessions.get, ANN))
    assert (kept.label, kept.thinking_level, kept.send_policy) == ("front desk", "low", "deny")
    assert kept.model_override == "rehearsal/rehearsal"


def test_a_change_that_is_refused_says_why_and_the_dialog_stays(house: Make, visit: Enter) -> None:
    _, one = opened(house, visit)
    menu(one, "Settings…")
    one.tab.get_by_label("Model").fill("nobody/nothing")
    one.tab.get_by_role("button", name="Save").click()
    one.see("no provider 'nobody'", "dialog")
    one.tab.keyboard.press("Escape")
    one.tab.locator("dialog").wait_for(state="detached")


@pytest.mark.promise("page.deletes_after_asking")
def test_a_session_is_reset_after_asking(house: Make, visit: Enter) -> None:
    _, one = opened(house, visit)
    menu(one, "Reset…")
    one.see("stays readable by its id", "dialog")
    one.tab.get_by_role("button", name="Reset").click()
    one.see("Nothing said yet", ".messages")


def test_a_session_is_archived_and_restored(house: Make, visit: Enter) -> None:
    _, one = opened(house, visit)
    menu(one, "Archive")
    one.see("archived", ".conversation-head")
    one.see("No sessions yet")
    one.tab.get_by_role("button", name="Archived").click()
    one.see("ann", ".row")
    menu(one, "Restore")
    one.tab.locator(".conversation-head .state", has_text="idle").wait_for()
    one.see("Nothing is archived")


@pytest.mark.promise("page.deletes_after_asking")
def test_a_session_is_deleted_only_when_that_is_confirmed(house: Make, visit: Enter) -> None:
    gateway, one = opened(house, visit)
    menu(one, "Delete…")
    one.tab.get_by_role("button", name="Cancel").click()
    assert gateway.do(lambda inside: inside.store.read(sessions.find, ANN)) is not None
    menu(one, "Delete…")
    one.see("cannot be undone", "dialog")
    one.tab.get_by_role("button", name="Delete", exact=True).click()
    one.see("Choose a session")
    one.see("No sessions yet")
    assert gateway.do(lambda inside: inside.store.read(sessions.find, ANN)) is None


def test_a_sub_agent_is_cancelled(house: Make, visit: Enter) -> None:
    gate = Gate()
    gateway = house(family({"*": [calls("hold"), "done"]}), tools=[gate.tool])

    async def spawn(inside: Gateway) -> None:
        await say(inside, 'call sessions_spawn {"task": "wait", "label": "waiter", "agentId": "bob"}', ANN)
        await gate.reached.wait()

    gateway.do(spawn)
    one = visit(gateway)
    one.tab.locator(".row", has_text="waiter").click()
    one.see("running", ".conversation-head")
    menu(one, "Cancel this sub-agent")
    one.see("stopped", ".conversation-head")
    assert gateway.do(lambda inside: inside.store.read(turns.open_turns)) == []
