"""The HTTP routes, in a module per noun. Importing this package registers them."""

from __future__ import annotations

from hobnob.api.routes import (
    channels,
    gateway,
    hooks,
    metrics,
    openai,
    openapi,
    page,
    responses,
    sessions,
    tools,
)

__all__ = [
    "channels",
    "gateway",
    "hooks",
    "metrics",
    "openai",
    "openapi",
    "page",
    "responses",
    "sessions",
    "tools",
]
