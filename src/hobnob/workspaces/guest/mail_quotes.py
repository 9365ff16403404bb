"""The text of a reply without what it quotes, and without the signature. Runs in a guest process."""

from __future__ import annotations

import re

_WROTE = re.compile(
    r"(wrote|writes|schrieb|a écrit|escribió|ha scritto|escreveu|schreef|skrev|napisał\S*|написал\S*)"
    r"[^:\n]{0,80}\s?:\s*$",
    re.IGNORECASE,
)
_ORIGINAL = re.compile(
    r"^\s*[-_]{2,}\s*(original message|ursprüngliche nachricht|message d'origine|mensaje original)"
    r"\s*[-_]{2,}\s*$",
    re.IGNORECASE,
)
_FORWARDED = re.compile(r"^\s*([-_]{2,}\s*forwarded message|begin forwarded message)", re.IGNORECASE)
_FIELD = re.compile(
    r"^\s*\*?(from|sent|to|subject|date|cc|von|gesendet|an|betreff|datum)\s?:\*?\s", re.IGNORECASE
)
_LONGEST_ATTRIBUTION = 3  # lines: mail programs wrap it


def without_quotes(text: str, *, is_html: bool = False) -> str:
    """What the sender wrote. Quotes in between stay: they say what an answer refers to.

    Text that was HTML has no marks on quoted lines, so it ends where the quote is introduced. If nothing were
    left, or the mail is forwarded, everything stays.
    """
    lines = [line.rstrip() for line in text.split("\n")]
    if any(_FORWARDED.match(line) for line in lines):
        return "\n".join(lines).strip()
    kept = _without_signature(_without_trailing_quote(_before_original(lines, is_html)))
    return "\n".join(kept).strip() or "\n".join(lines).strip()


def _before_original(lines: list[str], is_html: bool) -> list[str]:
    """The lines before the whole original mail that some programs append."""
    for number, line in enumerate(lines):
        if _ORIGINAL.match(line):
            return lines[:number]
        block = [each for each in lines[number : number + 6] if each.strip()]
        if len(block) >= 3 and all(_FIELD.match(each) for each in block[:3]) and not _is_quoted(line):
            return (
                lines[: number - 1] if number and set(lines[number - 1].strip()) == {"_"} else lines[:number]
            )
        if is_html and _WROTE.search(line) and number:
            return lines[: _attribution(lines, number)]
    return lines


def _without_trailing_quote(lines: list[str]) -> list[str]:
    end = len(lines)
    while end and (not lines[end - 1] or _is_quoted(lines[end - 1])):
        end -= 1
    if not any(_is_quoted(line) for line in lines[end:]):
        return lines[:end]
    return lines[: _attribution(lines, end - 1)] if end and _WROTE.search(lines[end - 1]) else lines[:end]


def _attribution(lines: list[str], last: int) -> int:
    """Where the sentence that introduces a quote begins; its last line is given."""
    first = last
    while first and last - first < _LONGEST_ATTRIBUTION - 1 and lines[first - 1].strip():
        first -= 1
        if re.match(r"\s*(on|am|le|el|il|em|op|den|w dniu)\b", lines[first], re.IGNORECASE):
            return first
    return last


def _without_signature(lines: list[str]) -> list[str]:
    for number in range(len(lines) - 1, -1, -1):
        if lines[number] in ("--", "-- "):
            return lines[:number]
    return lines


def _is_quoted(line: str) -> bool:
    return line.lstrip().startswith(">")
