"""The nodes view: what waits for approval, approve it, remove it."""

import asyncio
from typing import Any

import pytest
from tests.browser.gateway_thread import StartGateway
from tests.browser.tab import OpenTab
from tests.integration.node_client import NodeKey, node_of

from hobnob.gateway import Gateway


@pytest.mark.promise("page.nodes")
def test_a_node_is_approved_and_removed_on_the_page(start_gateway: StartGateway, open_tab: OpenTab) -> None:
    server, key = start_gateway({}), NodeKey()
    left = asyncio.Event()
    tasks: list[Any] = []

    async def connect(_: Gateway) -> None:
        connected = asyncio.Event()

        async def stay() -> None:
            url = server.url.replace("http", "ws")
            async with node_of(url, server.token, key, client={"displayName": "Workshop"}) as node:
                connected.set()
                await node.socket.wait_closed()
            left.set()

        tasks.append(asyncio.ensure_future(stay()))
        await connected.wait()

    tab = open_tab(server, "#/nodes")
    tab.wait_for_text("hobnob node run --url", "[aria-label=Nodes]")
    server.run(connect)
    request = tab.page.get_by_role("article", name="Workshop asks")
    request.wait_for()
    assert "system.run" in request.inner_text() and "run programs" in request.inner_text()
    request.get_by_role("button", name="Approve").click()
    tab.wait_for_text("connected", "[aria-label=Nodes]")
    assert tab.page.get_by_role("article", name="Workshop asks").count() == 0
    tab.page.get_by_role("button", name="Remove").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    tab.page.get_by_role("dialog").wait_for(state="detached")
    tab.page.locator("[aria-label=Nodes]", has_text="Workshop").wait_for(state="detached")

    async def gone(_: Gateway) -> None:
        await left.wait()

    server.run(gone)
