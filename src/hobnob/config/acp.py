"""Settings of external harnesses, which are run over the Agent Client Protocol."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from hobnob.config.fields import AgentId, AgentIdOrAny, Section

PermissionMode = Literal["approve-reads", "approve-all", "deny-all"]


class Harness(Section):
    command: list[str] = Field(min_length=1)
    """The program and its arguments."""
    name: str | None = None
    """The name people see."""
    env: dict[str, SecretStr] = {}
    """Environment variables for it, such as an API key. Of ours it gets only `HOME`, `PATH` and the like."""
    home: str | None = None
    """Its `HOME`; unset means that of the user who runs Hobnob, with that user's logins."""
    workspace: str | None = None
    """The folder it works in; unset means the workspace of the agent that asked."""
    mode: str | None = None
    """The mode it is put into, in its own word; unset leaves its default, which may ask nobody."""


class Acp(Section):
    enabled: bool = True
    """Let agents spawn external harnesses."""
    default_agent: AgentId | None = None
    """The harness when a spawn names none; unset means the only one there is."""
    allowed_agents: list[AgentIdOrAny] = []
    """When set, only these harnesses; `*` is any."""
    harnesses: dict[AgentId, Harness] = {}
    """The harnesses, by an id of your choice that no agent has."""
    permission_mode: PermissionMode = "approve-reads"
    """What a harness is answered when it asks whether it may use one of its tools."""
    max_concurrent_sessions: int = Field(4, ge=1)
    """Maximum number of harnesses at work at a time."""

    def allows(self, harness: str) -> bool:
        """Whether the list of allowed harnesses lets this one through."""
        return not self.allowed_agents or bool(
            {"*", harness} & {name.strip() for name in self.allowed_agents}
        )
