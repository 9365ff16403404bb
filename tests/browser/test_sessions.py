"""The session list: live updates, filters, paging, tree view, keyboard, phone layout."""

import pytest
from tests import postgres, stores
from tests.browser.bulk_data import create_sessions
from tests.browser.gateway_thread import StartGateway
from tests.browser.tab import OpenTab, Tab
from tests.integration.helpers import ANN, BOB, Gate, spawn_and_wait, spawning_agents, three_agents
from tests.integration.helpers import create_sessions as create_named_sessions

from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.store import Tx, sessions
from hobnob.testing import OWNER, calls, say
from hobnob.types import Session

MANY = 5_000


def visible_names(tab: Tab) -> list[str]:
    return tab.page.locator(".row b").all_inner_texts()


@pytest.mark.promise("page.sessions_live")
def test_sessions_appear_and_move_to_the_top_live(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    server = start_gateway(three_agents())
    tab = open_tab(server)
    tab.wait_for_text("No sessions yet")
    server.run(lambda gateway: say(gateway, "say from ann", ANN))
    tab.wait_for_text("from ann", ".row")
    server.run(lambda gateway: say(gateway, "say from bob", BOB))
    tab.wait_for_text("from bob", ".row")
    rows = tab.page.locator(".row")
    rows.nth(1).wait_for()
    tops = {row.locator("b").inner_text(): row.bounding_box()["y"] for row in rows.all()}
    assert tops["bob"] < tops["ann"]
    assert "main · webchat" in rows.first.inner_text()
    tab.wait_until(lambda: "tok" in rows.first.inner_text())


@pytest.mark.promise("page.sessions_live")
def test_a_row_shows_waiting_and_failed(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    gate = Gate()
    scripts = {ANN: [calls("sessions_send", sessionKey=BOB, message="?"), "ok"], BOB: [calls("hold"), "yes"]}
    server = start_gateway(
        three_agents(scripts | {"agent:eve:main": [{"error": "the model is gone"}]}), tools=[gate.tool]
    )
    tab = open_tab(server)
    server.run(lambda gateway: gateway.sessions.send(OWNER, ANN, "go"))
    tab.wait_for_text("waiting for bob", ".row")
    tab.wait_for_text("running", ".row")
    server.run(lambda gateway: gateway.sessions.send(OWNER, "agent:eve:main", "go"))
    tab.wait_for_text("failed", ".row")

    async def release(gateway: Gateway) -> None:
        gate.open.set()

    server.run(release)
    tab.page.locator(".row", has_text="waiting for bob").wait_for(state="detached")


def test_the_list_is_filtered_by_kind_agent_and_search(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents())
    server.run(
        lambda gateway: create_named_sessions(
            gateway, ANN, BOB, "agent:bob:cron:7", "agent:ann:irc:group:ops"
        )
    )
    server.run(lambda gateway: gateway.sessions.patch(OWNER, "agent:bob:cron:7", label="nightly"))
    tab = open_tab(server)
    tab.wait_for_text("4 sessions")
    tab.page.get_by_label("Kind").select_option("cron")
    tab.wait_for_text("1 session", ".list-foot")
    tab.wait_until(lambda: visible_names(tab) == ["nightly"])
    tab.page.get_by_label("Kind").select_option("")
    tab.page.get_by_label("Agent", exact=True).select_option("ann")
    tab.wait_for_text("2 sessions", ".list-foot")
    tab.wait_until(lambda: sorted(visible_names(tab)) == ["ann", "ops"])
    tab.page.get_by_label("Agent", exact=True).select_option("")
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("night")
    tab.wait_for_text("1 session", ".list-foot")
    tab.wait_until(lambda: visible_names(tab) == ["nightly"])
    tab.page.keyboard.type("xxx")
    tab.wait_for_text("No matching sessions")
    tab.page.get_by_role("button", name="Show all sessions").click()
    tab.wait_for_text("4 sessions")


@pytest.mark.promise("page.sessions_paged")
def test_a_long_list_is_paged_and_virtualised(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    server = start_gateway(three_agents())
    server.run(lambda gateway: create_sessions(gateway, MANY))
    tab = open_tab(server)
    tab.wait_for_text("100 sessions loaded")
    assert tab.page.locator(".row").count() < 40
    tab.scroll_sessions_to_end(MANY)
    tab.wait_for_text(f"{MANY - 1:05}", ".row")
    assert tab.page.locator(".row").count() < 40
    # A session that moves to the top does not move the rows on the screen.
    row_on_screen = tab.page.locator(f"[data-key='agent:bob:hook:{MANY - 4:05}']")
    before = row_on_screen.bounding_box()
    server.run(lambda gateway: say(gateway, "say hi", ANN))
    tab.wait_for_text(f"{MANY + 1:,} sessions")
    tab.wait_for_paint()
    assert row_on_screen.bounding_box() == before


def test_the_tree_view_shows_children_below_their_parent(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(spawning_agents({"*": ["done", "all done"]}))
    server.run(lambda gateway: spawn_and_wait(gateway, task="count", label="counting", agentId="bob"))
    tab = open_tab(server)
    tab.wait_for_text("2 sessions")
    tab.page.get_by_role("button", name="Tree").click()
    child = tab.page.get_by_role("treeitem", name="counting")
    assert child.get_attribute("aria-level") == "2"
    assert tab.page.get_by_role("treeitem").first.get_attribute("aria-level") == "1"
    tab.page.locator(".fold-button").click()
    child.wait_for(state="detached")
    tab.page.locator(".fold-button").click()
    child.click()
    tab.wait_for_text("spawned by", ".conversation-head")


@pytest.mark.parametrize("level", [1, 2])
def test_the_fold_button_of_the_tree_is_not_clipped(
    start_gateway: StartGateway, open_tab: OpenTab, level: int
) -> None:
    server = start_gateway(three_agents())

    async def create_tree(gateway: Gateway) -> None:
        def create(tx: Tx) -> None:
            parent: Session | None = None
            for n in range(3):
                key = parse(f"agent:ann:{f'subagent:{n}' if n else 'main'}")
                parent = sessions.create(tx, Session.of(key, spawned_by=parent))

        await gateway.store.write(create)

    server.run(create_tree)
    tab = open_tab(server)
    tab.wait_for_text("3 sessions")
    tab.page.get_by_role("button", name="Tree").click()
    row = tab.page.locator(f".row[aria-level='{level}']")
    chevron, avatar, box = (
        found.bounding_box() for found in (row.locator(".fold-button svg"), row.locator(".avatar"), row)
    )
    assert chevron["x"] >= box["x"] + 2
    assert chevron["x"] + chevron["width"] <= avatar["x"]


def test_sessions_without_a_label_are_named_by_hook_peer_group_or_job(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    names = {
        "agent:ann:hook:github": "github",
        "agent:ann:hook:3f2a1c00-0000-4000-8000-000000000000": "hook 3f2a1c",
        "agent:ann:telegram:direct:mrs-jones": "mrs-jones",
        "agent:ann:telegram:work:direct:mr-lee": "mr-lee",
        "agent:ann:irc:group:ops:thread:42": "ops · 42",
        "agent:ann:cron:nightly:run:7": "nightly",
        "agent:ann:node-balcony": "balcony",
        "agent:ann:plans": "plans",
    }
    server = start_gateway(three_agents())
    server.run(lambda gateway: create_named_sessions(gateway, *names))
    tab = open_tab(server)
    tab.wait_for_text("8 sessions")
    shown = {
        row.get_attribute("data-key"): row.locator("b").inner_text() for row in tab.page.locator(".row").all()
    }
    assert shown == names
    assert "ann · direct" in tab.page.locator(".row", has_text="mrs-jones").inner_text()


def test_a_session_of_a_hook_is_shown_by_the_name_the_hook_gave(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents(hooks={"enabled": True, "token": "hook-secret-hook-secret"}))
    tab = open_tab(server)
    tab.page.request.post(
        f"{server.url}hooks/agent",
        headers={"Authorization": "Bearer hook-secret-hook-secret"},
        data={"message": "say noted", "name": "GitHub pushes"},
    )
    tab.wait_for_text("noted", ".row")
    assert visible_names(tab) == ["GitHub pushes"]
    tab.page.locator(".row").click()
    tab.wait_for_text("GitHub pushes", ".conversation-head h2")


def test_a_preview_shows_words_without_markdown_signs(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    long = f"**{'word ' * 100}** end"
    answers = ["## Plan\n\n| a | b |\n|---|---|\n| **c** | `d` |\n\n- [x](https://e.example) *f*", long]
    server = start_gateway(three_agents({ANN: answers}))
    server.run(lambda gateway: say(gateway, "go", ANN))
    tab = open_tab(server)
    preview = tab.page.locator(".row-last")
    preview.wait_for()
    assert preview.inner_text() == "Plan a b c d x f"
    server.run(lambda gateway: say(gateway, "go", ANN))
    tab.wait_for_text("word word", ".row-last")
    assert preview.inner_text().startswith("word word")


def test_the_preview_of_a_silent_reply_says_so_in_words(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents({ANN: ["REPLY_SKIP"]}))
    server.run(lambda gateway: say(gateway, "go", ANN))
    open_tab(server).wait_for_text("had nothing to add", ".row-last")


def test_keyboard_navigation(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    server = start_gateway(three_agents())
    server.run(
        lambda gateway: create_named_sessions(
            gateway, "agent:ann:hook:a", "agent:ann:hook:b", "agent:ann:hook:c"
        )
    )
    tab = open_tab(server)
    tab.wait_for_text("3 sessions")
    for key in ("j", "j", "j", "k", "Enter"):
        tab.page.keyboard.press(key)
    tab.page.wait_for_selector(".conversation .key:text-is('agent:ann:hook:b')")
    assert tab.page.locator("[aria-selected=true] b").inner_text() == "b"
    active = tab.page.locator(".rows").get_attribute("aria-activedescendant")
    assert tab.page.locator(f"#{active} b").inner_text() == "b"
    tab.page.keyboard.press("c")
    assert tab.page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("Escape")
    tab.wait_for_text("Choose a session")
    tab.page.keyboard.press("?")
    tab.wait_for_text("search sessions", "dialog")
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_function("!document.querySelector('dialog[open]')")
    tab.page.keyboard.press("2")
    tab.wait_for_text("No exchanges yet")


def test_a_phone_shows_either_the_list_or_the_conversation(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    server = start_gateway(three_agents())
    server.run(lambda gateway: say(gateway, "say hi", ANN))
    tab = open_tab(server, width=390, height=844)
    tab.page.locator(".row").click()
    tab.wait_for_text("hi", ".messages")
    assert not tab.page.locator(".rows").is_visible()
    tab.page.get_by_role("button", name="Back to the list").click()
    tab.page.locator(".row").wait_for()
    assert not tab.page.locator(".conversation").is_visible()


@pytest.mark.skipif(stores.ON_POSTGRES, reason="opens a database by itself")
@pytest.mark.promise("store.gone_home_said")
def test_a_session_whose_home_is_gone_shows_what_it_waits_for(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    store = {"url": postgres.new_database(), "files": "local"}
    server = start_gateway(three_agents(store=store))

    async def leave_behind(gateway: Gateway) -> None:
        await say(gateway, "say from ann", ANN)
        await gateway.sessions.move(OWNER, ANN, "berlin", force=True)
        await gateway.sessions.send(OWNER, ANN, "say later")

    server.run(leave_behind)
    tab = open_tab(server)
    tab.wait_for_text("waiting for gateway berlin", ".row")
    tab.page.locator(".row").first.click()
    tab.wait_for_text("home berlin (gone)", ".facts-line")
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.page.locator(".head-actions .stop").wait_for()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
    right = tab.page.locator(".head-actions").bounding_box()
    assert right is not None and right["x"] + right["width"] <= 390
