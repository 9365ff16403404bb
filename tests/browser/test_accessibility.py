"""Contrast, accessible names, phone layout, time zone and theme of the page."""

import copy
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from tests.browser.gateway_thread import GatewayThread
from tests.browser.tab import OpenTab, Tab

from hobnob.cli.demo_script import SETTINGS
from hobnob.gateway import Gateway
from hobnob.testing import OWNER, exchange_ended, say

ADA = "agent:ada:main"
VIEWS = {
    "sessions": ("#/", ".row"),
    "conversation": ("#/s/agent%3Aada%3Amain", ".refusal"),
    "exchanges": ("#/exchanges", ".exchange-row.announce"),
    "both": (None, ".split-panes .highlighted"),
    "explain": ("#/explain/agent%3Aada%3Amain/send/agent%3Acy%3Amain", ".verdict .card"),
    "agents": ("#/agents/bo", ".tool-list li"),
    "trust": ("#/trust/ada/cy", ".trust-pair .tool-list li"),
    "settings": ("#/settings", ".settings-table"),
    "log": ("#/log", ".log-scroller"),
}

# Texts with a contrast below 4.5 to their background, with all layers and opacities combined.
LOW_CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (color) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const backgroundOf = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim().slice(0, 40);
    if (!text || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (element.closest('option, noscript, .visually-hidden, :disabled, svg')) continue;
    const style = getComputedStyle(element);
    if (parseFloat(style.fontSize) === 0) continue;
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const background = backgroundOf(element);
    const color = rgba(style.color);
    const textColor = over([...color.slice(0, 3), color[3] * opacity], background);
    const [high, low] = [luminance(textColor), luminance(background)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${element.localName}.${element.className}: ${text}`);
  }
  return found;
}"""

# Interactive elements and landmarks without an accessible name.
UNNAMED = """() => [...document.querySelectorAll(`button, a[href], input, select, textarea, summary, dialog,
    nav, aside, section, [role=button], [role=link], [role=option], [role=menuitem]`)]
  .filter((element) => element.checkVisibility())
  .filter((element) => {
    const named = element.getAttribute('aria-label') || element.getAttribute('aria-labelledby');
    const labels = element.labels?.length && [...element.labels].some((label) => label.textContent.trim());
    const text = !element.matches('input, select, textarea') && element.textContent.trim();
    return !named && !labels && !text;
  })
  .map((element) => element.outerHTML.slice(0, 120))"""

# Elements that reach beyond the right edge.
TOO_WIDE = """() => [...document.querySelectorAll('body *')]
  .filter((element) => element.checkVisibility())
  .filter((element) => !element.closest('.timeline, .filters, pre, table, svg, .visually-hidden'))
  .filter((element) => element.getBoundingClientRect().right > innerWidth + 1 && element.scrollWidth > 0)
  .map((element) => `${element.localName}.${element.className}`)"""


async def _play_story(gateway: Gateway) -> None:
    await say(gateway, "Put 200 aside for the party.", "agent:cy:main")
    await say(gateway, "Plan the street party on Saturday.", ADA)
    page = await gateway.sessions.queries.exchanges(OWNER)
    await exchange_ended(gateway, page["exchanges"][0]["id"])
    await say(gateway, "call sessions_history {}", ADA)
    await say(gateway, "go", ADA)


@pytest.fixture(scope="module")
def story_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A gateway with messages, an exchange and a refusal, read-only for the tests."""
    settings = copy.deepcopy(SETTINGS)
    script = settings["models"]["rehearsal"]["scripts"][ADA]
    settings["models"]["rehearsal"]["scripts"][ADA] = [*script[:7], *script[-2:]]
    with GatewayThread(tmp_path_factory.mktemp("story") / "home", settings) as server:
        server.run(_play_story)
        yield server


def open_view(tab: Tab, name: str) -> None:
    fragment, ready_selector = VIEWS[name]
    if fragment is None:
        open_view(tab, "exchanges")
        tab.page.locator(".exchange-row.answer").first.click()
    else:
        tab.navigate(fragment)
    tab.page.locator(ready_selector).first.wait_for()


@pytest.mark.promise("page.readable")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrast_and_accessible_names(
    story_server: GatewayThread, open_tab: OpenTab, scheme: str
) -> None:
    tab = open_tab(story_server, scheme=scheme)
    for name in VIEWS:
        open_view(tab, name)
        tab.wait_for_paint()
        assert tab.page.evaluate(LOW_CONTRAST) == [], name
        assert tab.page.evaluate(UNNAMED) == [], name
        assert tab.page.locator("main").count() == 1
    tab.navigate("#/s/agent%3Aada%3Amain")
    tab.page.get_by_role("button", name="More actions").click()
    tab.page.get_by_role("menuitem", name="Settings…").click()
    tab.page.locator("dialog select").first.wait_for()
    assert tab.page.evaluate(UNNAMED) == []
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("button", name="Sign out").click()
    tab.wait_for_text("See who talks to whom.")
    assert tab.page.evaluate(LOW_CONTRAST) == []
    assert tab.page.evaluate(UNNAMED) == []


@pytest.mark.promise("page.phone")
@pytest.mark.parametrize("width", [320, 390])
def test_nothing_is_cut_off_on_a_phone(story_server: GatewayThread, open_tab: OpenTab, width: int) -> None:
    tab = open_tab(story_server, width=width, height=740)
    for name in VIEWS:
        open_view(tab, name)
        assert tab.page.evaluate(TOO_WIDE) == [], name
        assert tab.page.evaluate("document.scrollingElement.scrollWidth") <= width, name


def test_times_are_in_the_browsers_time_zone(story_server: GatewayThread, open_tab: OpenTab) -> None:
    tab = open_tab(story_server)
    open_view(tab, "conversation")
    time = tab.page.locator(".message time").first
    at = datetime.fromisoformat(time.get_attribute("datetime").replace("Z", "+00:00"))
    assert time.inner_text() == f"{at.astimezone(timezone(timedelta(hours=9))):%H:%M}"
    assert "GMT+9" in time.get_attribute("title")


def test_the_chosen_theme_survives_a_reload(story_server: GatewayThread, open_tab: OpenTab) -> None:
    tab = open_tab(story_server)
    background = "getComputedStyle(document.body).backgroundColor"
    before = tab.page.evaluate(background)
    tab.page.get_by_role("button", name="Change theme").click()
    dark = tab.page.evaluate(background)
    assert dark != before
    tab.page.reload()
    tab.page.locator(".row").first.wait_for()
    assert tab.page.evaluate(background) == dark
