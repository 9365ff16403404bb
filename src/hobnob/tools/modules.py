"""Tools of the user: Python files with `@tool` functions, named in `tools.modules` or by `serve --tools`."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from hobnob import statedir
from hobnob.errors import BadTools
from hobnob.tools import Tool

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_EXAMPLE = "A tool is an `async def` function with `@tool` above it; see docs/tools.md."


def load_modules(files: Iterable[Path], taken: Iterable[str]) -> list[Tool]:
    """The tools of these files. `taken` are the names that are in use already. Raises BadTools."""
    names = {name.lower(): "a built-in tool" for name in taken}
    found: list[Tool] = []
    for file in files:
        tools = list(
            {id(each): each for each in vars(_run(file)).values() if isinstance(each, Tool)}.values()
        )
        if not tools:
            raise BadTools(f"{file} defines no tools.", fix=_EXAMPLE)
        for tool in tools:
            _check(tool, file, names)
            names[tool.name.lower()] = f"a tool of {file}"
        found += tools
    return found


def _run(file: Path) -> ModuleType:
    name = f"hobnob_own_tools_{re.sub(r'[^A-Za-z0-9_]', '_', str(file))}"
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise BadTools(
            f"There is no Python file {file}, which tools.modules names.",
            fix="Name a file that ends with .py.",
        )
    if statedir.mode(file) & 0o002:
        raise BadTools(
            f"Other users can write to {file}, and it runs with your rights.", fix=f"chmod o-w {file}"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # for annotations that are evaluated later
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as fault:  # any fault of the user's code is reported as one
        raise BadTools(f"{file} cannot be loaded: {_where(fault, file)}.", fix="Correct the file.") from fault
    return module


def _where(fault: BaseException, file: Path) -> str:
    """What went wrong, and in which line of the file."""
    if isinstance(fault, SyntaxError):
        return f"line {fault.lineno}: {fault.msg}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == str(file)
    ]
    return f"line {lines[-1] if lines else '?'}: {type(fault).__name__}: {fault}".rstrip(".")


def _check(tool: Tool, file: Path, names: dict[str, str]) -> None:
    if owner := names.get(tool.name.lower()):
        fix = f'Give it another name: @tool(name="my_{tool.name}").'
        raise BadTools(f"{file}: the name {tool.name!r} belongs to {owner} already.", fix=fix)
    if not _NAME.fullmatch(tool.name) or tool.name.lower().startswith("mcp__"):
        rule = "A name has up to 64 letters, digits, - and _, begins with a letter, and not with mcp__."
        raise BadTools(f"{file}: {tool.name!r} cannot be the name of a tool.", fix=rule)
    if not tool.description:
        raise BadTools(
            f"{file}: {tool.name} has no docstring, which models read.", fix="Say what it does, and when."
        )
    try:
        tool.spec(None)
    except Exception as fault:  # whatever pydantic says about the annotations
        reason = str(fault).partition("\n")[0].rstrip(".")
        raise BadTools(
            f"{file}: the parameters of {tool.name} cannot be described: {reason}.",
            fix="Give each parameter a type, such as `sides: int = 6`.",
        ) from fault
