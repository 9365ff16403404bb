"""Pictures of the page for the documents: `make screenshots` takes them anew."""

import asyncio
import base64
import copy
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.browser.chromium import missing, open_browser
from tests.browser.house import House, Visit

from hobnob.cli.demo_script import SETTINGS
from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.store import Tx, entries, sessions
from hobnob.testing import OWNER, exchange_ended, say
from hobnob.types import Session, now_ms

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
MOST_BYTES = 150_000
ADA, BO, CY = "agent:ada:main", "agent:bo:main", "agent:cy:main"
WIDE, PHONE = (1280, 800), (390, 844)
MINUTE = 60_000
FLAGS = ["--disable-lcd-text", "--font-render-hinting=none"]
AS_WEBP = """async (png) => {
    const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.width, image.height];
    canvas.getContext('2d').drawImage(image, 0, 0);
    return canvas.toDataURL('image/webp', 0.9);
}"""
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<match target="pattern"><test name="family"><string>DejaVu Sans</string></test>
<edit name="family" mode="prepend" binding="strong"><string>Inter</string></edit></match>
<match target="pattern"><test name="family"><string>system-ui</string></test>
<edit name="family" mode="assign" binding="strong"><string>Inter</string></edit></match></fontconfig>"""

# Sessions that are there besides those of the story: key, minutes ago, last words, tokens in, cost, the rest.
OTHERS: list[tuple[str, int, str, int, float, dict[str, Any]]] = [
    (
        "agent:ada:telegram:group:maple-street",
        4,
        "Who brings the cake this year?",
        48_200,
        0.21,
        {"display_name": "Maple Street"},
    ),
    ("agent:bo:cron:forecast", 22, "West wind, 12 knots, dry.", 9_100, 0.03, {"label": "morning forecast"}),
    ("agent:cy:hook:receipts", 47, "Booked: 38 chairs, $57.00.", 15_800, 0.06, {"label": "receipts"}),
    ("agent:cy:cron:month-end", 190, "The books are balanced.", 122_000, 0.58, {"label": "month end"}),
    ("agent:bo:node-balcony", 320, "The sensor does not answer.", 2_400, 0.01, {"status": "failed"}),
    ("agent:ada:slack:channel:neighbours", 1_500, "Thanks, that settles it.", 64_000, 0.33, {}),
]


async def _story(inside: Gateway) -> None:
    def fill(tx: Tx) -> None:
        for key, minutes, words, tokens, cost, fields in OTHERS:
            at = now_ms() - minutes * MINUTE
            used = {"input_tokens": tokens, "cost_usd": cost, "created_at_ms": at, "updated_at_ms": at}
            session = sessions.create(tx, Session.of(parse(key), **used, **fields))
            entries.append(tx, session.session_id, {"role": "assistant", "content": words, "timestamp": at})

    await inside.store.write(fill)
    await say(inside, "The street party is on Saturday. How is the weather?", BO)
    await say(inside, "Put 200 aside for the party.", CY)
    for text in ("Plan the street party on Saturday.", "Do we have enough chairs?"):
        await say(inside, text, ADA)
        page = await inside.sessions.queries.exchanges(OWNER)
        await exchange_ended(inside, page["exchanges"][0]["id"])
        while (await inside.sessions.queries.status(OWNER, ADA))["openTurns"]:
            await asyncio.sleep(0.05)
    await say(inside, "What is in Cy's books?", ADA)


def _take(one: Visit, name: str) -> None:
    one.tab.wait_for_timeout(400)
    picture = base64.b64encode(one.tab.screenshot(animations="disabled")).decode()
    darkroom = one.tab.context.new_page()
    small = base64.b64decode(darkroom.evaluate(AS_WEBP, picture).partition(",")[2])
    darkroom.close()
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / f"{name}.webp").write_bytes(small)
    assert len(small) < MOST_BYTES, f"{name} has {len(small)} bytes"


def _look(browser: Any, house: House, scheme: str, size: tuple[int, int]) -> None:
    one = Visit(browser, house, scheme=scheme, width=size[0], height=size[1], scale=1.5)
    one.enter("#/")
    one.tab.locator(".row").first.wait_for()
    suffix = f"{'phone-' if size == PHONE else ''}{scheme}"
    if size == PHONE:
        _take(one, f"sessions-{suffix}")
    one.open(ADA)
    one.tab.locator(".refusal").first.wait_for()
    _take(one, f"conversation-{suffix}")
    one.go("#/exchanges")
    one.tab.locator(".beat.announce").first.wait_for()
    if size == PHONE:
        one.tab.locator(".card").last.evaluate("(card) => card.scrollIntoView()")
    _take(one, f"exchanges-{suffix}")
    if size == WIDE:
        one.tab.locator(".beat.answer").first.click()
        one.tab.locator(".two .pointed").nth(1).wait_for()
        one.tab.wait_for_timeout(2_600)  # until it is no longer pointed at
        _take(one, f"both-{suffix}")
        one.go(f"#/explain/{ADA}/history/{CY}".replace("agent:", "agent%3A").replace(":main", "%3Amain"))
        one.tab.locator(".verdict .card").wait_for()
        _take(one, f"explain-{suffix}")
    one.leave()


def main() -> None:
    if reason := missing():
        sys.exit(f"No pictures: {reason}.")
    with tempfile.TemporaryDirectory() as folder:
        fonts = Path(folder) / "fonts.conf"
        fonts.write_text(FONTS)
        env = {**os.environ, "FONTCONFIG_FILE": str(fonts)}
        with (
            House(Path(folder) / "home", copy.deepcopy(SETTINGS)) as house,
            open_browser(*FLAGS, env=env) as browser,
        ):
            house.do(_story, timeout_s=30)
            for scheme in ("light", "dark"):
                for size in (WIDE, PHONE):
                    _look(browser, house, scheme, size)


if __name__ == "__main__":
    main()
