"""Errors on the page: the message, the rule and the fix, in the words of the command line."""

import re

from tests.browser.gateway_thread import GatewayThread, StartGateway
from tests.browser.tab import OpenTab
from tests.integration.helpers import ANN, three_agents

from hobnob.api.routes import page as page_files
from hobnob.cli import connection
from hobnob.errors import GatewayLost
from hobnob.gateway import Gateway
from hobnob.testing import OWNER, say


def test_the_page_gives_the_same_commands_as_the_command_line() -> None:
    source = page_files._files()["problem.js"].body.decode()
    fixes = dict(re.findall(r'"([a-z_.]+)": "(.*)",', source))
    assert fixes == connection._CLI_FIXES
    assert str(GatewayLost()) in page_files._files()["connection.js"].body.decode()


def test_a_refused_message_shows_the_rule_and_the_command_that_explains_it(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway(three_agents(session={"sendPolicy": {"default": "deny"}})))
    tab.open_session(ANN)
    tab.send_message("hello")
    tab.wait_for_text("send_policy.denied", ".notice code")
    tab.wait_for_text("hobnob explain owner send KEY", ".notice .fix code")


def test_a_message_to_an_archived_session_says_how_to_restore_it(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents())

    async def archive(gateway: Gateway) -> None:
        await say(gateway, "say hi", ANN)
        await gateway.sessions.archive(OWNER, ANN)

    server.run(archive)
    tab = open_tab(server)
    tab.open_session(ANN)
    tab.send_message("hello")
    tab.wait_for_text("session.archived", ".notice code")
    tab.wait_for_text("hobnob sessions restore KEY", ".notice .fix code")


def test_a_bad_key_shows_the_grammar_line_by_line(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    tab = open_tab(start_gateway(three_agents()), "#/explain/-/send/agent%3Aann")
    fix = tab.page.locator(".verdict .problem .fix")
    fix.wait_for()
    assert len(fix.inner_text().splitlines()) > 5
    tab.wait_for_text("key.bad", ".verdict .problem code")


def test_without_a_gateway_the_page_says_how_to_start_one(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server: GatewayThread = start_gateway(three_agents())
    tab = open_tab(server)
    server.stop()
    tab.wait_for_text("No gateway answers at 127.0.0.1", ".offline-notice")
    tab.wait_for_text("hobnob serve", ".offline-notice code")
    server.start()
    tab.page.locator(".offline-notice").wait_for(state="hidden")
