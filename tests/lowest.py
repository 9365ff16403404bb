"""Prints the lowest versions that pyproject.toml allows, as exact requirements for `make lock`."""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
EXTRAS = ("acp", "mcp", "postgres", "pydantic-ai")
TOOLS = ("editables", "hatchling", "hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")
_BOUND = re.compile(r"(?P<name>[a-z0-9.-]+)(?P<extras>\[[a-z0-9,]+\])?>=(?P<version>[0-9.]+)(?P<marker>;.*)?")


def pins() -> list[str]:
    """The lowest version of every dependency, of the extras, and of the tools that the tests need."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    dev = [line for line in extras["dev"] if _BOUND.match(line)["name"] in TOOLS]
    return sorted(_pin(line) for line in (*project["dependencies"], *sum((extras[e] for e in EXTRAS), dev)))


def _pin(line: str) -> str:
    bound = _BOUND.fullmatch(line)
    assert bound is not None, f"{line!r} is not of the form name>=version"
    return f"{bound['name']}{bound['extras'] or ''}=={bound['version']}{bound['marker'] or ''}"


if __name__ == "__main__":
    print("\n".join(pins()))  # noqa: T201 - the output is what it is for
