"""The actions menu of a session: settings, reset, archive, delete, cancel."""

import pytest
from tests.browser.gateway_thread import READ_ONLY_TOKEN, GatewayThread, StartGateway
from tests.browser.tab import OpenTab, Tab
from tests.integration.helpers import ANN, Gate, spawning_agents, three_agents

from hobnob.gateway import Gateway
from hobnob.store import sessions, turns
from hobnob.testing import calls, say

NOTES = "agent:ann:notes"


def choose(tab: Tab, name: str) -> None:
    tab.page.get_by_role("button", name="More actions").click()
    tab.page.get_by_role("menuitem", name=name).click()


def open_session(start_gateway: StartGateway, open_tab: OpenTab) -> tuple[GatewayThread, Tab]:
    server = start_gateway(three_agents())
    server.run(lambda gateway: say(gateway, "say hi", ANN))
    tab = open_tab(server)
    tab.open_session(ANN)
    tab.wait_for_text("hi", ".messages")
    return server, tab


def test_settings_change_label_model_thinking_and_send_policy(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server, tab = open_session(start_gateway, open_tab)
    choose(tab, "Settings…")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("Label").fill("front desk")
    dialog.get_by_label("Model").fill("rehearsal/rehearsal")
    dialog.get_by_label("Thinking").select_option("low")
    dialog.get_by_label("Send policy").select_option("deny")
    tab.page.get_by_role("button", name="Save").click()
    tab.wait_for_text("front desk", ".row")
    tab.wait_for_text("front desk", ".conversation-head")
    tab.wait_for_text("send policy deny", ".conversation-head")
    session = server.run(lambda gateway: gateway.store.read(sessions.get, ANN))
    assert (session.label, session.thinking_level, session.send_policy) == ("front desk", "low", "deny")
    assert session.model_override == "rehearsal/rehearsal"


def test_a_refused_change_keeps_the_dialog_open_with_the_reason(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    _, tab = open_session(start_gateway, open_tab)
    choose(tab, "Settings…")
    tab.page.get_by_label("Model").fill("nobody/nothing")
    tab.page.get_by_role("button", name="Save").click()
    tab.wait_for_text("no provider 'nobody'", "dialog")
    tab.page.keyboard.press("Escape")
    tab.page.locator("dialog").wait_for(state="detached")


@pytest.mark.promise("page.deletes_after_asking")
def test_a_session_is_reset_after_confirmation(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    _, tab = open_session(start_gateway, open_tab)
    choose(tab, "Reset…")
    tab.wait_for_text("stays readable by its id", "dialog")
    tab.page.get_by_role("button", name="Reset").click()
    tab.wait_for_text("No messages yet", ".messages")


def test_a_new_session_gets_the_name_and_agent_that_were_chosen(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    _, tab = open_session(start_gateway, open_tab)
    tab.page.keyboard.press("n")
    dialog = tab.page.get_by_role("dialog", name="New session")
    dialog.get_by_label("Name").fill("street party")
    dialog.get_by_role("combobox", name="Agent").select_option("bob")
    dialog.get_by_role("button", name="Create").click()
    tab.wait_for_text("street party", ".conversation-head h2")
    tab.wait_for_text("street party", ".row")
    tab.wait_for_text("agent:bob:", ".conversation-head .key")
    tab.page.get_by_role("button", name="New session").click()
    dialog.get_by_label("Name").fill("street party")
    dialog.get_by_role("combobox", name="Agent").select_option("bob")
    dialog.get_by_role("button", name="Create").click()
    tab.wait_for_text("label.taken", "dialog .problem code")
    dialog.get_by_label("Name").fill("")
    dialog.get_by_role("button", name="Create").click()
    tab.page.wait_for_selector(".conversation .key:text-is('agent:bob:main')")


@pytest.mark.promise("page.offers_what_is_allowed")
def test_a_token_that_may_not_create_sessions_opens_the_main_session(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway(three_agents()), token=READ_ONLY_TOKEN)
    tab.page.get_by_role("button", name="New session").click()
    dialog = tab.page.get_by_role("dialog", name="New session")
    assert dialog.get_by_label("Name").count() == 0
    dialog.get_by_role("button", name="Open").click()
    tab.page.wait_for_selector(".conversation .key:text-is('agent:ann:main')")


def test_a_session_is_archived_and_restored(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    _, tab = open_session(start_gateway, open_tab)
    choose(tab, "Archive")
    tab.wait_for_text("archived", ".conversation-head")
    tab.wait_for_text("No sessions yet")
    tab.page.get_by_role("button", name="Archived").click()
    tab.wait_for_text("ann", ".row")
    choose(tab, "Restore")
    tab.page.locator(".conversation-head .state", has_text="idle").wait_for()
    tab.wait_for_text("No archived sessions")


@pytest.mark.promise("page.offers_what_is_allowed")
def test_deleting_a_main_session_is_not_offered(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    _, tab = open_session(start_gateway, open_tab)
    tab.page.get_by_role("button", name="More actions").click()
    tab.page.get_by_role("menuitem", name="Reset…").wait_for()
    assert tab.page.get_by_role("menuitem", name="Delete…").count() == 0


@pytest.mark.promise("page.deletes_after_asking")
def test_a_session_is_deleted_after_confirmation(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    server = start_gateway(three_agents())
    server.run(lambda gateway: say(gateway, "say hi", NOTES))
    tab = open_tab(server)
    tab.open_session(NOTES)
    choose(tab, "Delete…")
    tab.page.get_by_role("button", name="Cancel").click()
    assert server.run(lambda gateway: gateway.store.read(sessions.find, NOTES)) is not None
    choose(tab, "Delete…")
    tab.wait_for_text("cannot be undone", "dialog")
    tab.page.get_by_role("button", name="Delete", exact=True).click()
    tab.wait_for_text("Choose a session")
    tab.wait_for_text("No sessions yet")
    assert server.run(lambda gateway: gateway.store.read(sessions.find, NOTES)) is None


def test_a_sub_agent_is_cancelled(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    gate = Gate()
    server = start_gateway(spawning_agents({"*": [calls("hold"), "done"]}), tools=[gate.tool])

    async def spawn(gateway: Gateway) -> None:
        await say(gateway, 'call sessions_spawn {"task": "wait", "label": "waiter", "agentId": "bob"}', ANN)
        await gate.reached.wait()

    server.run(spawn)
    tab = open_tab(server)
    tab.page.locator(".row", has_text="waiter").click()
    tab.wait_for_text("running", ".conversation-head")
    choose(tab, "Cancel this sub-agent")
    tab.wait_for_text("stopped", ".conversation-head")
    assert server.run(lambda gateway: gateway.store.read(turns.open_turns)) == []
