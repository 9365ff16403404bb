"""The promises of `tests/promises.toml` and the tests that hold them, found by their `promise` marks.

`make docs` writes the summary, docs/conformance.md. `python docs/conformance.py` prints every promise with
its tests.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MARK = "pytest.mark.promise"
INTRO = """\
<!-- Written by `make docs`. Change tests/promises.toml or the tests, not this page. -->
# Conformance

[tests/promises.toml](../tests/promises.toml) lists what Hobnob promises, one sentence each. A test holds a
promise if it would fail when the promise were broken; it is marked `@pytest.mark.promise("section.name")`. A
promise that no test holds is open: the behaviour may exist, but nothing proves it.
`.venv/bin/python docs/conformance.py` prints every promise with its tests.
"""


@dataclass(frozen=True)
class Section:
    title: str
    promises: dict[str, str]


class BadMark(Exception):
    """A promise mark where pytest would ignore it, or with ids that cannot be read from the source."""


def sections(text: str) -> list[Section]:
    """The sections of a promises file, with the full id of each promise. Raises TOMLDecodeError."""
    return [
        Section(part["title"], {f"{name}.{key}": _one_line(text) for key, text in part["promises"].items()})
        for name, part in tomllib.loads(text).items()
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def holders(files: Iterable[Path]) -> dict[str, list[str]]:
    """Promise id → the tests that hold it."""
    held: dict[str, list[str]] = {}
    for file in files:
        for promise, test in marks(file.read_text(), file.relative_to(ROOT).as_posix()):
            held.setdefault(promise, []).append(test)
    return held


def marks(source: str, file: str) -> list[tuple[str, str]]:
    """Pairs of promise id and test: a function, a class or, by `pytestmark`, the file. Raises BadMark."""
    tree = ast.parse(source)
    effective = list(_effective_marks(tree.body, file))
    if len(effective) != sum(ast.unparse(n) == MARK for n in ast.walk(tree) if isinstance(n, ast.Attribute)):
        raise BadMark(f"{file}: {MARK} belongs on a test, on a class of tests or into pytestmark.")
    return [(promise, test) for mark, test in effective for promise in _ids(mark, file)]


def _effective_marks(body: list[ast.stmt], scope: str) -> Iterator[tuple[ast.expr, str]]:
    """The marks that pytest reads, each with the test it belongs to."""
    for node in body:
        candidates: list[ast.expr] = []
        test = scope
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            test = f"{scope}::{node.name}"
            candidates = node.decorator_list if node.name.lower().startswith("test") else []
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            candidates = node.value.elts if isinstance(node.value, ast.List) else [node.value]
        yield from ((each, test) for each in candidates if ast.unparse(each).startswith(MARK))
        if isinstance(node, ast.ClassDef):
            yield from _effective_marks(node.body, test)


def _ids(mark: ast.expr, file: str) -> list[str]:
    args = mark.args if isinstance(mark, ast.Call) else []
    ids = [arg.value for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    if not ids or len(ids) != len(args):
        raise BadMark(f"{file}:{mark.lineno}: {MARK} takes the ids of promises as string literals.")
    return ids


def load() -> tuple[list[Section], dict[str, list[str]]]:
    """The promises of this repository and the tests that hold them."""
    parts = sections((ROOT / "tests" / "promises.toml").read_text())
    return parts, holders(sorted((ROOT / "tests").rglob("*.py")))


def summary() -> str:
    """The page: how many promises of each section are held, and those that are open."""
    parts, held = load()
    lines = [INTRO, "| Section | Promises | Held |", "|---|---|---|"]
    for part in parts:
        lines.append(f"| {part.title} | {len(part.promises)} | {_held(part, held)} |")
    total, done = sum(len(part.promises) for part in parts), sum(_held(part, held) for part in parts)
    lines += [f"| **All** | **{total}** | **{done}** |", "", "## Open", ""]
    lines += [
        f"- `{promise}`: {text}"
        for part in parts
        for promise, text in part.promises.items()
        if promise not in held
    ]
    return "\n".join(lines) + "\n"


def full() -> str:
    """Every promise with its tests."""
    parts, held = load()
    lines = []
    for part in parts:
        lines += ["", f"{part.title}: {_held(part, held)} of {len(part.promises)} held"]
        for promise, text in part.promises.items():
            lines.append(f"  {promise}: {text}")
            lines += [f"    {test}" for test in held.get(promise, ["open"])]
    return "\n".join(lines[1:])


def _held(part: Section, held: dict[str, list[str]]) -> int:
    return sum(promise in held for promise in part.promises)


if __name__ == "__main__":
    print(full())
