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
    for row in found["sessions"]["recent"]:
        out.print(
            f"  [dim]{output.ago(row['updatedAt']):>16}[/]  {output.escape(row['key'])}  {row['status']}"
        )


async def _status(gateway: Connection) -> dict[str, Any]:
    found, health = await gateway.call("status"), await gateway.call("health")
    return found | {"startedAt": health["ts"] - health["uptimeMs"]}
