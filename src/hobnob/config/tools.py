"""Settings of tools: which tools an agent has, and their limits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hobnob.config.fields import (
    NEEDS_RESTART,
    Network,
    Section,
    Visibility,
    section,
)


class ToolRules(Section):
    profile: Literal["minimal", "messaging", "coding", "full"] | None = None
    """The basic set of tools; unset means `full`."""
    allow: list[str] | None = None
    """When set, only these tools (names, `group:<name>` or patterns with `*`)."""
    also_allow: list[str] = []
    """Tools in addition to the profile."""
    deny: list[str] = []
    """Tools that are never available; wins over the other rules."""


class SubagentToolRules(Section):
    allow: list[str] | None = None
    """When set, sub-agents have only these tools; may include session tools."""
    also_allow: list[str] = []
    """Additional tools of sub-agents, such as session tools, which they lack by default."""
    deny: list[str] = []
    """Tools that sub-agents never have."""


class SubagentTools(Section):
    tools: SubagentToolRules = section(SubagentToolRules)
    """The tools of sub-agents."""


class SessionTools(Section):
    visibility: Visibility = "tree"
    """What the session tools see: own session, own session and those it spawned, same agent, or all."""


class AgentSessionTools(Section):
    visibility: Visibility | None = None
    """What the session tools of this agent see; unset means `tools.sessions.visibility`."""


class AgentTools(ToolRules):
    sessions: AgentSessionTools = section(AgentSessionTools)
    """The session tools of this agent."""


class AgentToAgent(Section):
    enabled: bool = False
    """Whether agents may reach sessions of other agents; needs `tools.sessions.visibility: "all"`."""
    allow: list[str] = []
    """When set, both agents must match one of these ids or patterns with `*`."""
    authority: Literal["both", "target"] = "both"
    """Tools of a turn that another agent's message started: those both have, or all of the target's."""


class Attachments(Section):
    enabled: bool = True
    """Whether `sessions_spawn` may pass files to the child."""
    max_files: int = Field(50, ge=1)
    """Maximum number of files in one spawn."""
    max_file_bytes: int = Field(1024 * 1024, ge=1)
    """Largest single file. Its base64 may be half as long again, with line breaks."""
    max_total_bytes: int = Field(5 * 1024 * 1024, ge=1)
    """Maximum size of all files of one spawn."""
    retain_on_session_keep: bool = False
    """Whether to keep the files of a child with `cleanup: "keep"`."""


class Exec(Section):
    host: Literal["sandbox", "gateway", "node"] = "sandbox"
    """Where unsandboxed sessions run commands: still in a sandbox, as the user of Hobnob, or on a node."""
    node: str | None = None
    """The node for commands on nodes, by name or id; when set, agents may choose it with `host: node`."""
    node_ask: Literal["off", "always"] = "always"
    """`always` requires a person's approval for each command on a node, after its plan is known."""
    timeout_sec: int = Field(1800, ge=1, le=86_400)
    """Time limit of a command when the call sets none."""
    background_ms: int = Field(10_000, ge=0, le=600_000)
    """After this time a command continues in the background, and the agent polls it."""
    max_running: int = Field(16, ge=1, le=200)
    """Maximum number of commands of one session that run at the same time."""
    ask: Literal["off", "always"] = "off"
    """`always` requires a person's approval for each command."""
    ask_timeout_sec: int = Field(1800, ge=1, le=86_400)
    """How long an approval stays open; then the command is refused."""


class Fetch(Section):
    max_chars: int = Field(50_000, ge=100, le=400_000)
    """Maximum number of characters of a page that the model gets."""
    max_response_bytes: int = Field(2_000_000, ge=1_000, le=50_000_000)
    """Maximum number of bytes of a page that are read, after decompression."""
    timeout_seconds: int = Field(30, ge=1, le=300)
    """Time limit of a fetch, including redirects."""
    max_redirects: int = Field(5, ge=0, le=20)
    """Maximum number of redirects."""
    allow_addresses: list[Network] = []
    """Private networks that may be fetched from, such as `10.1.0.0/16`."""


class Web(Section):
    fetch: Fetch = section(Fetch)
    """Fetching pages."""


class SpawnTool(Section):
    attachments: Attachments = section(Attachments)
    """Files for the child."""


class Swarm(Section):
    max_children_per_group: int = Field(50, ge=1, le=1000)
    """Maximum number of sub-agents of one group that run or wait to run, when their results are collected."""
    max_total_per_group: int = Field(200, ge=1, le=10_000)
    """Maximum number of sub-agents of one group, with those that have finished."""
    wait_timeout_seconds_max: int = Field(600, ge=1, le=86_400)
    """Longest time that one call of `agents_wait` waits."""


class Tools(ToolRules):
    modules: Annotated[list[str], NEEDS_RESTART] = []
    """Python files with tools of your own, relative to the configuration file. They run with full rights."""
    sessions: SessionTools = section(SessionTools)
    """The session tools."""
    agent_to_agent: AgentToAgent = section(AgentToAgent)
    """Access to sessions of other agents."""
    subagents: SubagentTools = section(SubagentTools)
    """Sub-agents."""
    swarm: Swarm = section(Swarm)
    """Groups of sub-agents whose results are collected with `agents_wait`."""
    exec: Exec = section(Exec)
    """Running commands."""
    web: Web = section(Web)
    """Web access."""
    sessions_spawn: SpawnTool = Field(default_factory=SpawnTool, alias="sessions_spawn")
    """The spawn tool."""
