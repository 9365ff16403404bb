"""That the page can be read: contrast, names for those who listen, room on a phone, the viewer's time."""

import copy
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from tests.browser.house import House, Visit

from hobnob.cli.demo_script import SETTINGS
from hobnob.gateway import Gateway
from hobnob.testing import OWNER, exchange_ended, say

Make = Callable[..., House]
Enter = Callable[..., Visit]
ADA = "agent:ada:main"
VIEWS = {
    "sessions": ("#/", ".row"),
    "conversation": ("#/s/agent%3Aada%3Amain", ".refusal"),
    "exchanges": ("#/exchanges", ".beat.announce"),
    "both": (None, ".two .pointed"),
    "explain": ("#/explain/agent%3Aada%3Amain/send/agent%3Acy%3Amain", ".verdict .card"),
}

# Text that is hard to read: its contrast to what is behind it, all layers and opacities put together.
FAINT = """() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = (color) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
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
    if (element.closest('option, noscript, .unseen, :disabled, svg')) continue;
    const style = getComputedStyle(element);
    if (parseFloat(style.fontSize) === 0) continue;
    let opacity = 1;
    for (let at = element; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const ground = behind(element);
    const ink = rgba(style.color);
    const shown = over([...ink.slice(0, 3), ink[3] * opacity], ground);
    const [high, low] = [light(shown), light(ground)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${element.localName}.${element.className}: ${text}`);
  }
  return found;
}"""

# Things one can use that have no name for those who listen.
NAMELESS = """() => [...document.querySelectorAll(`button, a[href], input, select, textarea, summary, dialog,
    nav, aside, section, [role=button], [role=link], [role=option], [role=menuitem]`)]
  .filter((element) => element.checkVisibility())
  .filter((element) => {
    const named = element.getAttribute('aria-label') || element.getAttribute('aria-labelledby');
    const labels = element.labels?.length && [...element.labels].some((label) => label.textContent.trim());
    const told = !element.matches('input, select, textarea') && element.textContent.trim();
    return !named && !labels && !told;
  })
  .map((element) => element.outerHTML.slice(0, 120))"""

TOO_WIDE = """() => [...document.querySelectorAll('body *')]
  .filter((element) => element.checkVisibility())
  .filter((element) => !element.closest('.timeline, .filters, pre, svg, .unseen'))
  .filter((element) => element.getBoundingClientRect().right > innerWidth + 1 && element.scrollWidth > 0)
  .map((element) => `${element.localName}.${element.className}`)"""


async def _party(inside: Gateway) -> None:
    await say(inside, "Put 200 aside for the party.", "agent:cy:main")
    await say(inside, "Plan the street party on Saturday.", ADA)
    page = await inside.sessions.queries.exchanges(OWNER)
    await exchange_ended(inside, page["exchanges"][0]["id"])
    await say(inside, "call sessions_history {}", ADA)
    await say(inside, "go", ADA)


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A gateway at which things have happened. It is only looked at."""
    settings = copy.deepcopy(SETTINGS)
    script = settings["models"]["rehearsal"]["scripts"][ADA]
    settings["models"]["rehearsal"]["scripts"][ADA] = [*script[:7], *script[-2:]]
    with House(tmp_path_factory.mktemp("party") / "home", settings) as house:
        house.do(_party)
        yield house


def show(one: Visit, name: str) -> None:
    place, until = VIEWS[name]
    if place is None:
        show(one, "exchanges")
        one.tab.locator(".beat.answer").first.click()
    else:
        one.go(place)
    one.tab.locator(until).first.wait_for()


@pytest.mark.promise("page.readable")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_and_everything_has_a_name(party: House, visit: Enter, scheme: str) -> None:
    one = visit(party, scheme=scheme)
    for name in VIEWS:
        show(one, name)
        one.settle()
        assert one.tab.evaluate(FAINT) == [], name
        assert one.tab.evaluate(NAMELESS) == [], name
        assert one.tab.locator("main").count() == 1
    one.go("#/s/agent%3Aada%3Amain")
    one.tab.get_by_role("button", name="More actions").click()
    one.tab.get_by_role("menuitem", name="Settings…").click()
    one.tab.locator("dialog select").first.wait_for()
    assert one.tab.evaluate(NAMELESS) == []
    one.tab.keyboard.press("Escape")
    one.tab.get_by_role("button", name="Sign out").click()
    one.see("See who talks to whom.")
    assert one.tab.evaluate(FAINT) == []
    assert one.tab.evaluate(NAMELESS) == []


@pytest.mark.promise("page.phone")
@pytest.mark.parametrize("width", [320, 390])
def test_nothing_is_cut_off_on_a_phone(party: House, visit: Enter, width: int) -> None:
    one = visit(party, width=width, height=740)
    for name in VIEWS:
        show(one, name)
        assert one.tab.evaluate(TOO_WIDE) == [], name
        assert one.tab.evaluate("document.scrollingElement.scrollWidth") <= width, name


def test_times_are_in_the_zone_of_the_viewer(party: House, visit: Enter) -> None:
    one = visit(party)
    show(one, "conversation")
    time = one.tab.locator(".message time").first
    at = datetime.fromisoformat(time.get_attribute("datetime").replace("Z", "+00:00"))
    assert time.inner_text() == f"{at.astimezone(timezone(timedelta(hours=9))):%H:%M}"
    assert "GMT+9" in time.get_attribute("title")


def test_light_and_dark_can_be_chosen_and_stay_chosen(party: House, visit: Enter) -> None:
    one = visit(party)
    ground = "getComputedStyle(document.body).backgroundColor"
    before = one.tab.evaluate(ground)
    one.tab.get_by_role("button", name="Light or dark").click()
    dark = one.tab.evaluate(ground)
    assert dark != before
    one.tab.reload()
    one.tab.locator(".row").first.wait_for()
    assert one.tab.evaluate(ground) == dark
