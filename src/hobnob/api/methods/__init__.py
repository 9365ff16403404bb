"""The RPC methods, one file per noun. Importing this package registers them."""

from __future__ import annotations

from hobnob.api.methods import (
    approvals,
    chat,
    config,
    cron,
    devices,
    exchanges,
    gateway,
    policy,
    runs,
    sessions,
    subscriptions,
    tools,
)

__all__ = [
    "approvals",
    "chat",
    "config",
    "cron",
    "devices",
    "exchanges",
    "gateway",
    "policy",
    "runs",
    "sessions",
    "subscriptions",
    "tools",
]
