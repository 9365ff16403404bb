"""Settings of sessions: key scopes, send policy, limits of agent-to-agent messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from hobnob import keys
from hobnob.config.channels.chats import ThreadBindings
from hobnob.config.fields import (
    Action,
    MainKey,
    Retention,
    Section,
    section,
)


class SendMatch(Section):
    channel: str | None = None
    """Channel name, for example `discord`."""
    chat_type: Literal["direct", "group", "channel"] | None = None
    """Type of chat."""
    key_prefix: str | None = None
    """Prefix of the session key, with or without `agent:<id>:`."""
    raw_key_prefix: str | None = None
    """Prefix of the full session key."""

    @field_validator("chat_type", mode="before")
    @classmethod
    def _dm_is_direct(cls, value: object) -> object:
        lower = value.lower() if isinstance(value, str) else value
        return "direct" if lower == "dm" else lower


class SendRule(Section):
    match: SendMatch = section(SendMatch)
    """Which sessions the rule applies to; an empty match means all."""
    action: Action = "allow"
    """Whether matching sessions accept messages. A matching deny wins over any allow."""


class SendPolicy(Section):
    rules: list[SendRule] = []
    """Rules by channel, chat type or key."""
    default: Action = "allow"
    """The action when no rule matches."""


class AgentToAgentLimits(Section):
    max_ping_pong_turns: int = Field(5, ge=0, le=5)
    """Maximum number of reply turns in one exchange."""
    max_hops: int = Field(8, ge=1, le=64)
    """Maximum number of exchanges in a chain, each caused by the one before."""


class Maintenance(Section):
    mode: Literal["enforce", "warn"] = "enforce"
    """`enforce` removes what is due in the background; `warn` only logs how much that would be."""
    prune_after: Retention = "30d"
    """Unused sessions of hooks, jobs and sub-agents are deleted, conversations archived, after this time."""
    max_entries: int = Field(5000, ge=1)
    """Maximum number of listed sessions, and of archived ones; beyond it the longest unused are pruned."""
    archive_retention: Retention = "365d"
    """How long archived conversations are kept."""
    reset_archive_retention: Retention = "365d"
    """How long a transcript is kept after a reset or a compaction has replaced it."""
    turn_retention: Retention = "90d"
    """How long ended turns (runs) are kept; the last of each session stays."""
    exchange_retention: Retention = "90d"
    """How long ended exchanges are kept."""
    delivery_retention: Retention = "90d"
    """How long messages that were delivered, or could not be, are kept."""
    approval_retention: Retention = "30d"
    """How long answered questions about commands are kept."""
    inbox_retention: Retention = "30d"
    """How long it is kept what became of messages from chats; as long, the same message is recognised."""
    usage_retention: Retention = "90d"
    """How long costs are kept per session; older ones are summed up per day, agent and model, for good."""
    idempotency_retention: Retention = "7d"
    """How long a repeated request is recognised by its idempotency key."""


class ResetRule(Section):
    mode: Literal["none", "daily", "idle"] = "none"
    """`daily`: a new conversation at the first message after `atHour`; `idle`: after a pause."""
    at_hour: int = Field(4, ge=0, le=23)
    """The hour, in the time zone of the machine."""
    idle_minutes: int | None = Field(None, ge=1)
    """Minutes since the last message of a person, 60 by default; with `daily`, whichever comes first."""


def _dm_is_direct(value: object) -> object:
    return {"direct" if k == "dm" else k: v for k, v in value.items()} if isinstance(value, dict) else value


class SessionSettings(Section):
    scope: Literal["per-sender", "global"] = "per-sender"
    """`global` puts every conversation of an agent into its main session."""
    main_key: MainKey = Field("main", max_length=64)
    """Other name for `main` in session keys."""
    dm_scope: keys.DmScope = "main"
    """The session of direct chats: the main session, or one session per peer."""
    identity_links: dict[str, list[str]] = {}
    """Ids of one person on several channels, by a name of your choice."""
    group_scope: Literal["per-group", "main"] = "per-group"
    """The session of group chats: one per group, or the main session. A group with `tools` keeps its own."""
    thread_bindings: ThreadBindings = section(ThreadBindings)
    """Threads of chats that belong to sub-agents."""
    reset: ResetRule = section(ResetRule)
    """When a chat begins anew. It is looked at when a person writes; the old transcript stays readable."""
    reset_by_type: Annotated[
        dict[Literal["direct", "group", "thread"], ResetRule], BeforeValidator(_dm_is_direct)
    ] = {}
    """The same by type of chat; wins over `reset`."""
    reset_by_channel: dict[str, ResetRule] = {}
    """The same by channel name; wins over the others."""
    reset_triggers: list[str] = ["/new", "/reset"]
    """Words that begin a new conversation as the first word of a message. The rest is its first message."""
    send_policy: SendPolicy = section(SendPolicy)
    """Which sessions accept messages."""
    agent_to_agent: AgentToAgentLimits = section(AgentToAgentLimits)
    """Limits of agent-to-agent messages."""
    maintenance: Maintenance = section(Maintenance)
    """How long sessions and what they leave behind are kept. `keep` means for ever."""
