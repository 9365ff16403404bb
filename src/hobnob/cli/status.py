"""`hobnob status`: whether a gateway is running, and what it runs."""

from __future__ import annotations

from typing import Any

import typer

from hobnob.cli import connection, output
from hobnob.cli.connection import Connection
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.errors import GatewayUnreachable


@uses_gateway
def status(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """Show whether the gateway is running, its agents, running turns and recent sessions."""
    try:
        located = connection.require_running(endpoint)
        found = connection.run(endpoint, _status) | {"url": located.url, "pid": located.pid}
    except GatewayUnreachable as down:
        if as_json:
            output.json({"up": False, "error": down.message, "fix": down.fix})
            raise typer.Exit(1) from None
        raise
    if as_json:
        output.json({"up": True, **found})
        return
    out = output.console()
    out.print(f"[green]●[/] Hobnob {found['version']} is up at [bold]{output.escape(found['url'])}[/]")
    out.print(f"  since {output.ago(found['startedAt'])}, {output.count(found['clients'])} connected")
    agents = ", ".join(found["agents"])
    out.print(f"  agents {output.escape(agents)}; model {output.escape(found['model'])}")
    running = found["runningTurns"]
    out.print(f"  {running or 'no'} turn{'' if running == 1 else 's'} running")
    _print_gateways(found.get("gateways", {}))
    for row in found["sessions"]["recent"]:
        out.print(
            f"  [dim]{output.ago(row['updatedAt']):>16}[/]  {output.escape(row['key'])}  {row['status']}"
        )


def _print_gateways(gateways: dict[str, Any]) -> None:
    """How many gateways share the database, if there are others."""
    silent, draining = gateways.get("silent", []), gateways.get("draining", [])
    if gateways.get("alive", 1) == 1 and not silent and not draining:
        return
    out = output.console()
    drained = f", {len(draining)} of them draining" if draining else ""
    out.print(f"  {output.number(gateways['alive'], 'gateway')} on this database{drained}; hobnob nodes list")
    if silent:
        out.print(f"  [yellow]![/] no sign of life from {output.escape(', '.join(silent))}")


async def _status(gateway: Connection) -> dict[str, Any]:
    found, health = await gateway.call("status"), await gateway.call("health")
    return found | {"startedAt": health["ts"] - health["uptimeMs"]}
