"""What commands print: tables for people, one JSON document for programs, errors for both."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import orjson
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape as escape
from rich.table import Table

from hobnob.errors import HobnobError, RpcFailed
from hobnob.types import now_ms

MARKS = {"ok": "[green]✓[/]", "warn": "[yellow]![/]", "fail": "[red]✗[/]"}
_WIDE = 200
_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_GAP = 2


def console(*, stderr: bool = False) -> Console:
    """A terminal's own width; wide enough for long lines when the output goes elsewhere."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE
    # No emoji: `agent:b:main` is a session, not a picture.
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=True, width=width)


def json(document: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    sys.stdout.buffer.flush()


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    shown = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        shown.add_row(*(escape(cell) for cell in row))
    console().print(shown)


def listing(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with keys in its first column, which are for copying: they are never cut or broken.

    A key that leaves no room for the rest has a line to itself. What is cut is the last column.
    """
    out = console()
    rows = [columns, *([clean(cell).replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(columns))]
    room = out.width if out.is_terminal else _WIDE
    beside = sum(widths[1:-1]) + min(widths[-1], 12) + _GAP * (len(columns) - 1)
    first = min(widths[0], max(room - beside, 12))
    last = max(room - first - sum(widths[1:-1]) - _GAP * (len(columns) - 1), 1)
    for number, row in enumerate(rows):
        rest = [set_cell_size(cell, width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        line = (" " * _GAP).join([*rest, cut(row[-1], last)])
        style = ("[bold]", "[bold]") if number == 0 else ("", "[dim]")
        if cell_len(row[0]) > first:
            out.print(f"{style[0]}{escape(row[0])}")
            lead = " " * first
        else:
            lead = style[0] + escape(set_cell_size(row[0], first))
        out.print(f"{lead}{' ' * _GAP}{style[1]}{escape(line)}".rstrip(), overflow="ignore")


def clean(text: str) -> str:
    """Text of others without what a terminal would obey instead of showing."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def cut(text: str, width: int) -> str:
    """As much of a text as fits on one line."""
    text = " ".join(clean(text).split())
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)).rstrip() + "…"


def paragraph(text: str, indent: int, *, width: int | None = None) -> str:
    """Text of others, indented; on a terminal wrapped between words. Ready to be printed."""
    out = console()
    room = max((width or (out.width if out.is_terminal else 10**6)) - indent, 20)
    lines: list[str] = []
    for line in clean(text).expandtabs(4).splitlines() or [""]:
        lines += textwrap.wrap(line, room, break_long_words=False, break_on_hyphens=False) or [""]
    return escape(textwrap.indent("\n".join(lines), " " * indent))


def ago(at_ms: int) -> str:
    """How long ago, in a word; a date when that says more."""
    seconds = max(now_ms() - at_ms, 0) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 30 * 86_400:
            return f"{datetime.fromtimestamp(at_ms / 1000):%Y-%m-%d}"
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago" if seconds >= 5 else "now"


def count(number: int) -> str:
    if number < 1_000:
        return str(number)
    return f"{number / 1_000:.1f}k" if number < 1_000_000 else f"{number / 1_000_000:.1f}M"


def number(many: int, one: str) -> str:
    """`1 session`, `2 sessions`."""
    return f"{many:,} {one}" + ("" if many == 1 else "s")


def note(text: str) -> None:
    """Something to know beside the result, for people."""
    console(stderr=True).print(f"[dim]{escape(text)}[/]")


def left_over(exchanges: int) -> None:
    """Say what an agent set going in other sessions, and nobody is there to go on with."""
    if exchanges:
        note(f"{number(exchanges, 'exchange')} still under way: `hobnob serve` goes on with that.")


def error(problem: HobnobError) -> None:
    out = console(stderr=True)
    out.print(f"[red]error:[/] {escape(problem.message)}")
    if problem.fix:
        out.print(escape(problem.fix))


def exit_code(problem: HobnobError) -> int:
    """2 for what has to be written differently, 1 for what failed; the same with a gateway and without."""
    if isinstance(problem, RpcFailed):
        return next((kind.exit_code for kind in _kinds(HobnobError) if kind.code == problem.reason), 1)
    return problem.exit_code


def _kinds(kind: type[HobnobError]) -> Iterable[type[HobnobError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)
