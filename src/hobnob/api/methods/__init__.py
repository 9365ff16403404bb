"""The RPC methods, in a file per noun. Importing this registers them."""

from __future__ import annotations

from hobnob.api.methods import approvals, chat, exchanges, gateway, runs, sessions, tools

__all__ = ["approvals", "chat", "exchanges", "gateway", "runs", "sessions", "tools"]
