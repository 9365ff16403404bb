"""Output of commands: tables and notes for people, JSON for programs, errors with exit codes."""

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
_PIPE_WIDTH = 200
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_GAP = 2


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; in a pipe, wide enough for long lines."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    # No emoji: Rich would replace the `:b:` in `agent:b:main`.
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=True, width=width)


def json(document: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    sys.stdout.buffer.flush()


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    grid = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*(escape(cell) for cell in row))
    console().print(grid)


def listing(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with session keys in its first column. Keys are for copying, so they are never cut.

    A key that leaves no room for the other columns gets its own line. Only the last column is cut.
    """
    out = console()
    rows = [columns, *([clean(cell).replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(columns))]
    width = out.width if out.is_terminal else _PIPE_WIDTH
    other_columns = sum(widths[1:-1]) + min(widths[-1], 12) + _GAP * (len(columns) - 1)
    first = min(widths[0], max(width - other_columns, 12))
    last = max(width - first - sum(widths[1:-1]) - _GAP * (len(columns) - 1), 1)
    for number, row in enumerate(rows):
        rest = [set_cell_size(cell, size) for cell, size in zip(row[1:-1], widths[1:-1], strict=True)]
        line = (" " * _GAP).join([*rest, cut(row[-1], last)])
        style = ("[bold]", "[bold]") if number == 0 else ("", "[dim]")
        if cell_len(row[0]) > first:
            out.print(f"{style[0]}{escape(row[0])}")
            lead = " " * first
        else:
            lead = style[0] + escape(set_cell_size(row[0], first))
        out.print(f"{lead}{' ' * _GAP}{style[1]}{escape(line)}".rstrip(), overflow="ignore")


def clean(text: str) -> str:
    """Untrusted text with control characters replaced, which a terminal would execute."""
    return _CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def cut(text: str, width: int) -> str:
    """A text on one line, cut to a width."""
    text = " ".join(clean(text).split())
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)).rstrip() + "…"


def paragraph(text: str, indent: int, *, width: int | None = None) -> str:
    """Untrusted text as markup: cleaned, escaped, indented, and wrapped on a terminal."""
    out = console()
    line_width = max((width or (out.width if out.is_terminal else 10**6)) - indent, 20)
    lines: list[str] = []
    for line in clean(text).expandtabs(4).splitlines() or [""]:
        lines += textwrap.wrap(line, line_width, break_long_words=False, break_on_hyphens=False) or [""]
    return escape(textwrap.indent("\n".join(lines), " " * indent))


def ago(at_ms: int) -> str:
    """A time as `5m ago`; as a date after 30 days."""
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


def number(count: int, noun: str) -> str:
    """`1 session`, `2 sessions`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def note(text: str) -> None:
    """Print a hint for people to stderr."""
    console(stderr=True).print(f"[dim]{escape(text)}[/]")


def note_open_exchanges(exchanges: int) -> None:
    """Report exchanges that stay open because no gateway runs them."""
    if exchanges:
        note(f"{number(exchanges, 'exchange')} still open. To continue: hobnob serve")


def error(problem: HobnobError) -> None:
    out = console(stderr=True)
    out.print(f"[red]error:[/] {escape(problem.message)}")
    if problem.fix:
        out.print(escape(problem.fix))


def exit_code(problem: HobnobError) -> int:
    """2 for wrong input, 1 for a failure; the same with a remote and a local gateway."""
    if isinstance(problem, RpcFailed):
        return next((kind.exit_code for kind in _subclasses(HobnobError) if kind.code == problem.reason), 1)
    return problem.exit_code


def _subclasses(kind: type[HobnobError]) -> Iterable[type[HobnobError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _subclasses(subclass)
