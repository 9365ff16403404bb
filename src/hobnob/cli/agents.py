"""`hobnob agents`: list the agents."""

from __future__ import annotations

import typer

from hobnob.cli import connection, output
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson

app = typer.Typer(help="The configured agents.", no_args_is_help=True)


@app.command("list")
@uses_gateway
def list_(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """List the agents and their models."""
    found = connection.call(endpoint, "agents.list")
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
