"""Fixtures: a real gateway and a real browser. Without a browser these tests are skipped with one line."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import missing, open_browser
from tests.browser.gateway_thread import GatewayThread, StartGateway
from tests.browser.stepped_model import SteppedModel
from tests.browser.tab import OpenTab, Tab

REQUIRED = os.environ.get("HOBNOB_REQUIRE_BROWSER") == "1"
_DIRECTORY = Path(__file__).parent
_REASON = f"page not tested: {missing()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not missing() or REQUIRED:
        return
    for item in items:
        if _DIRECTORY in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=_REASON))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if missing():
        terminalreporter.write_line(f"tests/browser: {_REASON}")


@pytest.fixture(
    scope="module"
)  # Playwright's event loop blocks asyncio tests of other modules while it is open
def browser() -> Iterator[Any]:
    if missing():
        pytest.fail(_REASON)
    with open_browser() as chromium:
        yield chromium


@pytest.fixture
def start_gateway(tmp_path: Path) -> Iterator[StartGateway]:
    """Start gateways that are stopped after the test."""
    servers: list[GatewayThread] = []

    def start(settings: dict[str, Any] | None = None, **options: Any) -> GatewayThread:
        servers.append(GatewayThread(tmp_path / str(len(servers)), settings or {}, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def open_tab(browser: Any) -> Iterator[OpenTab]:
    """Open the page of a gateway, signed in. Page errors and foreign requests fail the test."""
    tabs: list[Tab] = []

    def open_(server: GatewayThread, fragment: str = "#/", **options: Any) -> Tab:
        tabs.append(Tab(browser, server, **options))
        tabs[-1].sign_in(fragment)
        return tabs[-1]

    yield open_
    for tab in tabs:
        tab.close()


@pytest.fixture
def model() -> Iterator[SteppedModel]:
    stepped = SteppedModel()
    yield stepped
    stepped.close()
