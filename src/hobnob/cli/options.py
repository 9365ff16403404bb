"""Options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="The configuration file; by default $HOBNOB_CONFIG, else hobnob.json5 in the state directory.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
