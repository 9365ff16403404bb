"""`hobnob nodes`: the gateways that share this database. Paired devices are `hobnob node`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size

from hobnob.cli import connection, output
from hobnob.cli.connection import Connection
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson

app = typer.Typer(
    help="The gateways that share this database. Machines that offer commands: hobnob node.",
    no_args_is_help=True,
)

_SHORT_ID = 13
_POLL_S = 0.2
_MAX_COUNTED = 50  # clients of another gateway
Payload = dict[str, Any]
GatewayId = Annotated[
    str, typer.Argument(metavar="GATEWAY", help="Its name or its id; the beginning of the id is enough.")
]


@app.command("list")
@uses_gateway
def list_(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """List the gateways that share this database: which are alive, and what each does."""
    connection.require_running(endpoint)
    found = connection.call(endpoint, "gateways.list")
    if as_json:
        output.json(found)
        return
    _print_gateways(found["gateways"])
    if not found["shared"]:
        output.note("The store is an SQLite file: it has one gateway. For several see docs/scale.md.")


@app.command()
@uses_gateway
def drain(
    endpoint: Endpoint,
    gateway: GatewayId,
    off: Annotated[bool, typer.Option("--off", help="Let it start turns again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it runs no turn any more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a gateway start no new turns: others do. Turns that run there go on, and `/readyz` says 503."""
    connection.require_running(endpoint)

    async def act(client: Connection) -> Payload:
        done = await client.call("gateways.drain", gatewayId=gateway, on=not off)
        if wait and not off:
            if not as_json:
                output.note(f"{done['gateway']['name']} is drained. Waiting for its turns to end …")
            await _until_idle(client, done["gateway"])
        return done

    done = connection.run(endpoint, act)
    if as_json:
        output.json(done)
        return
    name = done["gateway"]["name"]
    if off:
        _print(f"The gateway {name} starts turns again.")
        return
    _print(
        f"The gateway {name} runs no turn any more." if wait else f"The gateway {name} starts no new turns."
    )
    if not done["others"]:
        output.note("No other gateway takes new turns: they wait until one does.")


@app.command()
@uses_gateway
def remove(
    endpoint: Endpoint,
    gateway: GatewayId,
    force: Annotated[
        bool, typer.Option("--force", help="Also while it is alive. Its turns start again elsewhere.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take a gateway for dead now, not 8 seconds after its last sign of life: others run its turns."""
    connection.require_running(endpoint)
    done = connection.call(endpoint, "gateways.remove", gatewayId=gateway, force=force)
    if as_json:
        output.json(done)
        return
    _print(
        f"The gateway {done['name']} is removed." if done["removed"] else f"{done['name']} was gone already."
    )
    if done["removed"] and done["wasAlive"]:
        output.note("If its process still runs, it joins again in a moment: stop it.")


@app.callback()
def _nodes() -> None:
    pass


async def _until_idle(client: Connection, drained: Payload) -> None:
    """Return when a gateway has told that it runs no turn, after it has heard that it is drained.

    It hears of that with its next beat, so the one after that counts. One that has left is idle.
    """
    beats = {drained["beatAt"]}
    while True:
        listed = (await client.call("gateways.list"))["gateways"]
        row = next((each for each in listed if each["gatewayId"] == drained["gatewayId"]), None)
        if row is None:
            return
        beats.add(row["beatAt"])
        if len(beats) > 2 and not row["runningTurns"]:
            return
        await asyncio.sleep(_POLL_S)


def _print_gateways(rows: list[Payload]) -> None:
    """Two lines for each, of which nothing is cut: names and addresses are for copying."""
    if not rows:
        return
    cells = [_cells(row) for row in rows]
    widths = [max(cell_len(row[column]) for row in cells) for column in range(len(cells[0]) - 1)]
    for row, (*first, url) in zip(rows, cells, strict=True):
        line = "  ".join(set_cell_size(cell, width) for cell, width in zip(first, widths, strict=True))
        _print(f"{line}  {url}".rstrip())
        more = [row["gatewayId"][:_SHORT_ID], f"process {row['pid']} on {row['host']}", row["version"]]
        more += [f"joined {output.ago(row['startedAt'])}", ", ".join(row["roles"])]
        output.console().print(f"  [dim]{output.escape('  '.join(filter(None, more)))}[/]", soft_wrap=True)


def _cells(row: Payload) -> tuple[str, ...]:
    many = "+" if not row["self"] and row["clients"] >= _MAX_COUNTED else ""
    silent = row["silentSeconds"]
    return (
        row["name"] + (" (this one)" if row["self"] else ""),
        row["state"] if silent is None else f"silent for {silent:.0f} s",
        f"{row['runningTurns']} turn{'' if row['runningTurns'] == 1 else 's'}",
        f"{row['clients']}{many} client{'' if row['clients'] == 1 else 's'}",
        row["url"] or "",
    )


def _print(message: str) -> None:
    output.console().print(output.escape(message), soft_wrap=True)
