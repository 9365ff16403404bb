"""Markdown for Discord, which has its own: everything is passed on, only tables become code blocks."""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_ROW = re.compile(r" {0,3}\|.*\|[ \t]*")
_DELIMITER = re.compile(r" {0,3}\|[ \t:|-]+\|[ \t]*")


def discord_text(text: str) -> str:
    """The text as Discord shows it best."""
    if "|" not in text:
        return text
    lines, done, fence, at = text.split("\n"), [], "", 0
    while at < len(lines):
        end = at + 1
        if opened := _FENCE.fullmatch(lines[at]):
            fence = _after(fence, opened[1], opened[2])
        elif not fence and (rows := _table(lines, at)):
            end = at + rows
            done.append("```")
        done += lines[at:end]
        if end > at + 1:
            done.append("```")
        at = end
    return "\n".join(done)


def length(text: str) -> int:
    """The length of a text in UTF-16 units, an upper limit of what Discord counts."""
    return len(discord_text(text).encode("utf-16-le", "surrogatepass")) // 2


def _table(lines: list[str], at: int) -> int:
    """The number of lines of the table that begins here; 0 if none does."""
    if at + 1 >= len(lines) or not _ROW.fullmatch(lines[at]):
        return 0
    if "-" not in lines[at + 1] or not _DELIMITER.fullmatch(lines[at + 1]):
        return 0
    end = at + 2
    while end < len(lines) and _ROW.fullmatch(lines[end]):
        end += 1
    return end - at


def _after(fence: str, marks: str, info: str) -> str:
    """The fence that is open after a line of marks; empty if none is."""
    if not fence:
        return marks
    closes = marks[0] == fence[0] and len(marks) >= len(fence) and not info.strip()
    return "" if closes else fence
