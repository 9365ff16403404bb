"""The channels view: accounts, people who ask to be let in, and what became of messages."""

from pathlib import Path
from typing import Any

import pytest
from tests.browser.gateway_thread import StartGateway
from tests.browser.tab import OpenTab
from tests.channels.fake_signal import BOT, FakeSignal
from tests.channels.line import Line

from hobnob.gateway import Gateway


@pytest.mark.promise("page.channels")
def test_a_person_who_asks_is_let_in_on_the_page(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    lines: list[Line] = []

    def settings() -> dict[str, Any]:
        lines.append(Line())
        return lines[0].settings(dmPolicy="pairing", allowFrom=[])

    server = start_gateway(settings())
    tab = open_tab(server, "#/channels")
    tab.wait_for_text("connected", "[aria-label=Accounts]")

    async def ask(gateway: Gateway) -> None:
        await lines[0].say("let me in")
        await lines[0].say("hello bot", room="team", mentioned=True)

    server.run(ask)
    asking = tab.page.locator("[aria-label=People] tr", has_text="Ann")
    asking.get_by_role("button", name="Let in").click()
    tab.wait_for_text("let in", "[aria-label=People]")
    tab.page.get_by_role("button", name="Remove").wait_for()
    refused = tab.page.locator("[aria-label='Recent messages'] details")
    refused.locator("summary").click()
    assert "hobnob config set channels.line.groups.team" in refused.inner_text()


@pytest.mark.promise("page.channels")
def test_without_a_channel_the_page_says_how_to_add_one(
    start_gateway: StartGateway, open_tab: OpenTab
) -> None:
    tab = open_tab(start_gateway({}), "#/channels")
    tab.wait_for_text("hobnob channels add telegram", "[aria-label=Accounts]")


@pytest.mark.promise("page.channels")
def test_a_phone_is_linked_on_the_page(
    start_gateway: StartGateway, open_tab: OpenTab, tmp_path: Path
) -> None:
    module = Path(__file__).parents[1] / "channels" / "linked_module.py"
    scanned = tmp_path / "scanned"
    block = {"module": str(module), "options": {"scanned": str(scanned)}}
    tab = open_tab(start_gateway({"channels": {"linked": block}}), "#/channels")
    tab.page.get_by_role("button", name="Link a phone").click()
    tab.page.get_by_role("img", name="QR code").wait_for()
    scanned.touch()
    tab.wait_for_text("Linked as Bot.", "[aria-label='Link a phone']")
    tab.wait_for_text("connected", "[aria-label=Accounts]")


@pytest.mark.promise("page.channels", "signal.linked_by_code")
def test_signal_is_linked_on_the_page(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    signal = FakeSignal()
    signal.accounts.clear()
    transport = {"cliPath": str(signal.program)}
    server = start_gateway({"channels": {"signal": {"transport": transport}}})
    server.run(lambda gateway: signal.start())
    tab = open_tab(server, "#/channels")
    tab.page.get_by_role("button", name="Link a phone").click()
    tab.page.get_by_role("img", name="QR code").wait_for()
    tab.wait_for_text("Linked devices", "[aria-label='Link a phone']")

    async def scan(gateway: Gateway) -> None:
        signal.scanned.set()

    server.run(scan)
    tab.wait_for_text(f"Linked as {BOT}.", "[aria-label='Link a phone']")
    tab.wait_for_text("connected", "[aria-label=Accounts]")
    server.run(lambda gateway: signal.stop())
