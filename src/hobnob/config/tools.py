"""Settings of tools: which an agent has, and what they may do."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hobnob.config.fields import (
    Network,
    Section,
    Visibility,
    section,
)


class ToolRules(Section):
    profile: Literal["minimal", "messaging", "coding", "full"] | None = None
    """The tools to start from. No profile means `full`."""
    allow: list[str] | None = None
    """Only these tools (names, `group:<name>` or patterns with `*`)."""
    also_allow: list[str] = []
    """These too, on top of the profile."""
    deny: list[str] = []
    """Never these; wins over everything else."""


class SubagentToolRules(Section):
    allow: list[str] | None = None
    """Only these tools for sub-agents; may name session tools."""
    also_allow: list[str] = []
    """Session tools that sub-agents get all the same."""
    deny: list[str] = []
    """Never these for sub-agents."""


class SubagentTools(Section):
    tools: SubagentToolRules = section(SubagentToolRules)
    """The tools of sub-agents."""


class SessionTools(Section):
    visibility: Visibility = "tree"
    """What an agent sees: its session, what it spawned, its agent's sessions, or all."""


class AgentToAgent(Section):
    enabled: bool = False
    """Let agents reach sessions of other agents (needs visibility `all`)."""
    allow: list[str] = []
    """When set, both agents must match one of these (patterns with `*`)."""


class Attachments(Section):
    enabled: bool = True
    """Let `sessions_spawn` hand files to the child."""
    max_files: int = Field(50, ge=1)
    """Maximum number of files in one spawn."""
    max_file_bytes: int = Field(1024 * 1024, ge=1)
    """Largest single file."""
    max_total_bytes: int = Field(5 * 1024 * 1024, ge=1)
    """All files of a spawn together."""
    retain_on_session_keep: bool = False
    """Keep the files when the child session is kept."""


class Exec(Section):
    host: Literal["sandbox", "gateway"] = "sandbox"
    """Where commands of sessions that need no sandbox run: in one all the same, or with your own rights."""
    timeout_sec: int = Field(1800, ge=1, le=86_400)
    """Longest a command runs when the call does not say."""
    background_ms: int = Field(10_000, ge=0, le=600_000)
    """A command that takes longer goes on in the background and is polled."""
    max_running: int = Field(16, ge=1, le=200)
    """Maximum number of commands of one session at a time."""
    ask: Literal["off", "always"] = "off"
    """`always` has a person say yes to each command before it runs."""
    ask_timeout_sec: int = Field(1800, ge=1, le=86_400)
    """How long such a question waits; then the answer is no."""


class Fetch(Section):
    max_chars: int = Field(50_000, ge=100, le=400_000)
    """Maximum number of text of a page that is handed to the model."""
    max_response_bytes: int = Field(2_000_000, ge=1_000, le=50_000_000)
    """Maximum number of bytes of a page that are read, unpacked."""
    timeout_seconds: int = Field(30, ge=1, le=300)
    """Longest a page may take, all redirects included."""
    max_redirects: int = Field(5, ge=0, le=20)
    """Maximum number of redirects that are followed."""
    allow_addresses: list[Network] = []
    """Networks like `10.1.0.0/16` that may be fetched from though they are private."""


class Web(Section):
    fetch: Fetch = section(Fetch)
    """Reading pages."""


class SpawnTool(Section):
    attachments: Attachments = section(Attachments)
    """Files handed to a child."""


class Tools(ToolRules):
    sessions: SessionTools = section(SessionTools)
    """The session tools."""
    agent_to_agent: AgentToAgent = section(AgentToAgent)
    """Reaching other agents' sessions."""
    subagents: SubagentTools = section(SubagentTools)
    """What sub-agents may use."""
    exec: Exec = section(Exec)
    """Running commands."""
    web: Web = section(Web)
    """Reading the web."""
    sessions_spawn: SpawnTool = Field(default_factory=SpawnTool, alias="sessions_spawn")
    """The spawn tool."""
