"""`hobnob config`: the settings in effect and where each comes from."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
import typer

from hobnob import config as settings
from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile

app = typer.Typer(help="The settings in effect.", no_args_is_help=True)


@app.command()
def show(
    config: ConfigFile = None,
    as_json: AsJson = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are not defaults.")] = False,
) -> None:
    """Show every setting with its value and its source. Secrets are masked."""
    loaded = settings.load(config)
    rows = [
        {"path": path, "value": value, "origin": loaded.origin(path)}
        for path, value in settings.masked_leaves(loaded.settings)
    ]
    rows = [row for row in rows if not changed or row["origin"] != "default"]
    if as_json:
        output.json({"source": str(loaded.source) if loaded.source else None, "settings": rows})
        return
    where = output.escape(str(loaded.source or "no file: all defaults"))
    output.console().print(f"[bold]{where}[/]   (state directory {output.escape(str(loaded.home))})\n")
    output.table(
        ("setting", "value", "from"), ((row["path"], _text(row["value"]), row["origin"]) for row in rows)
    )


@app.callback()
def _config() -> None:
    pass


def _text(value: Any) -> str:
    return "(unset)" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
