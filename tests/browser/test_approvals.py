"""Approving and denying a command on the page."""

import pytest
from tests.browser.gateway_thread import StartGateway
from tests.browser.tab import OpenTab
from tests.integration.sandboxed import needs_sandbox

from hobnob.gateway import Gateway
from hobnob.requests import HistoryQuery
from hobnob.testing import OWNER, calls, script

pytestmark = needs_sandbox


@pytest.mark.parametrize(("button", "expected"), [("Allow once", '"status":"ok"'), ("Deny", "exec.denied")])
def test_a_pending_command_is_approved_or_denied_on_the_page(
    start_gateway: StartGateway, open_tab: OpenTab, button: str, expected: str
) -> None:
    settings = {"tools": {"exec": {"ask": "always"}}}
    server = start_gateway(settings | script(calls("exec", command="echo '<b>hello</b>'"), "Done."))
    tab = open_tab(server)

    async def start_turn(gateway: Gateway) -> str:
        return (await gateway.sessions.send(OWNER, "main", "say hello")).turn_id

    turn_id = server.run(start_turn)
    card = tab.page.locator(".approval")
    card.get_by_text("echo '<b>hello</b>'").wait_for()  # as text, not as markup
    assert "in the sandbox" in card.inner_text()
    card.get_by_role("button", name=button).click()
    card.wait_for(state="detached")

    async def result(gateway: Gateway) -> str:
        await gateway.sessions.wait(turn_id, 15)
        page = await gateway.sessions.queries.history(OWNER, "main", HistoryQuery(include_tools=True))
        return str(page["messages"])

    assert expected in server.run(result)
