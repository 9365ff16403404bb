"""The trust view: the matrix of agents, the rules of a pair, grants, and what was refused lately."""

import pytest
from tests.browser.gateway_thread import StartGateway
from tests.browser.tab import OpenTab

from hobnob.testing import say

SETTINGS = {
    "agents": {
        "list": [
            {"id": "ann", "default": True, "tools": {"allow": ["group:sessions"]}},
            {"id": "bob"},
            {"id": "eve"},
        ]
    },
    "grants": [{"from": "ann", "to": "bob", "verbs": ["history", "send"]}],
}


@pytest.mark.promise("page.trust")
def test_the_matrix_shows_who_may_do_what_to_whom(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    tab = open_tab(start_gateway(SETTINGS), "#/trust")
    table = tab.page.get_by_role("region", name="Matrix of agents")
    granted = table.get_by_role("link", name="ann may read, send to bob")
    granted.wait_for()
    assert "tools withheld" in (granted.get_attribute("aria-label") or "")
    assert table.get_by_role("link", name="ann may do nothing to eve").count() == 1
    assert table.get_by_role("link", name="bob may do nothing to ann").count() == 1
    tab.wait_for_text("grants[0] (from ann to bob: history, send)", ".trust-grants")


@pytest.mark.promise("page.trust")
def test_a_pair_shows_the_rule_of_each_verb_and_the_grant_that_is_missing(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway(SETTINGS), "#/trust")
    tab.page.get_by_role("link", name="ann may read, send to bob").click()
    tab.wait_for_text("The grant grants[0] (from ann to bob: history, send) allows it.", ".trust-pair")
    tab.wait_for_text("The turn it starts has only the tools both have", ".trust-pair")
    tab.wait_for_text('grants: + {"from":"ann","to":"bob","verbs":["list"]}', ".trust-pair")


@pytest.mark.promise("page.trust")
def test_what_was_refused_lately_is_listed(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    gateway = start_gateway(SETTINGS)
    gateway.run(
        lambda each: say(each, 'call sessions_send {"agentId": "eve", "message": "hi"}', "agent:ann:main")
    )
    tab = open_tab(gateway, "#/trust")
    tab.wait_for_text("visibility.tree", ".trust-refusals")
    tab.wait_for_text("send", ".trust-refusals")


@pytest.mark.promise("page.trust")
def test_budgets_show_what_is_spent_of_them(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    gateway = start_gateway({"agents": {"list": [{"id": "ann", "budget": {"turns": 5}}]}})
    gateway.run(lambda each: say(each, "say: hi", "agent:ann:main"))
    tab = open_tab(gateway, "#/trust")
    tab.wait_for_text("1 turn spent of 5 turns", ".trust-budgets")


@pytest.mark.promise("page.trust")
def test_costs_show_what_each_agent_spent(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    gateway = start_gateway({"agents": {"list": [{"id": "ann"}]}})
    gateway.run(lambda each: say(each, "say: hi", "agent:ann:main"))
    tab = open_tab(gateway, "#/trust")
    tab.wait_for_text("tokens in 1 model calls, some at an unknown price", ".trust-costs")
