"""Edits of a JSON5 text that keep its comments and its layout.

The text is scanned for the positions of its values; an edit replaces or inserts characters at one of them.
Callers parse the result and compare it with what they meant, so the scanner may be lenient.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyjson5

Path = tuple[str | int, ...]

_TRIVIA = re.compile(r"(?:[\s\ufeff]|//[^\n\r\u2028\u2029]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""", re.DOTALL)
_WORD = re.compile(r"""[^\s,:\[\]{}"'/]+""")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_INDENT = "  "


class NotEditable(Exception):
    """The text has no place for the edit; the message says why."""


@dataclass(slots=True)
class _Value:
    """A value and its position in the text. `members` are those of an object or an array."""

    start: int
    end: int = 0
    kind: str = "plain"
    members: list[_Member] = field(default_factory=list)


@dataclass(slots=True)
class _Member:
    key: str | int
    start: int
    value: _Value
    comma: int | None = None  # the position of the comma behind it


def set_value(text: str, path: Path, value: Any) -> str:
    """The text with the value at `path` set; missing objects are made. Raises NotEditable."""
    if not text[_skip(text, 0) :]:
        text = f"{text}{_newline_before_end(text)}{{}}\n"
    node = _scan(text, _skip(text, 0))
    for depth, step in enumerate(path):
        member = _member(node, step)
        if member is None:
            return _insert(text, node, step, _nested(path[depth + 1 :], value), depth, path)
        node = member.value
    return f"{text[: node.start]}{dumps(value)}{text[node.end :]}"


def remove(text: str, path: Path) -> str:
    """The text without the member at `path`. Raises NotEditable when there is none."""
    node = _scan(text, _skip(text, 0)) if text[_skip(text, 0) :] else _Value(0)
    member = None
    for step in path:
        member = _member(node, step)
        if member is None:
            raise NotEditable(f"{show(path)} is not in the file")
        node = member.value
    assert member is not None
    end = node.end if member.comma is None else member.comma + 1
    rest_of_line = re.compile(r"[ \t]*\r?\n?").match(text, end)
    line_start = text.rfind("\n", 0, member.start) + 1
    if rest_of_line and rest_of_line[0].endswith("\n") and not text[line_start : member.start].strip():
        return text[:line_start] + text[rest_of_line.end() :]  # it had its lines for itself
    return text[: member.start] + text[end:].lstrip(" \t")


def dumps(value: Any) -> str:
    """A value as JSON5, with plain names as keys."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(k)}: {dumps(v)}' for k, v in value.items())} }}" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(dumps, value))}]"
    return orjson.dumps(value).decode()


def show(path: Path) -> str:
    """A path in the notation of the settings."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _insert(text: str, node: _Value, step: str | int, value: Any, depth: int, path: Path) -> str:
    """The text with one more member at the end of an object or an array."""
    if node.kind != ("array" if isinstance(step, int) else "object"):
        kind = "list" if isinstance(step, int) else "section"
        raise NotEditable(f"{show(path[:depth]) or 'the file'} is not a {kind} there")
    written = dumps(value) if isinstance(step, int) else f"{_key(step)}: {dumps(value)}"
    close, several_lines = node.end - 1, "\n" in text[node.start : node.end]
    last = node.members[-1] if node.members else None
    if last is not None and last.comma is None:  # the last one needs a comma
        text = f"{text[: last.value.end]},{text[last.value.end :]}"
        close += 1
    begin = len(text[:close].rstrip())  # behind the last comment
    if not several_lines and (last is not None or depth > 0):
        before = " " if last is not None or node.kind == "object" else ""
        after = text[begin:close] if last is not None or node.kind == "array" else " "
        return f"{text[:begin]}{before}{written}{after}{text[close:]}"
    outer = _indent_at(text, node.start)
    inner = _indent_at(text, last.start) if last is not None else outer + _INDENT
    return f"{text[:begin]}\n{inner}{written},\n{outer}{text[close:]}"


def _indent_at(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip())]


def _newline_before_end(text: str) -> str:
    return "" if not text or text.endswith("\n") else "\n"


def _nested(path: Path, value: Any) -> Any:
    for step in reversed(path):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def _key(name: Any) -> str:
    return name if _NAME.fullmatch(str(name)) else orjson.dumps(str(name)).decode()


def _member(node: _Value, step: str | int) -> _Member | None:
    return next((each for each in reversed(node.members) if each.key == step), None)  # the last one counts


def _skip(text: str, position: int) -> int:
    found = _TRIVIA.match(text, position)
    return found.end() if found else position


def _scan(text: str, position: int) -> _Value:
    """The value that begins at a position. Raises NotEditable where the text is not JSON5."""
    node = _Value(position)
    opening = text[position : position + 1]
    if opening not in ("{", "["):
        found = _STRING.match(text, position) or _WORD.match(text, position)
        if found is None:
            raise NotEditable(f"the text is not JSON5 at character {position + 1}")
        node.end = found.end()
        return node
    node.kind = "object" if opening == "{" else "array"
    closing = "}" if opening == "{" else "]"
    position = _skip(text, position + 1)
    while text[position : position + 1] != closing:
        member = _scan_member(text, position, len(node.members) if opening == "[" else None)
        node.members.append(member)
        position = _skip(text, member.value.end)
        if text[position : position + 1] == ",":
            member.comma = position
            position = _skip(text, position + 1)
        elif text[position : position + 1] != closing:
            raise NotEditable(f"the text is not JSON5 at character {position + 1}")
    node.end = position + 1
    return node


def _scan_member(text: str, position: int, index: int | None) -> _Member:
    if index is not None:
        return _Member(index, position, _scan(text, position))
    found = _STRING.match(text, position) or _WORD.match(text, position)
    colon = _skip(text, found.end()) if found else position
    if found is None or text[colon : colon + 1] != ":":
        raise NotEditable(f"the text is not JSON5 at character {position + 1}")
    key = next(iter(pyjson5.decode(f"{{{found[0]}: 0}}")))
    return _Member(key, position, _scan(text, _skip(text, colon + 1)))
