"""Tools of the user, from Python files."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hobnob.errors import BadTools
from hobnob.testing import rehearse, say

DOCS = Path(__file__).parent.parent.parent / "docs"
ROLL = """
from hobnob.tools import Context, tool

@tool
async def roll(context: Context, sides: int = 6) -> str:
    "Roll a die."
    return f"{context.session.agent_id} rolled a die of {sides}"
"""


def tools_of(home: Path, text: str, name: str = "mine.py") -> dict[str, Any]:
    (home / name).write_text(text)
    return {"tools": {"modules": [name]}}


async def test_an_agent_uses_a_tool_of_a_file(tmp_path: Path) -> None:
    async with rehearse(tmp_path, tools_of(tmp_path, ROLL)) as gateway:
        assert (await say(gateway, 'call roll {"sides": 20}')).reply == "roll: main rolled a die of 20"


async def test_the_rules_for_tools_hold_for_them(tmp_path: Path) -> None:
    for rule in ("roll", "ROLL", "group:own", "ro*"):
        settings = tools_of(tmp_path, ROLL)
        settings["tools"]["deny"] = [rule]
        async with rehearse(tmp_path, settings) as gateway:
            assert "does not have that tool" in str((await say(gateway, "call roll {}")).reply)


def test_the_page_about_own_tools_works_as_it_is_written(tmp_path: Path) -> None:
    """Its two files, in a folder of their own, with pytest."""
    tool_file, test_file = re.findall(r"```python\n(.*?)```", (DOCS / "own-tools.md").read_text(), re.DOTALL)
    (tmp_path / "shopping.py").write_text(tool_file)
    (tmp_path / "test_shopping.py").write_text(test_file)
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


async def test_the_example_in_the_documents_works(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(import random.*?)```", (DOCS / "tools.md").read_text(), re.DOTALL)
    async with rehearse(tmp_path, tools_of(tmp_path, example)) as gateway:
        reply = (await say(gateway, 'call roll_dice {"sides": 1}')).reply
        assert reply == "roll_dice: main rolled 1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "There is no Python file"),
        ("x = 1", "defines no tools"),
        ("def (", "line 1: "),
        ("import no_such_package", "line 1: ModuleNotFoundError"),
        ("\nraise RuntimeError('boom')", "line 2: RuntimeError: boom"),
        ("raise SystemExit(3)", "SystemExit"),
        (ROLL.replace("def roll", "def exec"), "'exec' belongs to a built-in tool already"),
        (ROLL.replace("def roll", "def Exec"), "belongs to a built-in tool already"),
        (ROLL.replace("@tool", '@tool(name="a b")'), "'a b' cannot be the name"),
        (ROLL.replace("@tool", '@tool(name="mcp__x__y")'), "cannot be the name"),
        (ROLL.replace('    "Roll a die."\n', ""), "roll has no docstring"),
        (ROLL.replace("sides: int = 6", "sides"), "the parameters of roll cannot be described"),
        (ROLL.replace("async def", "def"), "must be an async function"),
        (ROLL.replace("context: Context, sides: int = 6", ""), "must be the context of the call"),
    ],
)
async def test_a_file_that_cannot_be_used_stops_the_start_with_the_reason(
    tmp_path: Path, text: str | None, says: str
) -> None:
    settings = tools_of(tmp_path, text or "")
    if text is None:
        (tmp_path / "mine.py").unlink()
    with pytest.raises(BadTools) as refusal:
        async with rehearse(tmp_path, settings):
            pass
    assert says in refusal.value.message
    assert str(tmp_path / "mine.py") in refusal.value.message
    assert refusal.value.fix


async def test_a_file_that_others_can_write_is_not_run(tmp_path: Path) -> None:
    settings = tools_of(tmp_path, ROLL)
    (tmp_path / "mine.py").chmod(0o666)
    with pytest.raises(BadTools, match="Other users can write"):
        async with rehearse(tmp_path, settings):
            pass


async def test_two_files_cannot_share_a_name(tmp_path: Path) -> None:
    settings = tools_of(tmp_path, ROLL)
    tools_of(tmp_path, ROLL, "other.py")
    settings["tools"]["modules"].append("other.py")
    with pytest.raises(BadTools, match=r"belongs to a tool of .*mine\.py already"):
        async with rehearse(tmp_path, settings):
            pass
