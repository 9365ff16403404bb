"""Settings of external programs: harnesses over the Agent Client Protocol, and MCP servers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from hobnob.config.fields import AgentId, AgentIdOrAny, Section

PermissionMode = Literal["approve-reads", "approve-all", "deny-all"]


class Harness(Section):
    command: list[str] = Field(min_length=1)
    """The command line that starts the harness, as a list."""
    name: str | None = None
    """Display name."""
    env: dict[str, SecretStr] = {}
    """Environment variables, such as an API key. It inherits only a few, such as `HOME` and `PATH`."""
    home: str | None = None
    """`HOME` of the harness; unset means that of the user who runs Hobnob, with that user's logins."""
    workspace: str | None = None
    """Working directory; unset means the workspace of the agent that spawned it."""
    mode: str | None = None
    """The harness's session mode, by its own name; unset keeps its default, which may ask no permission."""
    session_tools: bool = False
    """Whether it gets the session tools, as an MCP server that acts as its own session."""


class Acp(Section):
    enabled: bool = True
    """Whether agents may spawn external harnesses."""
    default_agent: AgentId | None = None
    """The harness for a spawn that names none; unset means the only one configured."""
    allowed_agents: list[AgentIdOrAny] = []
    """When set, only these harnesses may run; `*` means any."""
    harnesses: dict[AgentId, Harness] = {}
    """The harnesses by id. An agent must not have the same id."""
    permission_mode: PermissionMode = "approve-reads"
    """The answer when a harness asks permission to use one of its tools."""
    max_concurrent_sessions: int = Field(4, ge=1)
    """Maximum number of harness turns that run at the same time."""

    def allows(self, harness: str) -> bool:
        """Whether `allowed_agents` permits the harness."""
        return not self.allowed_agents or bool(
            {"*", harness} & {name.strip() for name in self.allowed_agents}
        )


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
