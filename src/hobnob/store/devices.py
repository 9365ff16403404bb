"""Verbs on devices: clients that sign in with a key pair of their own."""

from __future__ import annotations

from hobnob.errors import NotFound
from hobnob.records import replace
from hobnob.store.engine.tx import Tx
from hobnob.types import Device, now_ms

MAX_PENDING = 20  # open requests per credential; the oldest are deleted
MAX_LISTED = 500


def find(tx: Tx, device_id: str) -> Device | None:
    return tx.get(Device, "device_get", device_id=device_id)


def page(tx: Tx) -> list[Device]:
    """The newest devices, newest first."""
    return tx.all(Device, "devices_list", limit=MAX_LISTED)


def ask(tx: Tx, device: Device) -> Device:
    """Save a pairing request. A device that asks again keeps its request id."""
    known = find(tx, device.device_id)
    if known is not None and known.state == "pending":
        device = replace(device, request_id=known.request_id, created_at_ms=known.created_at_ms)
    if known is not None:  # revoked tokens stay revoked
        device = replace(device, generation=known.generation, paired_at_ms=known.paired_at_ms)
    tx.put("device_save", device)
    tx.run("devices_crowd", limit=MAX_PENDING, credential=device.credential)
    return device


def pair(tx: Tx, device: Device) -> Device:
    """Pair a device: it may sign in."""
    paired = replace(device, state="paired", paired_at_ms=now_ms())
    tx.put("device_save", paired)
    return paired


def approve(tx: Tx, request_id: str) -> Device:
    """Pair the device of an open request. Raises NotFound."""
    return pair(tx, _pending(tx, request_id))


def reject(tx: Tx, request_id: str) -> Device:
    """Reject an open request; the device cannot sign in. Raises NotFound."""
    refused = replace(_pending(tx, request_id), state="revoked")
    tx.put("device_save", refused)
    return refused


def _pending(tx: Tx, request_id: str) -> Device:
    device = tx.get(Device, "device_by_request", request_id=request_id)
    if device is None or device.state != "pending":
        message = f"There is no open pairing request {request_id}."
        raise NotFound(message, fix="`hobnob devices list` shows the open requests.")
    return device


def seen(tx: Tx, device: Device) -> bool:
    """Save the time of a sign-in. False when the device was revoked or its token rotated meanwhile."""
    params = {"device_id": device.device_id, "generation": device.generation, "now_ms": now_ms()}
    return bool(tx.run("device_seen", **params))


def rotate(tx: Tx, device_id: str, *, revoke: bool = False) -> Device:
    """Replace the device's token; with `revoke`, revoke the device as well. Raises NotFound."""
    device = get(tx, device_id)
    state = "revoked" if revoke else device.state
    changed = replace(device, generation=device.generation + 1, state=state)
    tx.put("device_save", changed)
    return changed


def get(tx: Tx, device_id: str) -> Device:
    device = find(tx, device_id)
    if device is None:
        raise NotFound(f"There is no device {device_id}.", fix="`hobnob devices list` shows the devices.")
    return device
