"""Runs the benchmarks and prints one table. Exits with 1 when a budget is missed."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import Figure

SCRIPTS = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("script", nargs="*", metavar="SCRIPT", help=", ".join(SCRIPTS))
    parser.add_argument("--minutes", type=float, help="how long soak runs; 15 by default")
    chosen = parser.parse_args(arguments)
    figures: list[Figure] = []
    for name in chosen.script or SCRIPTS:
        print(f"{name} …", file=sys.stderr, flush=True)
        options = {"minutes": chosen.minutes} if name == "soak" and chosen.minutes else {}
        figures += importlib.import_module(f"bench.{name}").run(**options)
    table = Table("figure", "value", "floor", "ratio", "budget", "")
    for f in figures:
        table.add_row(
            f.name, f.value, f.floor, f"{f.ratio:.2f}", f.budget, "ok" if f.holds else "[red]MISSED"
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    return 0 if all(f.holds for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
