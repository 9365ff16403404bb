"""Long texts in parts that fit into one message each."""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Literal

from hobnob.records import Struct

_FENCE_LINE = re.compile(
    r"^([ \t>]{0,40}(?:(?:[-*+]|\d{1,9}[.)])[ \t]{1,4})?)(`{3,20}|~{3,20})([^\n]*)$", re.MULTILINE
)
_NOT_INDENT = re.compile(r"[^ \t>]")
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
_LINE_END = re.compile(r"\n")
_SENTENCE_END = re.compile(
    "(?:(?<=[.!?…])|(?<=[.!?…][\"'”\u2019)\\]*_]))(?=\\s)|(?<=[。\uff01\uff1f])"  # the last three: CJK
)
_SPACE = re.compile(r"\s")
_SPACES = re.compile(r"\s*")
_RANKS = (
    (_BLANK_LINE, False),
    (_LINE_END, False),
    (_LINE_END, True),
    (_SENTENCE_END, False),
    (_SPACE, False),
)
_MAX_GRAPHEME = 64
_MAX_INDENT = 40
_LONGEST_INFO = 40


def split(
    text: str,
    limit: int,
    measure: Callable[[str], int] = len,
    mode: Literal["length", "newline"] = "length",
) -> list[str]:
    """Split a Markdown text into parts of at most `limit` by `measure` and at most `limit` characters.

    Cuts are made near the limit: at a blank line, else at a line end, a sentence end, a space, or anywhere.
    With the mode `newline` any blank line comes first. A code fence across a cut is closed and opened again.
    Only whitespace at cuts is dropped. A character that is over the limit on its own is a part of its own.
    """
    if not text.strip():
        return []
    if len(text) <= limit and measure(text) <= limit:
        return [text]
    return list(_Splitter(text, max(1, limit), measure, mode).parts())


class _Fence(Struct, frozen=True):
    """A fenced code block: from `start` to `end`, its code from `content` to the closing line at `close`.

    `code` is the first character of the code that is no whitespace.
    """

    start: int
    content: int
    code: int
    close: int
    end: int
    opening: str
    closing: str


def _fences(text: str) -> list[_Fence]:
    found: list[_Fence] = []
    opened: re.Match[str] | None = None
    for line in _FENCE_LINE.finditer(text):
        info = line[3].strip()
        if opened is None:
            if not (line[2][0] == "`" and "`" in info) and not info.startswith("~"):
                opened = line
        elif line[2][0] == opened[2][0] and len(line[2]) >= len(opened[2]) and not info:
            found.append(_fence(opened, line.start(), line.end()))
            opened = None
    if opened is not None:
        found.append(_fence(opened, len(text), len(text)))
    return found


def _fence(opened: re.Match[str], close: int, end: int) -> _Fence:
    indent = _NOT_INDENT.sub(" ", opened[1])  # a list marker is not repeated
    info = opened[3].strip()[:_LONGEST_INFO]
    content = min(opened.end() + 1, close)
    return _Fence(
        opened.start(),
        content,
        _first(opened.string, content),
        close,
        end,
        f"{indent}{opened[2]}{info}\n",
        f"\n{indent}{opened[2]}",
    )


def _first(text: str, at: int) -> int:
    """The first character from here on that is no whitespace."""
    found = _SPACES.match(text, at)
    return found.end() if found else at


class _Splitter:
    def __init__(self, text: str, limit: int, measure: Callable[[str], int], mode: str) -> None:
        self._text = text
        self._limit = limit
        self._measure = measure
        self._mode = mode
        self._fences = _fences(text)
        self._starts = [fence.start for fence in self._fences]

    def parts(self) -> Iterator[str]:
        at = 0
        while (start := self._skip(at)) < len(self._text):
            part, at = self._part(start)
            yield part

    def _skip(self, at: int) -> int:
        """The start of the next part: whitespace is dropped, but not the indentation of a line."""
        first = _first(self._text, at)
        if first == len(self._text):
            return first
        line = self._text.rfind("\n", at, first) + 1
        indented = line if line > at else at
        is_line_start = indented == 0 or self._text[indented - 1] == "\n"
        return indented if is_line_start and first - indented < min(_MAX_INDENT, self._limit // 2) else first

    def _part(self, start: int) -> tuple[str, int]:
        """The longest part from `start` that fits, and where the next one begins."""
        first = _first(self._text, start)
        for fenced in (True, False):  # without fences if they leave no room
            high, tries = min(start + self._limit, len(self._text)), 0
            while high > first:
                cut = high if high == len(self._text) else self._cut(first, high)
                part, after = self._made(start, cut, fenced)
                if len(part) <= self._limit and (size := self._measure(part)) <= self._limit:
                    return part, after
                size = max(len(part), size if len(part) <= self._limit else 0)
                room, tries = cut - start, tries + 1
                high = start + (min(room * self._limit // size, room - 1) if tries < 6 else room // 2)
        end = first + (2 if self._is_pair(first + 1) else 1)
        return self._text[first:end], end

    def _made(self, start: int, cut: int, fenced: bool) -> tuple[str, int]:
        body = self._text[start:cut].rstrip()
        before, after = self._inside(start), self._inside(cut)
        if fenced and before is not None and before.content <= start < before.close:
            body = before.opening + body
        if fenced and after is not None:
            body += after.closing
            if _first(self._text, cut) >= after.close:  # its own closing line would be an empty block
                return body, after.end
        return body, cut

    def _inside(self, at: int) -> _Fence | None:
        """The fence that a cut at this place would break."""
        index = bisect.bisect_left(self._starts, at) - 1
        if index < 0 or at >= self._fences[index].end:
            return None
        return self._fences[index]

    def _cut(self, first: int, high: int) -> int:
        if self._mode == "newline" and (cut := self._last(_BLANK_LINE, first + 1, high, in_fence=False)):
            return cut
        for floor in ((first + high) // 2 + 1, first + 1):
            for pattern, in_fence in _RANKS:
                if cut := self._last(pattern, floor, high, in_fence=in_fence):
                    return cut
        return self._anywhere(first, high)

    def _last(self, pattern: re.Pattern[str], floor: int, high: int, *, in_fence: bool) -> int:
        """The last place for a cut by this pattern, outside of fences or in the code of one; 0 if none."""
        last = 0
        for found in pattern.finditer(self._text, floor, min(high + 2, len(self._text))):
            at = found.start()
            if floor <= at <= high and self._is_allowed(at, in_fence):
                last = at
        return last

    def _is_allowed(self, at: int, in_fence: bool) -> bool:
        fence = self._inside(at)
        if fence is None or not in_fence:
            return fence is None and not in_fence
        return fence.code < at < fence.close

    def _anywhere(self, first: int, high: int) -> int:
        """A cut in a text without a better place, if possible not within a character that is seen as one."""
        fence = self._inside(high)
        if fence is not None and fence.close <= high and fence.close - 1 > max(first, fence.content):
            return fence.close - 1
        for at in range(high, max(first, high - _MAX_GRAPHEME), -1):
            if not self._is_joined(at):
                return at
        return high - 1 if self._is_pair(high) and high - 1 > first else high

    def _is_pair(self, at: int) -> bool:
        around = self._text[at - 1 : at + 1]
        return len(around) == 2 and "\ud800" <= around[0] <= "\udbff" and "\udc00" <= around[1] <= "\udfff"

    def _is_joined(self, at: int) -> bool:
        """Whether the characters before and after this place are shown as one."""
        before, after = self._text[at - 1], self._text[at]
        if _is_regional(before) and _is_regional(after):
            run = at
            while run > max(0, at - 2 * _MAX_GRAPHEME) and _is_regional(self._text[run - 1]):
                run -= 1
            return (at - run) % 2 == 1
        return (
            before == "\u200d"
            or after in "\u200d\ufe0e\ufe0f"
            or "\U0001f3fb" <= after <= "\U0001f3ff"
            or "\U000e0020" <= after <= "\U000e007f"
            or unicodedata.category(after)[0] == "M"
            or self._is_pair(at)
        )


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
