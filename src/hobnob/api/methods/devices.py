"""Devices: who asks to be let in, who was, and their tokens."""

from __future__ import annotations

from typing import Any

from hobnob.api.rpc import Call, Payload, method
from hobnob.store import devices
from hobnob.types import Device, DeviceState, now_ms


@method("device.pair.list", scope="operator.admin")
async def pair_list(call: Call) -> Payload:
    """The devices that wait to be approved, and those that were."""
    call.for_all_agents()
    found = await call.services.store.read(devices.page)

    def rows(state: DeviceState) -> list[Payload]:
        return [_row(device) for device in found if device.state == state]

    return {"pending": rows("pending"), "paired": rows("paired"), "revoked": rows("revoked")}


@method("device.pair.approve", scope="operator.admin")
async def pair_approve(call: Call, request_id: str) -> Payload:
    """Let a device in. It may do what the credential could that it showed."""
    call.for_all_agents()
    device = await call.services.store.write(devices.approve, request_id)
    return {"requestId": request_id, "device": _row(device)}


@method("device.pair.reject", scope="operator.admin")
async def pair_reject(call: Call, request_id: str) -> Payload:
    """Turn a request down. The device stays out until it is approved."""
    call.for_all_agents()
    device = await call.services.store.write(devices.reject, request_id)
    return {"requestId": request_id, "deviceId": device.device_id}


@method("device.pair.remove", scope="operator.admin")
async def pair_remove(call: Call, device_id: str) -> Payload:
    """Send a device away, now and for later."""
    return await _revoked(call, device_id, "the device was removed")


@method("device.token.revoke", scope="operator.admin")
async def token_revoke(call: Call, device_id: str, role: str | None = None) -> Payload:
    """The same: without its token a device is out."""
    return await _revoked(call, device_id, "the device's token was revoked")


@method("device.token.rotate", scope="operator.admin")
async def token_rotate(call: Call, device_id: str, role: str | None = None) -> Payload:
    """A new token for a device. Its connections are closed; it signs in again with the gateway's secret."""
    call.for_all_agents()
    device = await call.services.store.write(devices.rotate, device_id)
    closed = call.services.clients.close_device(device_id, "the device's token was rotated")
    return {
        "deviceId": device_id,
        "role": "operator",
        "token": call.services.devices.token(device),
        "closedConnections": closed,
        "rotatedAtMs": now_ms(),
    }


async def _revoked(call: Call, device_id: str, why: str) -> Payload:
    call.for_all_agents()
    await call.services.store.write(devices.rotate, device_id, revoke=True)
    closed = call.services.clients.close_device(device_id, why)
    return {"deviceId": device_id, "revokedAtMs": now_ms(), "closedConnections": closed}


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
