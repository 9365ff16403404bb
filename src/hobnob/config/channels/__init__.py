"""Settings of chat channels: what every channel has, and one module per platform for the rest.

A channel may have several accounts. An account has every setting of its channel; what it does not set itself,
it takes from the channel. Maps and lists are taken as a whole.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from hobnob.config.fields import Section, section
from hobnob.config.tools import ToolRules
from hobnob.records import Struct

DEFAULT_ACCOUNT = "default"
DmPolicy = Literal["pairing", "allowlist", "open", "disabled"]
GroupPolicy = Literal["open", "allowlist", "disabled"]
ReplyToMode = Literal["off", "first", "all", "batched"]
StreamingMode = Literal["off", "partial", "progress"]

AccountName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


def _id(value: object) -> object:
    """Ids of platforms are texts; people write numbers without quotes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Id = Annotated[str, BeforeValidator(_id)]


class Place(Struct, frozen=True):
    """A group chat, as far as its rules depend on it."""

    chat_id: str
    chat_name: str = ""
    space_id: str | None = None
    thread_id: str | None = None


class Group(Section):
    """The rules of one group. Unset means that of `*`, else the default."""

    enabled: bool = True
    """Whether the bot takes part in this group."""
    require_mention: bool | None = None
    """Whether the bot answers only when it is addressed; unset means yes."""
    allow_from: list[Id] | None = Field(None, alias="allowFrom")
    """Ids of the people who may address the bot here; unset means `groupAllowFrom`."""
    users: list[Id] | None = None
    """Another name for `allowFrom`, as some platforms call it."""
    roles: list[Id] | None = None
    """Ids of roles whose members may address the bot here."""
    system_prompt: str | None = None
    """Text that is added to the system prompt in this group."""
    tools: ToolRules | None = None
    """Tools in this group; they only narrow those of the agent."""
    agent_id: str | None = None
    """The agent that answers here."""


class Streaming(Section):
    mode: StreamingMode | None = None
    """What is shown while the answer is made: nothing, the growing answer, or a line about the progress."""
    chunk_mode: Literal["length", "newline"] = "length"
    """Where a long answer is split: near the limit, or at blank lines first."""


class ThreadRules(Section):
    """How threads that belong to sub-agents are handled. Unset means `session.threadBindings`."""

    enabled: bool | None = None
    """Whether sub-agents may get a thread of their own."""
    idle_hours: float | None = Field(None, ge=0)
    """Hours without a message after which the thread is given back; 0 means never."""
    max_age_hours: float | None = Field(None, ge=0)
    """Hours after which the thread is given back in any case; 0 means never."""


class ChannelAccount(Section):
    """What every account of every channel has."""

    enabled: bool = True
    """Whether the channel, or this account of it, is used."""
    name: str | None = None
    """A name for people."""
    owners: list[Id] = []
    """Ids of senders who are owners: they may give slash commands and answer questions about commands."""
    dm_policy: DmPolicy = "pairing"
    """Who may write to the bot: people you approve by code, those in `allowFrom`, everybody, nobody."""
    allow_from: list[Id] = []
    """Ids of senders who may write to the bot in direct chats; `*` means everybody, with `dmPolicy: open`."""
    group_policy: GroupPolicy | None = None
    """Groups in which the bot takes part: all, those in `groups`, none; unset means `channels.defaults`."""
    group_allow_from: list[Id] | None = None
    """Ids of senders who may address the bot in groups; unset means `allowFrom`."""
    groups: dict[Id, Group] = {}
    """Groups by id; `*` stands for every group. With an entry, other groups are refused."""
    allow_bots: bool | Literal["mentions"] = False
    """Whether messages of other bots count: never, always, or when they mention this one."""
    dangerously_allow_name_matching: bool = False
    """Whether lists of senders may contain names, which anybody can take, besides ids."""
    history_limit: int | None = Field(None, ge=0, le=200)
    """Messages of a group, not addressed to the bot, that it is shown with one that is; unset means 50."""
    text_chunk_limit: int | None = Field(None, ge=50)
    """Longest message the bot sends; longer answers are split. Unset means the platform's limit."""
    reply_to_mode: ReplyToMode | None = None
    """Which messages of an answer quote the question: none, first, all; `batched`: if several were joined."""
    response_prefix: str | None = None
    """Text before each answer."""
    media_max_mb: float | None = Field(None, gt=0)
    """Largest file that is received or sent."""
    streaming: Streaming = section(Streaming)
    """What is shown while the answer is made."""
    ack_reaction: str | None = None
    """Emoji set on a message when the bot begins to work on it; empty means none."""
    thread_bindings: ThreadRules = section(ThreadRules)
    """Threads of sub-agents."""

    def group(self, place: Place) -> Group | None:
        """The rules of a group: its own, else those of `*`; None if neither is listed."""
        return self.groups.get(place.chat_id) or self.groups.get("*")

    @property
    def lists_groups(self) -> bool:
        """Whether groups are listed, so that all others are refused."""
        return bool(self.groups)

    def listed_groups(self) -> dict[str, Group]:
        """The rules of groups by their id alone; `*` stands for every other one."""
        return dict(self.groups)

    def rules(self) -> set[str]:
        """The settings of the platform that are rules for messages: a change does not need a reconnect."""
        return set()

    def group_settings(self) -> str:
        """The name of the setting that lists groups."""
        return "groups"

    def has_credentials(self) -> bool:
        """Whether the account can sign in with what is set on it."""
        return True


class ChannelRoot(Section):
    """What a channel has besides the settings of its accounts. `accounts` is declared per platform."""

    default_account: str | None = None
    """The account for messages that name none; unset means `default`, else the first."""


class OwnChannelAccount(ChannelAccount):
    options: dict[str, Any] = {}
    """Settings of the channel itself, passed on unchecked."""


class OwnChannel(OwnChannelAccount, ChannelRoot):
    """A channel of the user's own, loaded from a file."""

    module: str = ""
    """File of the channel, a Python module with a function `channel`; relative to the configuration file."""
    accounts: dict[AccountName, OwnChannelAccount] = {}
    """Several accounts by name; each has every setting of the channel."""


class BotLoopProtection(Section):
    enabled: bool = True
    """Whether a bot that answers too often is ignored for a while."""
    max_events_per_window: int = Field(20, ge=1)
    """Messages of one bot in one chat that are taken within the window."""
    window_seconds: int = Field(60, ge=1)
    """The window."""


class ChannelDefaults(Section):
    group_policy: GroupPolicy = "allowlist"
    """`groupPolicy` of channels that set none."""
    bot_loop_protection: BotLoopProtection = section(BotLoopProtection)
    """Bots that answer each other."""


def with_defaults(rules: Group, defaults: Group) -> Group:
    """Rules in which everything that is not set is that of `defaults`."""
    unset = Group.model_fields.keys() - rules.model_fields_set
    return rules.model_copy(update={name: getattr(defaults, name) for name in unset})


def account_ids(channel: ChannelAccount) -> list[str]:
    """The accounts of a channel: those it names, and `default` if the channel itself has credentials."""
    named: dict[str, Any] = getattr(channel, "accounts", {})
    own = [DEFAULT_ACCOUNT] if not named or channel.has_credentials() else []
    return [*dict.fromkeys([*own, *named])] if DEFAULT_ACCOUNT not in named else list(named)


def account_of(channel: ChannelAccount, account_id: str) -> ChannelAccount:
    """The settings of an account: its own, else those of the channel."""
    named: dict[str, ChannelAccount] = getattr(channel, "accounts", {})
    account = named.get(account_id)
    if account is None:
        return channel
    kind = type(account)
    values = {name: getattr(channel, name) for name in kind.model_fields}
    values |= {name: getattr(account, name) for name in account.model_fields_set}
    return kind.model_construct(channel.model_fields_set | account.model_fields_set, **values)


def default_account(channel: ChannelAccount) -> str:
    """The account for messages that name none."""
    ids = account_ids(channel)
    chosen: str | None = getattr(channel, "default_account", None)
    return chosen if chosen in ids else DEFAULT_ACCOUNT if DEFAULT_ACCOUNT in ids else ids[0]
