"""`hobnob devices`: pair and remove clients that sign in with their own key."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hobnob.cli import connection, output
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.errors import BadInput

app = typer.Typer(help="Clients that sign in with their own key.", no_args_is_help=True)

_SHORT_ID = 12
DeviceId = Annotated[str, typer.Argument(metavar="DEVICE", help="Its id; the beginning is enough.")]
RequestId = Annotated[str, typer.Argument(metavar="REQUEST", help="As `hobnob devices list` shows it.")]


@app.command("list")
@uses_gateway
def list_(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """List the pending, paired and revoked devices."""
    found = connection.call(endpoint, "device.pair.list")
    if as_json:
        output.json(found)
        return
    rows = [
        (
            state,
            device["deviceId"][:_SHORT_ID],
            device.get("displayName", ""),
            device.get("remoteIp", ""),
            _when(device),
        )
        for state in ("pending", "paired", "revoked")
        for device in found[state]
    ]
    if not rows:
        output.note("No device has asked for pairing yet.")
        return
    output.table(("state", "device", "name", "from", "since"), rows)
    for device in found["pending"]:
        output.note(
            f"To approve {device['deviceId'][:_SHORT_ID]}: hobnob devices approve {device['requestId']}"
        )


@app.command()
@uses_gateway
def approve(endpoint: Endpoint, request: RequestId, as_json: AsJson = False) -> None:
    """Approve a pending device."""
    done = connection.call(endpoint, "device.pair.approve", requestId=request)
    _done(done, as_json, f"The device {done['device']['deviceId'][:_SHORT_ID]} is approved.")


@app.command()
@uses_gateway
def reject(endpoint: Endpoint, request: RequestId, as_json: AsJson = False) -> None:
    """Reject a pending device."""
    done = connection.call(endpoint, "device.pair.reject", requestId=request)
    _done(done, as_json, f"The device {done['deviceId'][:_SHORT_ID]} is rejected.")


@app.command()
@uses_gateway
def rotate(endpoint: Endpoint, device: DeviceId, as_json: AsJson = False) -> None:
    """Give a device a new token and close its connections."""
    done = _call(endpoint, "device.token.rotate", device)
    _done(done, as_json, f"The device has a new token. Connections closed: {done['closedConnections']}.")


@app.command()
@uses_gateway
def remove(endpoint: Endpoint, device: DeviceId, as_json: AsJson = False) -> None:
    """Revoke a device. It cannot connect until it is approved again."""
    done = _call(endpoint, "device.pair.remove", device)
    _done(done, as_json, f"The device is revoked. Connections closed: {done['closedConnections']}.")


@app.callback()
def _devices() -> None:
    pass


def _call(endpoint: Endpoint, method: str, device: str) -> dict[str, Any]:
    listed = connection.call(endpoint, "device.pair.list")
    ids = [row["deviceId"] for state in ("pending", "paired", "revoked") for row in listed[state]]
    matches = [known for known in ids if known.startswith(device.lower())]
    if len(matches) != 1:
        problem = "No device id begins" if not matches else "More than one device id begins"
        raise BadInput(f"{problem} with {device}.", fix="`hobnob devices list` shows the ids.")
    return connection.call(endpoint, method, deviceId=matches[0])


def _when(device: dict[str, Any]) -> str:
    return output.ago(device.get("approvedAtMs") or device["createdAtMs"])


def _done(document: Any, as_json: bool, message: str) -> None:
    if as_json:
        output.json(document)
    else:
        output.console().print(output.escape(message))
