"""The RPC methods, in a file per noun. Importing this registers them."""

from __future__ import annotations

from hobnob.api.methods import (
    approvals,
    chat,
    devices,
    exchanges,
    gateway,
    policy,
    runs,
    sessions,
    subscriptions,
    tools,
    traffic,
)

__all__ = [
    "approvals",
    "chat",
    "devices",
    "exchanges",
    "gateway",
    "policy",
    "runs",
    "sessions",
    "subscriptions",
    "tools",
    "traffic",
]
