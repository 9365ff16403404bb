"""The RPC methods, one file per noun. Importing this package registers them."""

from __future__ import annotations

from hobnob.api.methods import (
    approvals,
    channels,
    chat,
    config,
    costs,
    cron,
    devices,
    exchanges,
    gateway,
    gateways,
    logins,
    mcp,
    nodes,
    policy,
    runs,
    sessions,
    subscriptions,
    tools,
)

__all__ = [
    "approvals",
    "channels",
    "chat",
    "config",
    "costs",
    "cron",
    "devices",
    "exchanges",
    "gateway",
    "gateways",
    "logins",
    "mcp",
    "nodes",
    "policy",
    "runs",
    "sessions",
    "subscriptions",
    "tools",
]
