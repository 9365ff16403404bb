"""Settings of MCP servers, whose tools agents may use."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from hobnob.config.fields import Section


class McpServer(Section):
    enabled: bool = True
    """Use this server."""
    command: str | None = None
    """The program to start, for a server that speaks over its input and output."""
    args: list[str] = []
    """Its arguments."""
    env: dict[str, str] = {}
    """Variables for it, on top of a few of ours (PATH, HOME and the like)."""
    cwd: str | None = None
    """The folder to start it in."""
    url: str | None = None
    """The address of a server that speaks streamable HTTP."""
    headers: dict[str, str] = {}
    """Headers of each request to that address."""
    timeout_seconds: int = Field(60, ge=1, le=3600)
    """Longest call of a tool."""
    connect_seconds: int = Field(10, ge=1, le=120)
    """Longest a turn waits for the server to be there."""
    sandboxed: bool = False
    """Let sandboxed sessions use it as well. It runs outside the sandbox."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command or url")
        return self


class Mcp(Section):
    servers: dict[Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,23}$")], McpServer] = {}
    """MCP servers, by name. Their tools are called `mcp__<name>__<tool>`."""
