"""`hobnob backup`: copy the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hobnob import config as settings
from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.errors import NotFound
from hobnob.store import sqlite_path
from hobnob.store.engine import sqlite_file


def backup(
    file: Annotated[Path, typer.Argument(help="The new file. It must not exist.")],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy the store into FILE, also while a gateway is running. `hobnob restore FILE` puts it in place."""
    path = sqlite_path(settings.load(config).store_url)
    if not path.exists():
        raise NotFound(f"There is no store at {path} yet.", fix="It is created when Hobnob is first used.")
    size = sqlite_file.backup(path, file.absolute())
    if as_json:
        output.json({"file": str(file.absolute()), "bytes": size})
    else:
        output.console().print(output.escape(f"Copied {path} to {file} ({size:,} bytes)."))
