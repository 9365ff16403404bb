"""Methods on devices: pairing requests, paired devices, and their tokens."""

from __future__ import annotations

from typing import Any

from hobnob.api.rpc import Call, Payload, method
from hobnob.types import Device, DeviceState, now_ms


@method("device.pair.list", scope="operator.pairing")
async def pair_list(call: Call) -> Payload:
    """Pending, paired and revoked devices."""
    call.require_all_agents()
    found = await call.services.devices.all()

    def rows(state: DeviceState) -> list[Payload]:
        return [_row(device) for device in found if device.state == state]

    return {"pending": rows("pending"), "paired": rows("paired"), "revoked": rows("revoked")}


@method("device.pair.approve", scope="operator.pairing")
async def pair_approve(call: Call, request_id: str) -> Payload:
    """Approve a device. It gets the rights of the credential it signed in with."""
    call.require_all_agents()
    device = await call.services.devices.approve(request_id)
    return {"requestId": request_id, "device": _row(device)}


@method("device.pair.reject", scope="operator.pairing")
async def pair_reject(call: Call, request_id: str) -> Payload:
    """Reject a pairing request. The device stays out until it is approved."""
    call.require_all_agents()
    device = await call.services.devices.reject(request_id)
    return {"requestId": request_id, "deviceId": device.device_id}


@method("device.pair.remove", scope="operator.pairing")
async def pair_remove(call: Call, device_id: str) -> Payload:
    """Revoke a device and close its connections."""
    return await _revoke(call, device_id, "the device was removed")


@method("device.token.revoke", scope="operator.pairing")
async def token_revoke(call: Call, device_id: str, role: str | None = None) -> Payload:
    """The same as device.pair.remove."""
    return await _revoke(call, device_id, "the device's token was revoked")


@method("device.token.rotate", scope="operator.pairing")
async def token_rotate(call: Call, device_id: str, role: str | None = None) -> Payload:
    """Issue a new token for a device and close its connections. It signs in with the gateway's secret."""
    call.require_all_agents()
    device = await call.services.devices.rotate(device_id)
    closed = _close(call, device_id, "the device's token was rotated")
    return {
        "deviceId": device_id,
        "role": "operator",
        "token": call.services.devices.token(device),
        "closedConnections": closed,
        "rotatedAtMs": now_ms(),
    }


async def _revoke(call: Call, device_id: str, reason: str) -> Payload:
    call.require_all_agents()
    await call.services.devices.revoke(device_id)
    closed = _close(call, device_id, reason)
    return {"deviceId": device_id, "revokedAtMs": now_ms(), "closedConnections": closed}


def _close(call: Call, device_id: str, reason: str) -> int:
    """Close the connections of a device, also those to other gateways. Returns how many were closed here."""
    call.services.cluster.tell("device", [device_id, reason])
    return call.services.clients.close_device(device_id, reason)


def _row(device: Device) -> Payload:
    row: dict[str, Any] = {
        "deviceId": device.device_id,
        "displayName": device.name or None,
        "platform": device.platform or None,
        "remoteIp": device.address or None,
        "role": "operator",
        "credential": device.credential,
        "createdAtMs": device.created_at_ms,
        "approvedAtMs": device.paired_at_ms,
        "lastSeenAtMs": device.seen_at_ms,
    }
    if device.state == "pending":
        row |= {"requestId": device.request_id, "ts": device.created_at_ms}
    return {name: value for name, value in row.items() if value is not None}
