"""Settings of tools: which an agent has, and what they may do."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hobnob.config.values import (
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
    """Most files in one spawn."""
    max_file_bytes: int = Field(1024 * 1024, ge=1)
    """Largest single file."""
    max_total_bytes: int = Field(5 * 1024 * 1024, ge=1)
    """All files of a spawn together."""
    retain_on_session_keep: bool = False
    """Keep the files when the child session is kept."""


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
    sessions_spawn: SpawnTool = Field(default_factory=SpawnTool, alias="sessions_spawn")
    """The spawn tool."""
