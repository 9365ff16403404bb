"""The gateways view: those that share a database, and draining one. With SQLite there is no such view."""

from collections.abc import Iterator

import pytest
from tests import postgres, stores
from tests.browser.gateway_thread import READ_ONLY_TOKEN, StartGateway
from tests.browser.tab import OpenTab
from tests.integration.helpers import ANN, three_agents
from tests.waiting import until

from hobnob.gateway import Gateway
from hobnob.testing import say

LINK = "nav a[data-view=gateways]"


@pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")
@pytest.mark.promise("page.gateways")
def test_a_gateway_is_drained_and_used_again_on_the_page(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    url = postgres.new_database()
    first = start_gateway({"store": {"url": url}, "gateway": {"name": "first"}})
    second = start_gateway({"store": {"url": url}, "gateway": {"name": "second"}})

    async def until_draining(gateway: Gateway) -> None:
        await until(lambda: gateway.cluster.draining)

    async def until_not_draining(gateway: Gateway) -> None:
        await until(lambda: not gateway.cluster.draining)

    tab = open_tab(first)
    tab.page.locator(LINK).click()
    rows = tab.page.locator("[aria-label=Gateways] tbody tr")
    rows.nth(1).wait_for()
    row = tab.page.locator("tr[data-gateway=second]")
    assert "alive" in row.inner_text()
    row.get_by_role("button", name="Drain").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    row.get_by_role("button", name="Use again").wait_for()
    assert "draining" in row.inner_text()
    second.run(until_draining)
    row.get_by_role("button", name="Use again").click()
    row.get_by_role("button", name="Drain").wait_for()
    assert "alive" in row.inner_text()
    second.run(until_not_draining)


@pytest.fixture
def database() -> Iterator[postgres.Server]:
    """A server of its own, which a test may stop."""
    postgres.require_server()
    server = postgres.start_server()
    server.prepare_template()
    yield server
    server.stop()


@pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")
def test_a_conversation_that_cannot_be_read_says_so_and_is_read_when_the_database_is_back(
    database: postgres.Server, start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents(store={"url": postgres.new_database(on=database)}))

    async def talk(gateway: Gateway) -> None:
        await say(gateway, "say from ann", ANN)

    server.run(talk)
    tab = open_tab(server)
    tab.page.locator(".row").first.wait_for()
    database.halt()
    tab.page.locator(".row").first.click()
    tab.wait_for_text("Not loaded", ".empty")
    assert "no messages yet" not in tab.page.locator(".conversation-head").inner_text()
    assert "cannot be reached" in tab.page.locator(".notice.bad").inner_text()
    database.start()
    tab.page.get_by_role("button", name="Try again").click()
    tab.wait_for_text("from ann", ".messages")


@pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")
def test_who_may_only_read_sees_the_gateways_without_buttons(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway({"store": {"url": postgres.new_database()}, "gateway": {"name": "only"}})
    tab = open_tab(server, "#/gateways", token=READ_ONLY_TOKEN)
    row = tab.page.locator("tr[data-gateway=only]")
    row.wait_for()
    assert row.get_by_role("button").count() == 0


@pytest.mark.skipif(stores.ON_POSTGRES, reason="SQLite has one gateway")
def test_with_sqlite_the_page_has_no_view_of_gateways(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    tab = open_tab(start_gateway({}), "#/log")
    tab.page.locator(".log-scroller").wait_for()
    assert not tab.page.locator(LINK).is_visible()
