"""Differences between two texts, in bounded time: the algorithm of the standard library can be cubic."""

from __future__ import annotations

_CONTEXT = 2
_MAX_LINES = 2_000  # that differ, of both texts together


def unified(before: str, after: str, before_name: str, after_name: str) -> list[str] | None:
    """The lines of a unified diff, without line ends; None when too many lines differ."""
    import difflib

    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    if len(old) + len(new) - 2 * (start + end) > _MAX_LINES:
        return None
    # What is the same at the beginning and at the end only costs time; some of it is shown as context.
    skipped, kept = max(start - _CONTEXT, 0), max(end - _CONTEXT, 0)
    old, new = old[skipped : len(old) - kept], new[skipped : len(new) - kept]
    lines = difflib.unified_diff(old, new, before_name, after_name, n=_CONTEXT, lineterm="")
    return [_shifted(line, skipped) if line.startswith("@@ ") else line.rstrip("\r\n") for line in lines]


def _common(old: list[str], new: list[str]) -> int:
    pairs = zip(old, new, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def _shifted(header: str, by: int) -> str:
    """The header of a hunk, `@@ -1,3 +1,4 @@`, with its line numbers moved."""
    fields = []
    for field in header.split(" ")[1:3]:
        first, comma, count = field[1:].partition(",")
        fields.append(f"{field[0]}{int(first) + by}{comma}{count}")
    return f"@@ {' '.join(fields)} @@"
