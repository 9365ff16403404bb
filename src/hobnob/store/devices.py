"""Verbs on devices: clients that prove who they are by a key of their own."""

from __future__ import annotations

from dataclasses import replace

from hobnob.errors import NotFound
from hobnob.store.engine.tx import Tx
from hobnob.types import Device, now_ms

PENDING = 20  # requests under one credential that are kept; the oldest make room
LISTED = 500


def find(tx: Tx, device_id: str) -> Device | None:
    return tx.get(Device, "device_get", device_id=device_id)


def page(tx: Tx) -> list[Device]:
    """All of them, newest first."""
    return tx.all(Device, "devices_list", limit=LISTED)


def ask(tx: Tx, device: Device) -> Device:
    """Note that a device wants to come in. One that asks again keeps its request."""
    known = find(tx, device.device_id)
    if known is not None and known.state == "pending":
        device = replace(device, request_id=known.request_id, created_at_ms=known.created_at_ms)
    if known is not None:  # its tokens of before stay void
        device = replace(device, generation=known.generation, paired_at_ms=known.paired_at_ms)
    tx.put("device_save", device)
    tx.run("devices_crowd", limit=PENDING, credential=device.credential)
    return device


def pair(tx: Tx, device: Device) -> Device:
    """Let a device in."""
    paired = replace(device, state="paired", paired_at_ms=now_ms())
    tx.put("device_save", paired)
    return paired


def approve(tx: Tx, request_id: str) -> Device:
    """Let in the device that made a request."""
    return pair(tx, _waiting(tx, request_id))


def reject(tx: Tx, request_id: str) -> Device:
    """Turn a request down."""
    refused = replace(_waiting(tx, request_id), state="revoked")
    tx.put("device_save", refused)
    return refused


def _waiting(tx: Tx, request_id: str) -> Device:
    device = tx.get(Device, "device_by_request", request_id=request_id)
    if device is None or device.state != "pending":
        why = f"No device waits under the request {request_id}."
        raise NotFound(why, fix="`hobnob devices list` shows them.")
    return device


def seen(tx: Tx, device: Device) -> bool:
    """Note that a device signed in. False when it was sent away, or given another token, meanwhile."""
    now = {"device_id": device.device_id, "generation": device.generation, "now_ms": now_ms()}
    return bool(tx.run("device_seen", **now))


def rotate(tx: Tx, device_id: str, *, revoke: bool = False) -> Device:
    """Void the device's token. It gets a new one, unless it is to stay out."""
    device = get(tx, device_id)
    state = "revoked" if revoke else device.state
    changed = replace(device, generation=device.generation + 1, state=state)
    tx.put("device_save", changed)
    return changed


def get(tx: Tx, device_id: str) -> Device:
    device = find(tx, device_id)
    if device is None:
        raise NotFound(f"There is no device {device_id}.", fix="`hobnob devices list` shows them.")
    return device
