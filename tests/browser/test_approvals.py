"""A command that waits for approval: where the page says so, and how it is answered."""

import pytest
from tests.browser.gateway_thread import READ_ONLY_TOKEN, GatewayThread, StartGateway
from tests.browser.tab import OpenTab
from tests.browser.test_accessibility import LOW_CONTRAST
from tests.integration.sandboxed import needs_sandbox

from hobnob.gateway import Gateway
from hobnob.requests import HistoryQuery
from hobnob.testing import OWNER, calls, script

pytestmark = needs_sandbox

MAIN = "agent:main:main"
SETTINGS = {"tools": {"exec": {"ask": "always"}}}


def ask_for_a_command(start_gateway: StartGateway) -> tuple[GatewayThread, str]:
    """A gateway with a turn whose command waits for approval, and the id of the turn."""
    server = start_gateway(SETTINGS | script(calls("exec", command="echo '<b>hello</b>'"), "Done."))

    async def start_turn(gateway: Gateway) -> str:
        return (await gateway.sessions.send(OWNER, "main", "say **hello**")).turn_id

    return server, server.run(start_turn)


@pytest.mark.promise("page.approvals")
@pytest.mark.parametrize(("button", "expected"), [("Allow once", '"status":"ok"'), ("Deny", "exec.denied")])
def test_a_waiting_command_is_answered_in_its_conversation(
    start_gateway: StartGateway, open_tab: OpenTab, button: str, expected: str
) -> None:
    server, turn_id = ask_for_a_command(start_gateway)
    tab = open_tab(server)
    tab.wait_for_text("needs approval", ".row")
    tab.page.get_by_role("link", name="1 command needs approval").click()
    card = tab.page.locator(".conversation .approval")
    card.get_by_text("echo '<b>hello</b>'").wait_for()  # as text, not as markup
    assert "main asks to run a command in the sandbox" in card.inner_text()
    assert "A person, signed in as “owner”" in card.inner_text()
    assert "“say hello”" in card.inner_text()
    tab.wait_for_text("needs approval", ".conversation-head")
    tab.wait_for_text("needs approval", ".messages .tool-state")
    card.get_by_role("button", name=button).click()
    card.wait_for(state="detached")
    tab.wait_for_text("Done.", ".messages")
    tab.page.locator(".row", has_text="needs approval").wait_for(state="detached")
    tab.page.locator(".approval-link").wait_for(state="hidden")

    async def result(gateway: Gateway) -> str:
        await gateway.sessions.wait(turn_id, 15)
        page = await gateway.sessions.queries.history(OWNER, "main", HistoryQuery(include_tools=True))
        return str(page["messages"])

    assert expected in server.run(result)


@pytest.mark.promise("page.approvals", "page.readable")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_open_conversation_shows_the_command_when_it_comes(
    start_gateway: StartGateway, open_tab: OpenTab, scheme: str
) -> None:
    server = start_gateway(SETTINGS | script(calls("exec", command="echo hi"), "Done."))
    tab = open_tab(server, scheme=scheme)
    tab.open_session(MAIN)
    tab.send_message("say hi")
    tab.page.locator(".approval pre", has_text="echo hi").wait_for()
    tab.wait_for_text("needs approval", ".messages .tool-state")
    tab.wait_for_text("needs approval", ".row")
    assert tab.page.locator(".streaming, .pending").count() == 0
    assert tab.page.evaluate(LOW_CONTRAST) == []
    assert (
        tab.page.locator(".scroller").evaluate("(box) => box.scrollHeight - box.clientHeight - box.scrollTop")
        <= 1
    )


@pytest.mark.promise("page.approvals", "page.offers_what_is_allowed")
def test_a_read_only_token_sees_the_command_and_cannot_answer(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server, _ = ask_for_a_command(start_gateway)
    tab = open_tab(server, token=READ_ONLY_TOKEN)
    tab.open_session(MAIN)
    tab.wait_for_text("Approving needs operator.approvals.", ".approval")
    assert tab.page.get_by_role("button", name="Allow once").count() == 0
