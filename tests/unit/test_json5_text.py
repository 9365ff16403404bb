"""Edits of JSON5 text: what was meant is in it, and everything else is as it was."""

from typing import Any

import pyjson5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob import json5_text
from hobnob.json5_text import NotEditable, remove, set_value

FILE = """\
// My gateway.
{
  gateway: { port: 1234 }, // not the default
  /* Agents */
  agents: {
    list: [
      { id: 'main' }, // me
      { id: "b", tools: { deny: [] } } // no comma here
    ],
  },
  'tools': {},
}
// The end.
"""


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (("gateway", "port"), 99, "  gateway: { port: 99 }, // not the default"),
        (("gateway", "bind"), "::1", '  gateway: { port: 1234, bind: "::1" }, // not the default'),
        (("agents", "list", 0, "name"), "Me", """      { id: 'main', name: "Me" }, // me"""),
        (("agents", "list", 2, "id"), "c", '      { id: "c" },'),
        (
            ("agents", "list", 1, "tools", "deny"),
            ["exec"],
            '      { id: "b", tools: { deny: ["exec"] } } // no comma here',
        ),
        (("tools", "sessions", "visibility"), "all", """  'tools': { sessions: { visibility: "all" } },"""),
        (("hooks",), {"a b": 1}, '  hooks: { "a b": 1 },'),
    ],
)
def test_a_value_is_set_and_comments_stay(path: json5_text.Path, value: Any, line: str) -> None:
    edited = set_value(FILE, path, value)
    assert line in edited.splitlines()
    comments = [
        "// My gateway.",
        "// not the default",
        "/* Agents */",
        "// me",
        "// no comma here",
        "// The end.",
    ]
    assert [edited.count(comment) for comment in comments] == [1] * len(comments)
    assert pyjson5.decode(edited) == expected(pyjson5.decode(FILE), path, value)


@pytest.mark.parametrize(
    "text", ["", "// nothing yet", "{}", "{ // empty\n}", "{a: 1}", "{a: 1,}", "\ufeff{}"]
)
def test_a_setting_is_added_to_a_file_with_little_in_it(text: str) -> None:
    edited = set_value(text, ("tools", "deny"), ["exec"])
    assert pyjson5.decode(edited.lstrip("\ufeff"))["tools"] == {"deny": ["exec"]}
    assert edited.count("//") == text.count("//")


def test_line_ends_stay() -> None:
    assert set_value("{\r\n  a: 1,\r\n}\r\n", ("a",), 2) == "{\r\n  a: 2,\r\n}\r\n"


@pytest.mark.parametrize(
    ("text", "path", "left"),
    [
        ("{ a: 1, b: 2 }", ("a",), "{ b: 2 }"),
        ("{ a: 1, b: 2 }", ("b",), "{ a: 1, }"),
        ("{\n  // one\n  a: 1,\n  b: 2, // two\n}", ("a",), "{\n  // one\n  b: 2, // two\n}"),
        ("{ a: [1, 2, 3] }", ("a", 1), "{ a: [1, 3] }"),
    ],
)
def test_a_value_is_removed(text: str, path: json5_text.Path, left: str) -> None:
    assert remove(text, path) == left
    pyjson5.decode(left)


@pytest.mark.parametrize("path", [("a", "b"), ("a", 0), ("list", "x")])
def test_a_place_that_cannot_be_is_refused(path: json5_text.Path) -> None:
    with pytest.raises(NotEditable):
        set_value("{ a: 'text', list: [] }", path, 1)
    with pytest.raises(NotEditable, match="not in the file"):
        remove("{ a: 'text', list: [] }", path)


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6)
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | NAMES
TREES = st.dictionaries(
    NAMES,
    st.recursive(
        LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
    ),
    max_size=4,
)


@given(TREES, st.lists(NAMES, min_size=1, max_size=3), LEAVES)
def test_any_value_can_be_set_in_any_text(tree: dict[str, Any], path: list[str], value: Any) -> None:
    text = json5_text.dumps(tree)
    try:
        edited = set_value(text, tuple(path), value)
    except NotEditable:
        return  # a plain value is in the way
    assert pyjson5.decode(edited) == expected(tree, tuple(path), value)
    assert pyjson5.decode(remove(edited, tuple(path))) == without(pyjson5.decode(edited), tuple(path))


def expected(tree: Any, path: json5_text.Path, value: Any) -> Any:
    """The tree with the value at the path."""
    if not path:
        return value
    if isinstance(path[0], int):
        items = [*(tree or []), *([None] if path[0] == len(tree or []) else [])]
        return [expected(item, path[1:], value) if i == path[0] else item for i, item in enumerate(items)]
    return {**(tree or {}), path[0]: expected((tree or {}).get(path[0]), path[1:], value)}


def without(tree: Any, path: json5_text.Path) -> Any:
    if len(path) == 1:
        return {key: value for key, value in tree.items() if key != path[0]}
    return {key: without(value, path[1:]) if key == path[0] else value for key, value in tree.items()}
