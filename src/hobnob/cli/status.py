"""`hobnob status`: whether a gateway is running, and what it runs."""

from __future__ import annotations

import asyncio
from typing import Any

import typer

from hobnob import config as settings
from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.config import Config
from hobnob.errors import GatewayUnreachable


def status(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show whether the gateway is running, its agents, running turns and recent sessions."""
    loaded = settings.load(config)
    try:
        found = asyncio.run(_status(loaded))
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


async def _status(loaded: Config) -> dict[str, Any]:
    from hobnob.api.auth import owner_token
    from hobnob.api.server import read_address_file
    from hobnob.client import open_client
    from hobnob.store import sqlite_path
    from hobnob.store.engine import sqlite_file

    pid = sqlite_file.holder(sqlite_path(loaded.store_url))
    url = read_address_file(loaded.home, pid) if pid else None
    if url is None:
        raise GatewayUnreachable("No gateway is running.", fix="Start one with `hobnob serve`.")
    async with open_client(url, owner_token(loaded)) as client:
        found = await client.call("status")
        health = await client.call("health")
    return found | {"url": url, "pid": pid, "startedAt": health["ts"] - health["uptimeMs"]}
