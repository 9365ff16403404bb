"""`hobnob devices`: which clients may come in by a key of their own."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hobnob import config as settings
from hobnob.cli import output, reach
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.errors import BadInput

app = typer.Typer(help="Clients that sign in with a key of their own.", no_args_is_help=True)

_SHORT = 12
DeviceId = Annotated[str, typer.Argument(metavar="DEVICE", help="Its id; the beginning is enough.")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="As `hobnob devices list` shows it.")]


@app.command("list")
def list_(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the devices that wait to be approved, and those that were."""
    found = reach.ask(settings.load(config), "device.pair.list")
    if as_json:
        output.json(found)
        return
    rows = [
        (
            state,
            device["deviceId"][:_SHORT],
            device.get("displayName", ""),
            device.get("remoteIp", ""),
            _when(device),
        )
        for state in ("pending", "paired", "revoked")
        for device in found[state]
    ]
    if not rows:
        output.note("No device has signed in with a key of its own yet.")
        return
    output.table(("state", "device", "name", "from", "since"), rows)
    for device in found["pending"]:
        output.note(f"To let {device['deviceId'][:_SHORT]} in: hobnob devices approve {device['requestId']}")


@app.command()
def approve(request: RequestId, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Let a device in that waits."""
    done = reach.ask(settings.load(config), "device.pair.approve", requestId=request)
    _said(done, as_json, f"The device {done['device']['deviceId'][:_SHORT]} may come in now.")


@app.command()
def reject(request: RequestId, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Turn a device down that waits."""
    done = reach.ask(settings.load(config), "device.pair.reject", requestId=request)
    _said(done, as_json, f"The device {done['deviceId'][:_SHORT]} stays out.")


@app.command()
def rotate(device: DeviceId, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Give a device a new token and close its connections."""
    done = _asked(config, "device.token.rotate", device)
    _said(done, as_json, f"The device has a new token. Connections closed: {done['closedConnections']}.")


@app.command()
def remove(device: DeviceId, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Send a device away. It stays out until it is approved again."""
    done = _asked(config, "device.pair.remove", device)
    _said(done, as_json, f"The device is out. Connections closed: {done['closedConnections']}.")


@app.callback()
def _devices() -> None:
    pass


def _asked(config: Any, method: str, device: str) -> dict[str, Any]:
    loaded = settings.load(config)
    listed = reach.ask(loaded, "device.pair.list")
    ids = [row["deviceId"] for state in ("pending", "paired", "revoked") for row in listed[state]]
    fitting = [known for known in ids if known.startswith(device.lower())]
    if len(fitting) != 1:
        why = "No device begins" if not fitting else "More than one device begins"
        raise BadInput(f"{why} with {device}.", fix="`hobnob devices list` shows them.")
    return reach.ask(loaded, method, deviceId=fitting[0])


def _when(device: dict[str, Any]) -> str:
    return output.ago(device.get("approvedAtMs") or device["createdAtMs"])


def _said(document: Any, as_json: bool, said: str) -> None:
    if as_json:
        output.json(document)
    else:
        output.console().print(output.escape(said))
