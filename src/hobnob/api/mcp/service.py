"""What methods and the endpoint use of the MCP server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hobnob.api.mcp.access import McpAccess
from hobnob.api.mcp.calls import SessionCalls


@dataclass(slots=True)
class McpService:
    """Access, tools, and a hook that ends the open requests of a revoked grant."""

    access: McpAccess
    calls: SessionCalls
    on_revoked: Callable[[str], int] = lambda grant_id: 0
