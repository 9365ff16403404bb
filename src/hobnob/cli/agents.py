"""`hobnob agents`: list the agents."""

from __future__ import annotations

import typer

from hobnob import config as settings
from hobnob.cli import connection, output
from hobnob.cli.options import AsJson, ConfigFile

app = typer.Typer(help="The configured agents.", no_args_is_help=True)


@app.command("list")
def list_(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the agents and their models."""
    found = connection.call(settings.load(config), "agents.list")
    if as_json:
        output.json(found)
        return
    rows = [
        (
            agent["id"] + (" (default)" if agent["id"] == found["defaultId"] else ""),
            agent.get("name", ""),
            agent["model"]["primary"],
        )
        for agent in found["agents"]
    ]
    output.table(("agent", "name", "model"), rows)


@app.callback()
def _agents() -> None:
    pass
