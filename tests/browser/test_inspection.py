"""The views for agents with their tools, the settings with their origin, and the log."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser.gateway_thread import StartGateway
from tests.browser.tab import OpenTab
from tests.integration.helpers import ANN, three_agents

from hobnob import logs
from hobnob.gateway import Gateway
from hobnob.testing import OWNER, say

SECRET = "sk-this-is-a-secret-key-1234567890"


def inspected_settings() -> dict[str, Any]:
    settings = three_agents({"agent:eve:main": [{"error": "the model is gone"}]})
    settings["agents"]["list"][1]["tools"] = {"deny": ["sessions_send"]}
    settings["models"]["providers"] = {
        "p": {"baseUrl": "http://127.0.0.1:9/v1", "apiKey": SECRET, "models": [{"id": "m"}]}
    }
    return settings


@pytest.mark.promise("page.inspection")
def test_an_agent_is_shown_with_its_tools_and_the_rule_for_each(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway(inspected_settings()), "#/agents")
    tab.wait_for_text("ann", ".agent-item[aria-current]")
    tab.page.get_by_role("link", name="bob").click()
    refused = tab.page.locator(".tool-list .no", has_text="sessions_send")
    refused.wait_for()
    assert refused.get_by_role("img", name="refused").count() == 1
    assert "tools.denied" in refused.inner_text()
    assert "agents.list[bob].tools.deny" in refused.locator(".fix-line").inner_text()
    assert tab.page.locator(".tool-list .yes", has_text="sessions_history").count() == 1
    tab.wait_for_text("agent:bob:main need not run in a sandbox", ".agent-detail")


@pytest.mark.promise("page.inspection")
def test_the_menu_of_a_session_leads_to_its_tools(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    server = start_gateway(three_agents())
    server.run(lambda gateway: say(gateway, "say hi", "agent:bob:plans"))
    tab = open_tab(server)
    tab.open_session("agent:bob:plans")
    tab.page.get_by_role("button", name="More actions").click()
    tab.page.get_by_role("menuitem", name="Tools").click()
    tab.wait_for_text("agent:bob:plans", ".agent-detail .key")


@pytest.mark.promise("page.inspection")
def test_settings_are_shown_with_their_origin_and_without_secrets(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway(inspected_settings()), "#/settings")
    rows = tab.page.locator(".settings-table tbody tr")
    changed = rows.filter(has_text="tools.sessions.visibility")
    changed.wait_for()
    assert changed.locator("td").all_inner_texts() == ["tools.sessions.visibility", "all", "hobnob.json5"]
    assert "***" in rows.filter(has_text="apiKey").inner_text()
    assert SECRET not in tab.page.content()
    assert rows.filter(has_text="session.agentToAgent.maxHops").count() == 0
    tab.page.get_by_label("Show defaults").check()
    assert rows.filter(has_text="session.agentToAgent.maxHops").locator("td").all_inner_texts()[1:] == [
        "8",
        "default",
    ]
    tab.page.get_by_role("searchbox", name="Search settings").fill("maxhops")
    tab.wait_until(lambda: rows.count() == 1)


@pytest.fixture
def kept_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Log lines are kept for clients, as `hobnob serve` does it."""
    monkeypatch.setattr(logs, "recent", logs.Recent())
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    logs.configure(as_json=True)
    root.handlers[:] = [*before[1], logs.recent]
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


@pytest.mark.promise("page.inspection")
def test_the_log_is_shown_as_it_grows(start_gateway: StartGateway, open_tab: OpenTab, kept_log: None) -> None:
    server = start_gateway(inspected_settings())

    async def watch(gateway: Gateway) -> None:
        gateway.store.watch(logs.log_changes)

    server.run(watch)
    tab = open_tab(server, "#/log")
    server.run(lambda gateway: say(gateway, "say hi", ANN))
    lines = tab.page.locator(".log-lines li:visible")
    lines.filter(has_text="turn ended outcome=ok").last.wait_for()
    server.run(lambda gateway: gateway.sessions.send(OWNER, "agent:eve:main", "go"))
    lines.filter(has_text="outcome=failed").last.wait_for()
    tab.wait_for_text("the model is gone", ".log-field.bad")
    tab.page.get_by_label("Lowest level").select_option("warning")
    assert lines.filter(has_text="outcome=ok").count() == 0
    tab.page.get_by_role("searchbox", name="Search the log").fill("eve")
    lines.last.get_by_role("link", name="eve").click()
    tab.page.wait_for_selector(".conversation .key:text-is('agent:eve:main')")


@pytest.mark.promise("page.inspection")
@pytest.mark.parametrize("view", ["settings", "log"])
def test_a_token_for_some_agents_is_told_why_it_does_not_see_the_view(
    start_gateway: StartGateway, open_tab: OpenTab, view: str
) -> None:
    narrow = {"name": "narrow", "token": "narrow-token", "scopes": ["operator.read"], "agents": ["ann"]}
    server = start_gateway(three_agents(gateway={"auth": {"tokens": [narrow]}}))
    tab = open_tab(server, f"#/{view}", token=narrow["token"])
    tab.wait_for_text("a credential for all agents", ".inspect-view .problem")


@pytest.mark.promise("page.phone")
def test_on_a_phone_the_other_views_are_in_a_menu(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    tab = open_tab(start_gateway(three_agents()), width=390, height=844)
    settings = tab.page.get_by_role("link", name="Settings")
    assert settings.count() == 0
    tab.page.get_by_role("button", name="More", exact=True).click()
    settings.click()
    tab.page.locator(".settings-table").first.wait_for()
    assert settings.count() == 0  # the menu is closed
    tab.page.get_by_role("button", name="Settings", exact=True).click()
    tab.page.get_by_role("button", name="Sign out").click()
    tab.wait_for_text("See who talks to whom.")
