"""Take the screenshots of the page in docs/images; run by `make screenshots`."""

import asyncio
import base64
import copy
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.browser.chromium import missing, open_browser
from tests.browser.gateway_thread import GatewayThread
from tests.browser.tab import Tab

from hobnob.cli.demo_script import SETTINGS
from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.store import Tx, entries, sessions
from hobnob.testing import OWNER, exchange_ended, say
from hobnob.types import Session, now_ms

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
MAX_BYTES = 150_000
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

# Sessions besides those of the story: key, age in minutes, last message, input tokens, cost, other fields.
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


async def _story(gateway: Gateway) -> None:
    def create_others(tx: Tx) -> None:
        for key, minutes, text, tokens, cost, fields in OTHERS:
            at = now_ms() - minutes * MINUTE
            usage = {"input_tokens": tokens, "cost_usd": cost, "created_at_ms": at, "updated_at_ms": at}
            session = sessions.create(tx, Session.of(parse(key), **usage, **fields))
            entries.append(tx, session.session_id, {"role": "assistant", "content": text, "timestamp": at})

    await gateway.store.write(create_others)
    await say(gateway, "The street party is on Saturday. How is the weather?", BO)
    await say(gateway, "Put 200 aside for the party.", CY)
    for text in ("Plan the street party on Saturday.", "Do we have enough chairs?"):
        await say(gateway, text, ADA)
        page = await gateway.sessions.queries.exchanges(OWNER)
        await exchange_ended(gateway, page["exchanges"][0]["id"])
        while (await gateway.sessions.queries.status(OWNER, ADA))["openTurns"]:
            await asyncio.sleep(0.05)
    await say(gateway, "What is in Cy's books?", ADA)


def _take(tab: Tab, name: str) -> None:
    tab.page.wait_for_timeout(400)
    png = base64.b64encode(tab.page.screenshot(animations="disabled")).decode()
    converter = tab.page.context.new_page()
    webp = base64.b64decode(converter.evaluate(AS_WEBP, png).partition(",")[2])
    converter.close()
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / f"{name}.webp").write_bytes(webp)
    assert len(webp) < MAX_BYTES, f"{name} has {len(webp)} bytes"


def _take_all(browser: Any, server: GatewayThread, scheme: str, size: tuple[int, int]) -> None:
    tab = Tab(browser, server, scheme=scheme, width=size[0], height=size[1], scale=1.5)
    tab.sign_in("#/")
    tab.page.locator(".row").first.wait_for()
    suffix = f"{'phone-' if size == PHONE else ''}{scheme}"
    if size == PHONE:
        _take(tab, f"sessions-{suffix}")
    tab.open_session(ADA)
    tab.page.locator(".refusal").first.wait_for()
    _take(tab, f"conversation-{suffix}")
    tab.navigate("#/exchanges")
    tab.page.locator(".exchange-row.announce").first.wait_for()
    if size == PHONE:
        tab.page.locator(".card").last.evaluate("(card) => card.scrollIntoView()")
    _take(tab, f"exchanges-{suffix}")
    tab.page.locator(".exchange-row.answer").first.click()
    tab.page.locator(".split-panes .highlighted").nth(1).wait_for(state="attached")
    tab.page.wait_for_timeout(2_600)  # until the highlight is gone
    _take(tab, f"both-{suffix}")
    if size == WIDE:
        tab.navigate(
            f"#/explain/{ADA}/history/{CY}".replace("agent:", "agent%3A").replace(":main", "%3Amain")
        )
        tab.page.locator(".verdict .card").wait_for()
        _take(tab, f"explain-{suffix}")
        tab.navigate("#/agents/bo")
        tab.page.locator(".tool-list li").first.wait_for()
        _take(tab, f"agents-{suffix}")
    tab.close()


def main() -> None:
    if reason := missing():
        sys.exit(f"No screenshots: {reason}.")
    with tempfile.TemporaryDirectory() as folder:
        fonts = Path(folder) / "fonts.conf"
        fonts.write_text(FONTS)
        env = {**os.environ, "FONTCONFIG_FILE": str(fonts)}
        with (
            GatewayThread(Path(folder) / "home", copy.deepcopy(SETTINGS)) as server,
            open_browser(*FLAGS, env=env) as browser,
        ):
            server.run(_story, timeout_s=30)
            for scheme in ("light", "dark"):
                for size in (WIDE, PHONE):
                    _take_all(browser, server, scheme, size)


if __name__ == "__main__":
    main()
