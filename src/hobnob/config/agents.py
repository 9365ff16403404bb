"""Settings of agents: model, workspace, sandbox, sub-agents."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from hobnob.config.fields import (
    NEEDS_RESTART,
    Access,
    AgentId,
    SandboxMode,
    Section,
    Thinking,
    section,
)
from hobnob.config.tools import ToolRules


class ModelSetting(Section):
    primary: str | None = None
    """The model, as `provider/model`."""
    fallbacks: list[str] = []
    """Tried in this order when the primary fails."""


def _model(value: object) -> object:
    return {"primary": value} if isinstance(value, str) else value


ModelChoice = Annotated[ModelSetting, BeforeValidator(_model)]


class DefaultSandbox(Section):
    mode: SandboxMode = "off"
    """Which sessions run their tools in a sandbox."""
    workspace_access: Access = "rw"
    """What the sandbox may do with the workspace."""
    network: bool = False
    """Let programs in the sandbox use the network, that of this machine included."""
    memory_mb: int = Field(2048, ge=64)
    """Maximum memory of one command in the sandbox, all its processes together."""
    max_processes: int = Field(256, ge=8)
    """Maximum number of processes of one command in the sandbox."""
    max_file_mb: int = Field(1024, ge=1)
    """Largest file a program in the sandbox may write."""
    session_tools_visibility: Literal["spawned", "all"] = "spawned"
    """`spawned` keeps the session tools of sandboxed sessions to what they spawned."""


class AgentSandbox(Section):
    mode: SandboxMode | None = None
    """Which of this agent's sessions run their tools in a sandbox."""
    workspace_access: Access | None = None
    """What this agent's sandbox may do with its workspace."""


class DefaultSubagents(Section):
    max_spawn_depth: int = Field(1, ge=1, le=5)
    """How deep sub-agents may spawn; 1 means they cannot."""
    max_children_per_agent: int = Field(5, ge=1, le=20)
    """Maximum number of live children of one session."""
    max_concurrent: Annotated[int, NEEDS_RESTART] = Field(8, ge=1)
    """Maximum number of sub-agent turns at a time."""
    archive_after_minutes: int = Field(60, ge=0)
    """When a finished child is archived; 0 is never."""
    run_timeout_seconds: int = Field(0, ge=0)
    """How long a child may run when the spawn does not say; 0 is no limit."""
    announce_timeout_ms: int = Field(90_000, ge=1000)
    """How long an announce step may take."""
    on_complete: Literal["post", "wake"] = "post"
    """`wake` also gives the requester a turn when a child is done."""
    model: ModelChoice | None = None
    """The model of children; unset means the target agent's."""
    thinking: Thinking | None = None
    """The thinking level of children."""


class Subagents(Section):
    allow_agents: list[str] = []
    """Agents this one may spawn besides itself; `*` is every configured one."""
    delegate: list[AgentId] = []
    """Agents whose children may use tools this one may not."""
    model: ModelChoice | None = None
    """The model of this agent's children."""
    thinking: Thinking | None = None
    """The thinking level of this agent's children."""


class AgentDefaults(Section):
    model: ModelChoice = section(ModelSetting)
    """The model of agents that name none; unset means the built-in `rehearsal` model."""
    workspace: str | None = None
    """Folder of the default agent's files; unset means one in the state directory."""
    thinking_default: Thinking = "off"
    """The thinking level of sessions that set none."""
    max_concurrent: Annotated[int, NEEDS_RESTART] = Field(16, ge=1)
    """Maximum number of turns at a time."""
    timeout_seconds: int = Field(172_800, ge=1)
    """Longest turn."""
    max_steps: int = Field(100, ge=1)
    """Maximum number of model calls in one turn."""
    sandbox: DefaultSandbox = section(DefaultSandbox)
    """Where tools run."""
    subagents: DefaultSubagents = section(DefaultSubagents)
    """Sub-agents."""


class Agent(Section):
    id: AgentId
    """The agent's id, as in session keys."""
    name: str | None = None
    """The name people see."""
    default: bool = False
    """This agent answers when no agent is named."""
    workspace: str | None = None
    """Folder of the agent's files."""
    model: ModelChoice | None = None
    """The agent's model."""
    tools: ToolRules = section(ToolRules)
    """The agent's tools."""
    sandbox: AgentSandbox = section(AgentSandbox)
    """Where its tools run."""
    subagents: Subagents = section(Subagents)
    """What it may spawn."""


class Agents(Section):
    defaults: AgentDefaults = section(AgentDefaults)
    """What holds for every agent."""
    entries: list[Agent] = Field([], alias="list")
    """The agents. None means one agent, `main`."""

    @property
    def needs_sandbox(self) -> bool:
        """Whether some session has to run in a sandbox."""
        modes = [self.defaults.sandbox.mode, *(agent.sandbox.mode for agent in self.entries)]
        return any(mode not in (None, "off") for mode in modes)

    @field_validator("entries")
    @classmethod
    def _one_of_each(cls, agents: list[Agent]) -> list[Agent]:
        ids = [agent.id for agent in agents]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        if twice:
            raise ValueError(f"these ids stand twice: {', '.join(twice)}")
        if sum(agent.default for agent in agents) > 1:
            raise ValueError("only one agent can be the default")
        return agents
