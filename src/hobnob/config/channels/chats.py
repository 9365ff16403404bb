"""Settings of chats: the channels, who answers where, and how messages become turns."""

from __future__ import annotations

import difflib
from functools import cached_property
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from hobnob.config.channels import ChannelAccount, ChannelDefaults, Id, OwnChannel
from hobnob.config.channels.discord import Discord
from hobnob.config.channels.email import Email
from hobnob.config.channels.imessage import IMessage
from hobnob.config.channels.irc import Irc
from hobnob.config.channels.matrix import Matrix
from hobnob.config.channels.signal import Signal
from hobnob.config.channels.slack import Slack
from hobnob.config.channels.telegram import Telegram
from hobnob.config.channels.whatsapp import WhatsApp
from hobnob.config.fields import AgentId, Section, section


class Channels(Section):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, OwnChannel]

    defaults: ChannelDefaults = section(ChannelDefaults)
    """What holds for channels that set nothing else."""
    telegram: Telegram | None = None
    """Telegram."""
    discord: Discord | None = None
    """Discord."""
    slack: Slack | None = None
    """Slack."""
    matrix: Matrix | None = None
    """Matrix."""
    irc: Irc | None = None
    """IRC."""
    signal: Signal | None = None
    """Signal."""
    email: Email | None = None
    """Mail."""
    whatsapp: WhatsApp | None = None
    """WhatsApp."""
    imessage: IMessage | None = None
    """iMessage."""

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, channels: Any) -> Any:
        """A name that is no platform is the user's own channel, which has a module, or a mistake."""
        for name, channel in channels.items() if isinstance(channels, dict) else ():
            known = [*PLATFORMS, "defaults"]
            if name not in known and not (isinstance(channel, dict) and channel.get("module")):
                similar = difflib.get_close_matches(str(name), known, 1, 0.6)
                hint = (
                    f"did you mean {similar[0]!r}?" if similar else f"known channels: {', '.join(PLATFORMS)}"
                )
                raise ValueError(f"there is no channel {name!r}; {hint} One of your own needs `module`")
        return channels

    @model_validator(mode="after")
    def _check_access(self) -> Channels:
        for name, channel in self.configured.items():
            for account_id, account in [("", channel), *getattr(channel, "accounts", {}).items()]:
                path = f"{name}.accounts.{account_id}" if account_id else name
                if account.dm_policy == "open" and "*" not in account.allow_from and not account_id:
                    raise ValueError(f'{path}: dmPolicy "open" needs allowFrom: ["*"], so that it is meant')
                if account.dm_policy == "allowlist" and not account.allow_from and not account_id:
                    raise ValueError(f'{path}: dmPolicy "allowlist" needs at least one id in allowFrom')
        return self

    @property
    def own(self) -> dict[str, OwnChannel]:
        """The user's own channels."""
        return self.__pydantic_extra__ or {}

    @cached_property
    def configured(self) -> dict[str, ChannelAccount]:
        """The channels in the configuration, by name, enabled or not."""
        found: dict[str, Any] = {name: getattr(self, name) for name in PLATFORMS}
        return {name: channel for name, channel in (found | self.own).items() if channel is not None}


PLATFORMS = tuple(name for name in Channels.model_fields if name != "defaults")


class Peer(Section):
    kind: Literal["direct", "group", "channel"]
    """Type of the chat."""
    id: Id
    """Id of the sender or of the group; `*` means any."""


class BindingMatch(Section):
    channel: str
    """Name of the channel."""
    account_id: str | None = None
    """Account; unset means the default account, `*` any."""
    peer: Peer | None = None
    """A sender or a group."""
    guild_id: Id | None = None
    """Discord server."""
    team_id: Id | None = None
    """Slack team."""
    roles: list[Id] = []
    """Ids of roles, one of which the sender has; together with `guildId`."""


class Binding(Section):
    agent_id: AgentId
    """The agent that answers."""
    comment: str | None = None
    """A note for people."""
    match: BindingMatch
    """Which messages it answers; everything given has to match."""


class Commands(Section):
    owner_allow_from: list[Id] = []
    """Owners on all channels, as `telegram:123`."""


class GroupChat(Section):
    mention_patterns: list[str] | None = None
    """Patterns (regular expressions, any case) that address the bot; unset means its name."""
    history_limit: int | None = Field(None, ge=0, le=200)
    """`historyLimit` of channels that set none; unset means 50."""


class InboundMessages(Section):
    debounce_ms: int | None = Field(None, ge=0, le=60_000)
    """How long to wait for more messages of the same sender, which then become one turn."""
    by_channel: dict[str, int] = {}
    """The same by channel name; wins over `debounceMs`. Telegram has 300."""


class ThreadBindings(Section):
    enabled: bool = True
    """Whether sub-agents may get a thread of their own."""
    idle_hours: float = Field(24, ge=0)
    """Hours without a message after which a thread is given back; 0 means never."""
    max_age_hours: float = Field(0, ge=0)
    """Hours after which a thread is given back in any case; 0 means never."""


class AgentGroupChat(Section):
    mention_patterns: list[str] | None = None
    """Patterns (regular expressions, any case) that address this agent."""


class AgentIdentity(Section):
    name: str | None = None
    """Name by which people address the agent in groups; unset means its display name."""
    emoji: str | None = None
    """Emoji with which it acknowledges messages."""
