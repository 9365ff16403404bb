"""Runs the benchmarks and prints one table. Exits with 1 when a budget is missed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import Figure

SCRIPTS = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))


def main(chosen: list[str]) -> int:
    figures: list[Figure] = []
    for name in chosen or SCRIPTS:
        print(f"{name} …", file=sys.stderr, flush=True)
        figures += importlib.import_module(f"bench.{name}").run()
    table = Table("figure", "value", "floor", "ratio", "budget", "")
    for f in figures:
        table.add_row(
            f.name, f.value, f.floor, f"{f.ratio:.2f}", f.budget, "ok" if f.holds else "[red]MISSED"
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    return 0 if all(f.holds for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
