"""A real gateway beside a real browser. Without a browser these tests are skipped, and one line says so."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import missing, open_browser
from tests.browser.house import House, Visit
from tests.browser.speaker import Speaker

REQUIRED = os.environ.get("HOBNOB_REQUIRE_BROWSER") == "1"
_HERE = Path(__file__).parent
_NONE = f"the page is not tested: {missing()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not missing() or REQUIRED:
        return
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=_NONE))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if missing():
        terminalreporter.write_line(f"tests/browser: {_NONE}")


@pytest.fixture(scope="module")  # while it is open, its event loop is in the way of other tests
def browser() -> Iterator[Any]:
    if missing():
        pytest.fail(_NONE)
    with open_browser() as chromium:
        yield chromium


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Callable[..., House]]:
    """Makes gateways that are gone after the test."""
    houses: list[House] = []

    def make(settings: dict[str, Any] | None = None, **more: Any) -> House:
        houses.append(House(tmp_path / str(len(houses)), settings or {}, **more))
        return houses[-1]

    yield make
    for each in houses:
        each.stop()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Opens the page of a house, signed in. What the page should never do fails the test."""
    visits: list[Visit] = []

    def make(house: House, place: str = "#/", **how: Any) -> Visit:
        visits.append(Visit(browser, house, **how))
        visits[-1].enter(place)
        return visits[-1]

    yield make
    for each in visits:
        each.leave()


@pytest.fixture
def speaker() -> Iterator[Speaker]:
    one = Speaker()
    yield one
    one.close()
