"""Settings of agents: model, workspace, sandbox, sub-agents."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from hobnob import timing
from hobnob.config.channels.chats import AgentGroupChat, AgentIdentity
from hobnob.config.fields import (
    NEEDS_RESTART,
    Access,
    AgentId,
    SandboxMode,
    Section,
    Thinking,
    section,
)
from hobnob.config.tools import AgentTools


class Budget(Section):
    usd: float | None = Field(None, ge=0)
    """US dollars, by the price list; models without a known price do not count."""
    tokens: int | None = Field(None, ge=0)
    """Tokens, read and written."""
    turns: int | None = Field(None, ge=0)
    """Turns that call a model."""
    seconds: float | None = Field(None, ge=0)
    """Time in model calls, all of them added up."""


class ModelSetting(Section):
    primary: str | None = None
    """The model to use, as `provider/model`."""
    fallbacks: list[str] = []
    """Models to try in this order when the primary fails."""


def _model(value: object) -> object:
    return {"primary": value} if isinstance(value, str) else value


ModelChoice = Annotated[ModelSetting, BeforeValidator(_model)]


class DefaultSandbox(Section):
    mode: SandboxMode = "off"
    """Which sessions run their tools in a sandbox."""
    workspace_access: Access = "rw"
    """Access to the workspace in the sandbox: none, read-only or read-write."""
    network: bool = False
    """Whether sandboxed commands may use the network, including services on this machine."""
    memory_mb: int = Field(2048, ge=64)
    """Memory limit of one sandboxed command, all its processes together."""
    max_processes: int = Field(256, ge=8)
    """Maximum number of processes of one sandboxed command."""
    max_file_mb: int = Field(1024, ge=1)
    """Largest file a sandboxed command may write."""
    run_as_root: bool = False
    """When the gateway runs as root: sandboxed programs run as root too, not as an unprivileged user."""
    session_tools_visibility: Literal["spawned", "all"] = "spawned"
    """`spawned` limits the session tools of sandboxed sessions to the sessions they spawned."""


class AgentSandbox(Section):
    mode: SandboxMode | None = None
    """Which of this agent's sessions run their tools in a sandbox."""
    workspace_access: Access | None = None
    """Access to this agent's workspace in the sandbox."""


class DefaultSubagents(Section):
    max_spawn_depth: int = Field(1, ge=1, le=5)
    """Maximum depth of sub-agents; 1 means that sub-agents cannot spawn."""
    max_children_per_agent: int = Field(5, ge=1, le=20)
    """Maximum number of live children of one session."""
    max_concurrent: Annotated[int, NEEDS_RESTART] = Field(8, ge=1)
    """Maximum number of sub-agent turns that run at the same time."""
    archive_after_minutes: int = Field(60, ge=0)
    """Minutes until a finished child is archived; 0 means never."""
    run_timeout_seconds: int = Field(0, ge=0)
    """Time limit of a child when the spawn sets none; 0 means `agents.defaults.timeoutSeconds`."""
    announce_timeout_ms: int = Field(90_000, ge=1000)
    """Time limit of an announce turn."""
    on_complete: Literal["post", "wake"] = "post"
    """`post` adds a child's report to the requester's transcript; `wake` also starts a turn there."""
    model: ModelChoice | None = None
    """The model of children; unset means that of the child's agent."""
    thinking: Thinking | None = None
    """The thinking level of children."""


class Subagents(Section):
    allow_agents: list[str] = []
    """Agents this one may spawn besides itself; `*` means every configured agent."""
    delegate: list[AgentId] = []
    """Agents that this one may spawn with tools it does not have itself."""
    model: ModelChoice | None = None
    """The model of this agent's children."""
    thinking: Thinking | None = None
    """The thinking level of this agent's children."""


class MemoryFlush(Section):
    enabled: bool = True
    """Whether the agent may save notes to its workspace before a summary replaces what it knows."""
    soft_threshold_tokens: int = Field(4_000, ge=0)
    """How long before a conversation no longer fits the notes are saved, in tokens."""
    prompt: str | None = None
    """What the agent is asked to do; unset means a text that tells it to save what must not be lost."""
    system_prompt: str | None = None
    """What is added to its system prompt for that."""


class Compaction(Section):
    enabled: bool = True
    """Whether the older part of a conversation is summarised when it no longer fits."""
    model: str | None = None
    """The model that summarises; unset means the model of the turn."""
    thinking_level: Thinking = "low"
    """The thinking level of that model."""
    timeout_seconds: int = Field(180, ge=1)
    """Time limit of one model call; a conversation that is summarised for the first time may need several."""
    keep_recent_tokens: int = Field(20_000, ge=1)
    """About how much of the newest messages is kept as it is."""
    memory_flush: MemoryFlush = section(MemoryFlush)
    """A turn without an answer in which the agent saves notes before a summary."""


class PrunedTools(Section):
    allow: list[str] = []
    """Names or patterns; an empty list means all tools."""
    deny: list[str] = []
    """Names or patterns of tools whose results stay whole."""


class ClearResults(Section):
    enabled: bool = True
    """Whether old tool results are replaced by a placeholder when they fill half of the context window."""
    placeholder: str = "[Old tool result content cleared]"
    """What stands in their place."""


class ContextPruning(Section):
    mode: Literal["off", "cache-ttl"] = "off"
    """`cache-ttl`: shorten old tool results in requests when the provider's prompt cache has expired."""
    ttl: str = "5m"
    """How long the provider keeps its prompt cache, as in `5m` or `1h`."""
    hard_clear: ClearResults = section(ClearResults)
    """What happens to old tool results when shortening them is not enough."""
    tools: PrunedTools = section(PrunedTools)
    """The tools whose results are shortened."""

    @field_validator("ttl")
    @classmethod
    def _check_ttl(cls, text: str) -> str:
        if timing.duration_ms(text) is None:
            raise ValueError('must be a time such as "5m" or "1h"')
        return text


class AgentDefaults(Section):
    model: ModelChoice = section(ModelSetting)
    """The model of agents that name none; unset means the built-in `rehearsal` model."""
    workspace: str | None = None
    """Folder of the default agent's workspace; unset means one in the state directory."""
    thinking_default: Thinking = "off"
    """The thinking level of sessions that set none."""
    max_concurrent: Annotated[int, NEEDS_RESTART] = Field(16, ge=1)
    """Maximum number of turns that run at the same time, besides those of sub-agents and harnesses."""
    timeout_seconds: int = Field(172_800, ge=1)
    """Time limit of a turn."""
    typing_mode: Literal["never", "instant", "thinking", "message"] | None = None
    """When a chat shows that the agent is typing; unset means at once where it is addressed."""
    max_steps: int = Field(100, ge=1)
    """Maximum number of model calls in one turn."""
    context_tokens: int | None = Field(None, ge=1000)
    """Use at most this much of the context window of any model."""
    compaction: Compaction = section(Compaction)
    """Summaries of conversations that no longer fit into the context window."""
    context_pruning: ContextPruning = section(ContextPruning)
    """Old tool results in requests to models."""
    budget: Budget = section(Budget)
    """What an agent may spend in a day (UTC) if it has no budget of its own."""
    sandbox: DefaultSandbox = section(DefaultSandbox)
    """Sandbox."""
    subagents: DefaultSubagents = section(DefaultSubagents)
    """Sub-agents."""


class Agent(Section):
    id: AgentId
    """The agent's id, as in session keys."""
    name: str | None = None
    """Display name."""
    default: bool = False
    """Whether this is the agent for requests that name none."""
    workspace: str | None = None
    """Folder of the agent's workspace."""
    model: ModelChoice | None = None
    """The agent's model."""
    tools: AgentTools = section(AgentTools)
    """The agent's tools."""
    group_chat: AgentGroupChat = section(AgentGroupChat)
    """The agent in group chats."""
    identity: AgentIdentity = section(AgentIdentity)
    """How the agent appears in chats."""
    budget: Budget | None = None
    """What the agent may spend in a day (UTC); unset means `agents.defaults.budget`."""
    sandbox: AgentSandbox = section(AgentSandbox)
    """The agent's sandbox."""
    subagents: Subagents = section(Subagents)
    """The agent's sub-agents."""


class Agents(Section):
    defaults: AgentDefaults = section(AgentDefaults)
    """Settings of every agent."""
    entries: list[Agent] = Field([], alias="list")
    """The agents; an empty list means one agent, `main`."""

    @property
    def needs_sandbox(self) -> bool:
        """Whether any session must run in a sandbox."""
        modes = [self.defaults.sandbox.mode, *(agent.sandbox.mode for agent in self.entries)]
        return any(mode not in (None, "off") for mode in modes)

    @field_validator("entries")
    @classmethod
    def _check_unique(cls, agents: list[Agent]) -> list[Agent]:
        ids = [agent.id for agent in agents]
        duplicates = sorted({i for i in ids if ids.count(i) > 1})
        if duplicates:
            raise ValueError(f"duplicate agent ids: {', '.join(duplicates)}")
        if sum(agent.default for agent in agents) > 1:
            raise ValueError("only one agent can be the default")
        return agents
