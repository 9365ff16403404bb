"""Settings of sessions: where chats live, who may be sent into."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from hobnob import keys
from hobnob.config.fields import (
    NO_EFFECT_YET,
    Action,
    MainKey,
    Section,
    section,
)


class SendMatch(Section):
    channel: str | None = None
    """Channel name, for example `discord`."""
    chat_type: Literal["direct", "group", "channel"] | None = None
    """Kind of chat."""
    key_prefix: str | None = None
    """Start of the session key, with or without `agent:<id>:`."""
    raw_key_prefix: str | None = None
    """Start of the full session key."""

    @field_validator("chat_type", mode="before")
    @classmethod
    def _dm_is_direct(cls, value: object) -> object:
        lower = value.lower() if isinstance(value, str) else value
        return "direct" if lower == "dm" else lower


class SendRule(Section):
    match: SendMatch = section(SendMatch)
    """Which sessions the rule is about; an empty match is all of them."""
    action: Action = "allow"
    """What it says. Any matching deny wins over any allow."""


class SendPolicy(Section):
    rules: list[SendRule] = []
    """Rules by channel, chat type or key."""
    default: Action = "allow"
    """What holds when no rule matches."""


class AgentToAgentLimits(Section):
    max_ping_pong_turns: int = Field(5, ge=0, le=5)
    """Maximum number of reply-back turns after an agent answered another."""
    max_hops: int = Field(8, ge=1, le=64)
    """Longest chain of sends that cause sends."""


class SessionSettings(Section):
    scope: Literal["per-sender", "global"] = "per-sender"
    """`global` puts every conversation of an agent into its main session."""
    main_key: MainKey = Field("main", max_length=64)
    """Another word for `main` in session keys."""
    dm_scope: Annotated[keys.DmScope, NO_EFFECT_YET] = "main"
    """Where direct chats live: all in main, or one session per peer."""
    identity_links: Annotated[dict[str, list[str]], NO_EFFECT_YET] = {}
    """One person's ids on several channels, by a name of your choice."""
    send_policy: SendPolicy = section(SendPolicy)
    """Which sessions may be sent into."""
    agent_to_agent: AgentToAgentLimits = section(AgentToAgentLimits)
    """Limits of agents talking to each other."""
