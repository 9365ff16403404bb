"""Log lines as text that programs can read."""

import json
import logging
from collections.abc import Iterator

import pytest

from hobnob import logs


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Give pytest its own handlers back."""
    root = logging.getLogger()
    before, level = [*root.handlers], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def test_a_value_with_spaces_or_quotes_stays_one_value_on_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure(as_json=False)
    logging.getLogger("x").warning('say "a=b"\nand more')
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(r'level=warning event="say \"a=b\"\nand more" logger=x')


def test_the_traceback_of_an_exception_is_one_field(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(as_json=True)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "it failed"
    assert line["exception"].endswith("ValueError: broken")
