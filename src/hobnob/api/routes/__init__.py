"""The HTTP routes, in a file per noun. Importing this registers them."""

from __future__ import annotations

from hobnob.api.routes import gateway, page, sessions

__all__ = ["gateway", "page", "sessions"]
