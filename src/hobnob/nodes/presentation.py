"""Nodes as clients see them."""

from __future__ import annotations

from typing import Any

import orjson

from hobnob.config import Settings
from hobnob.node_types import Node, Surface
from hobnob.nodes import surface

Row = dict[str, Any]


def node_row(settings: Settings, node: Node, connected_at_ms: int | None) -> Row:
    """A node of `node.list`. `connected_at_ms` is None unless it is connected."""
    usable = surface.effective(settings, node)
    row = _identity(node) | {
        "caps": usable.caps,
        "commands": usable.commands,
        "sessionHost": False,
        "nodePluginTools": [],
        "approvalState": "pending-approval" if node.request_id else node.state,
        "paired": node.state == "approved",
        "connected": connected_at_ms is not None,
        "connectedAtMs": connected_at_ms,
        "pendingRequestId": node.request_id,
        "pendingDeclaredCommands": list(node.declared_surface.commands) if node.request_id else None,
        "remoteIp": node.address or None,
    }
    return _given(row | _times(node, connected_at_ms))


def request_row(node: Node) -> Row:
    """An open request of `node.pair.list`, and of the event `node.pair.requested`."""
    wanted = node.declared_surface
    row = _identity(node) | {
        "requestId": node.request_id,
        "caps": wanted.caps,
        "commands": wanted.commands,
        "newCommands": new_commands(node) if node.state == "approved" else None,
        "requiredApproveScopes": surface.approve_scopes(wanted),
        "remoteIp": node.address or None,
        "silent": False,
        "ts": node.requested_at_ms,
    }
    return _given(row)


def paired_row(node: Node, connected_at_ms: int | None) -> Row:
    """An approved node of `node.pair.list`."""
    approved: Surface = node.approved_surface
    row = _identity(node) | {"caps": approved.caps, "commands": approved.commands}
    return _given(row | {"createdAtMs": node.created_at_ms} | _times(node, connected_at_ms))


def new_commands(node: Node) -> list[str]:
    """What the open request of a node adds to what is approved."""
    known = node.approved_surface.commands
    return [name for name in node.declared_surface.commands if name not in known]


def _identity(node: Node) -> Row:
    return {"nodeId": node.node_id, "displayName": node.shown_name, **orjson.loads(node.facts)}


def _times(node: Node, connected_at_ms: int | None) -> Row:
    seen = max(node.connected_at_ms or 0, node.disconnected_at_ms or 0) or None
    return {
        "approvedAtMs": node.approved_at_ms,
        "lastConnectedAtMs": node.connected_at_ms,
        "lastDisconnectedAtMs": node.disconnected_at_ms,
        "lastSeenAtMs": seen,
        "lastSeenReason": ("connect" if connected_at_ms else "disconnect") if seen else None,
    }


def _given(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}
