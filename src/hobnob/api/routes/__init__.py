"""The HTTP routes, in a file per noun. Importing this registers them."""

from __future__ import annotations

from hobnob.api.routes import gateway, sessions

__all__ = ["gateway", "sessions"]
