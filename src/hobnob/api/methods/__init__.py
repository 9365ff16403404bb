"""The RPC methods, in a file per noun. Importing this registers them."""

from __future__ import annotations

from hobnob.api.methods import chat, exchanges, gateway, policy, runs, sessions, subscriptions, traffic

__all__ = ["chat", "exchanges", "gateway", "policy", "runs", "sessions", "subscriptions", "traffic"]
