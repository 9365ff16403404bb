"""The page of what Hobnob promises and which tests hold it: `tests/promises.toml` and the marks of tests."""

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

What Hobnob promises, in plain words, and the tests that hold each promise. A test is named here when it would
fail if the promise were broken. **open** means that no test holds the promise yet: it may work, it may still
have to be built, but nothing proves it.
"""


@dataclass(frozen=True)
class Section:
    title: str
    promises: dict[str, str]


class BadMark(Exception):
    """A mark that would be overlooked."""


def sections(text: str) -> list[Section]:
    """The promises by id, as the file has them. An id that stands twice is a TOMLDecodeError."""
    return [
        Section(part["title"], {f"{name}.{key}": _line(said) for key, said in part["promises"].items()})
        for name, part in tomllib.loads(text).items()
    ]


def _line(text: str) -> str:
    return " ".join(text.split())


def holders(files: Iterable[Path]) -> dict[str, list[str]]:
    """The tests that hold each promise, by its id."""
    held: dict[str, list[str]] = {}
    for file in files:
        for promise, test in marks(file.read_text(), file.relative_to(ROOT).as_posix()):
            held.setdefault(promise, []).append(test)
    return held


def marks(source: str, file: str) -> list[tuple[str, str]]:
    """Pairs of a promise and the test that holds it: a function, a class or, by `pytestmark`, the file."""
    tree = ast.parse(source)
    placed = list(_placed(tree.body, file))
    if len(placed) != sum(ast.unparse(n) == MARK for n in ast.walk(tree) if isinstance(n, ast.Attribute)):
        raise BadMark(f"{file}: {MARK} belongs on a test, on a class of tests or into pytestmark.")
    return [(promise, test) for call, test in placed for promise in _ids(call, file)]


def _placed(body: list[ast.stmt], within: str) -> Iterator[tuple[ast.expr, str]]:
    """The marks where pytest looks for them."""
    for node in body:
        found: list[ast.expr] = []
        test = within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            test = f"{within}::{node.name}"
            found = node.decorator_list if node.name.lower().startswith("test") else []
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            found = node.value.elts if isinstance(node.value, ast.List) else [node.value]
        yield from ((each, test) for each in found if ast.unparse(each).startswith(MARK))
        if isinstance(node, ast.ClassDef):
            yield from _placed(node.body, test)


def _ids(mark: ast.expr, file: str) -> list[str]:
    names = mark.args if isinstance(mark, ast.Call) else []
    ids = [n.value for n in names if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    if not ids or len(ids) != len(names):
        raise BadMark(f"{file}:{mark.lineno}: {MARK} takes the ids of promises, as plain text.")
    return ids


def page() -> str:
    parts = sections((ROOT / "tests" / "promises.toml").read_text())
    held = holders(sorted((ROOT / "tests").rglob("*.py")))
    every = [promise for part in parts for promise in part.promises]
    done = sum(promise in held for promise in every)
    lines = [INTRO, f"**{done} of {len(every)} promises are held by tests, {len(every) - done} are open.**"]
    for part in parts:
        count = sum(promise in held for promise in part.promises)
        lines += ["", f"## {part.title}", "", f"{count} of {len(part.promises)} held.", ""]
        lines += ["| | Promise | Held by |", "|---|---|---|"]
        for promise, said in part.promises.items():
            tests = "<br>".join(f"`{test}`" for test in held.get(promise, [])) or "**open**"
            lines.append(f"| `{promise}` | {said} | {tests} |")
    return "\n".join(lines) + "\n"
