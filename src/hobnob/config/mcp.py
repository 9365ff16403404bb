"""Settings of MCP servers, whose tools agents may use."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from hobnob.config.fields import Section


class McpServer(Section):
    enabled: bool = True
    """Whether the server is used."""
    command: str | None = None
    """The program to start, for a server that talks over stdin and stdout."""
    args: list[str] = []
    """Arguments of the command."""
    env: dict[str, str] = {}
    """Environment variables of the command. It inherits only a few, such as `PATH` and `HOME`."""
    cwd: str | None = None
    """Working directory of the command."""
    url: str | None = None
    """The URL, for a server that talks over streamable HTTP."""
    headers: dict[str, str] = {}
    """HTTP headers of each request to the URL."""
    timeout_seconds: int = Field(60, ge=1, le=3600)
    """Time limit of a tool call."""
    connect_seconds: int = Field(10, ge=1, le=120)
    """How long a turn waits for the connection."""
    sandboxed: bool = False
    """Whether sandboxed sessions may use the server, which runs outside the sandbox."""

    @model_validator(mode="after")
    def _command_or_url(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("set either command or url")
        return self


class Mcp(Section):
    servers: dict[Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,23}$")], McpServer] = {}
    """MCP servers by name. Their tools are called `mcp__<name>__<tool>`."""
