"""`hobnob restore` and `hobnob upgrade-check`: put a backup in place; try a new version on a copy."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hobnob import __version__, statedir
from hobnob import config as settings
from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.errors import BadConfig, HobnobError, NotFound, StoreCorrupt
from hobnob.store import sqlite_path
from hobnob.store.engine import sqlite_file, statements

_SUFFIXES = ("", "-wal", "-shm")


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `hobnob backup` wrote.")],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the place of the store. The store that is there is kept beside it.

    No gateway may be running. The backup is checked first, and stays as it is.
    """
    path, source = sqlite_path(settings.load(config).store_url), file.absolute()
    if not source.exists():
        raise NotFound(f"There is no file {file}.")
    if damage := sqlite_file.integrity(source):
        raise StoreCorrupt(f"{file} is damaged: {damage[0]}.", fix="Use another backup.")
    statedir.private_dir(path.parent)
    with sqlite_file.lock_file(path):  # raises StoreInUse while a gateway is running
        fresh = path.with_name(f".{path.name}.{os.getpid()}.restored")
        try:
            size = sqlite_file.backup(source, fresh)
            kept = _set_aside(path)
            fresh.rename(path)
        finally:
            fresh.unlink(missing_ok=True)
    if as_json:
        output.json({"store": str(path), "bytes": size, "kept": str(kept) if kept else None})
        return
    out = output.console()
    out.print(output.escape(f"Restored {path} from {file} ({size:,} bytes)."))
    if kept:
        out.print(output.escape(f"The store that was there is now {kept}."))


def _set_aside(path: Path) -> Path | None:
    """Rename the store with its journal. Returns its new name, None when there was none."""
    if not path.exists():
        return None
    kept = path.with_name(f"{path.name}.before-restore-{time.strftime('%Y%m%d-%H%M%S')}")
    for suffix in _SUFFIXES:
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(kept.with_name(kept.name + suffix))
    return kept


def upgrade_check(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check whether this version can take over the store and the settings, without changing them.

    The migrations that are missing are tried on a copy of the store, also while a gateway is running.
    Exits with 1 when something is in the way.
    """
    report: dict[str, Any] = {"version": __version__, "problems": []}
    try:
        loaded = settings.load(config)
    except BadConfig as problem:
        report["problems"] += [f"{p.path}: {p.message}" if p.path else p.message for p in problem.problems]
        _print(report, as_json)
        raise typer.Exit(1) from None
    report["renamed"] = [f"{path}: {note}" for path, note in loaded.renamed]
    report["ignored"] = [f"{path}: {note}" for path, note in loaded.ignored]
    try:
        report |= _try_migrations(sqlite_path(loaded.store_url))
    except HobnobError as problem:
        report["problems"].append(f"{problem.message} {problem.fix or ''}".strip())
    _print(report, as_json)
    raise typer.Exit(1 if report["problems"] else 0)


def _try_migrations(path: Path) -> dict[str, Any]:
    """What the migrations of this version do to a copy of the store. Raises StoreError."""
    if not path.exists():
        return {"store": None, "pending": []}
    if damage := sqlite_file.integrity(path):
        raise StoreCorrupt(f"{path} is damaged: {damage[0]}.", fix="Restore a backup: hobnob restore FILE")
    known = {number: name for number, name, _ in statements.migrations("sqlite")}
    with tempfile.TemporaryDirectory(prefix="hobnob-upgrade-") as folder:
        copy = Path(folder, "hobnob.db")
        size = sqlite_file.backup(path, copy)
        pending = [name for number, name in known.items() if number not in sqlite_file.applied(copy)]
        began = time.monotonic()
        sqlite_file.open_file(copy).close()
        taken = time.monotonic() - began
        after = sqlite_file.integrity(copy)
    report: dict[str, Any] = {"store": str(path), "bytes": size, "pending": pending}
    if after:
        raise StoreCorrupt(f"The migrated copy of the store is damaged: {after[0]}.")
    return report | {"seconds": round(taken, 3)}


def _print(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.json(report | {"ok": not report["problems"]})
        return
    out = output.console()
    for problem in report["problems"]:
        out.print(f"✗ {output.escape(problem)}")
    for note in (*report.get("renamed", ()), *report.get("ignored", ())):
        out.print(f"! {output.escape(note)}")
    if pending := report.get("pending"):
        names = f"{len(pending)} migrations would run ({', '.join(pending)})"
        out.print(output.escape(f"✓ {names}; on a copy: {report['seconds']} s."))
    elif not report["problems"]:
        out.print("✓ The store needs no migration.")
    if not report["problems"]:
        out.print(f"Hobnob {report['version']} can take over. Back up first: hobnob backup FILE")
