"""What commands print: tables for people, one JSON document for programs, errors for both."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import orjson
from rich.console import Console
from rich.markup import escape as escape
from rich.table import Table

from hobnob.errors import HobnobError

MARKS = {"ok": "[green]✓[/]", "warn": "[yellow]![/]", "fail": "[red]✗[/]"}


def console(*, stderr: bool = False) -> Console:
    """A terminal's own width; wide enough for long lines when the output goes elsewhere."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 200
    # No emoji: `agent:b:main` is a session, not a picture.
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=True, width=width)


def json(document: Any) -> None:
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    shown = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        shown.add_row(*(escape(cell) for cell in row))
    console().print(shown)


def error(problem: HobnobError) -> None:
    out = console(stderr=True)
    out.print(f"[red]error:[/] {escape(problem.message)}")
    if problem.fix:
        out.print(escape(problem.fix))
