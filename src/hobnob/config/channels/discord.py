"""Settings of the channel `discord`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from hobnob.config.channels import (
    AccountName,
    ChannelAccount,
    ChannelRoot,
    Group,
    Id,
    Place,
    with_defaults,
)
from hobnob.config.fields import NO_EFFECT_YET, Secret, Section, section


class DiscordRules(Group):
    """The rules of a server or a channel, with names that other systems have for Discord."""

    ignore_other_mentions: Annotated[bool | None, NO_EFFECT_YET] = None
    """Whether messages that mention somebody else are ignored."""


class DiscordChannelRules(DiscordRules):
    auto_thread: Annotated[bool | None, NO_EFFECT_YET] = None
    """Whether each question gets a thread."""
    auto_thread_name: Annotated[str | None, NO_EFFECT_YET] = None
    """How such a thread is named."""
    auto_archive_duration: Annotated[int | str | None, NO_EFFECT_YET] = None
    """Minutes without a message after which such a thread is archived."""


class DiscordGuild(DiscordRules):
    slug: Annotated[str | None, NO_EFFECT_YET] = None
    """A name of the server, for people."""
    channels: dict[Id, DiscordChannelRules] = {}
    """Channels of the server by id or name; `*` means every one. With an entry, others are refused."""


class DiscordIntents(Section):
    """What Discord tells the bot about. The developer portal must permit the same."""

    message_content: bool = True
    """The text of messages that do not mention the bot."""
    guild_members: bool = False
    """Who joins and leaves a server."""
    presence: bool = False
    """Who is online."""


class DiscordDm(Section):
    group_enabled: Annotated[bool, NO_EFFECT_YET] = False
    """Whether group chats without a server count; Discord does not let bots in."""
    group_channels: Annotated[list[Id], NO_EFFECT_YET] = []
    """Ids of such group chats."""


class DiscordAccount(ChannelAccount):
    token: Secret | None = None
    """The bot's token; unset means `$DISCORD_BOT_TOKEN`."""
    api_url: str | None = None
    """Address of the REST API; unset means `$DISCORD_API_URL`, else that of Discord."""
    guilds: dict[Id, DiscordGuild] = {}
    """Servers by id; `*` stands for every server. With an entry, other servers are refused."""
    intents: DiscordIntents = section(DiscordIntents)
    """What Discord tells the bot about."""
    suppress_embeds: bool = True
    """Whether links in answers show no preview."""
    dm: DiscordDm = section(DiscordDm)
    """Group chats. `dm.enabled`, `dm.policy` and `dm.allowFrom` are read as `dmPolicy` and `allowFrom`."""
    max_lines_per_message: Annotated[int | None, NO_EFFECT_YET] = Field(None, ge=1)
    """Lines after which a long answer is split."""
    mention_aliases: Annotated[dict[str, Any], NO_EFFECT_YET] = {}
    """Names that become mentions in answers."""
    thread: Annotated[dict[str, Any], NO_EFFECT_YET] = {}
    """How sessions of threads begin."""
    slash_command: Annotated[dict[str, Any], NO_EFFECT_YET] = {}
    """Slash commands registered with Discord."""

    @model_validator(mode="before")
    @classmethod
    def _move_dm(cls, raw: Any) -> Any:
        """Read the rules of direct chats under `dm`, where other systems have them."""
        dm = raw.get("dm") if isinstance(raw, dict) else None
        if not isinstance(dm, dict):
            return raw
        dm, moved = dict(dm), dict(raw)
        for old, new in (("policy", "dmPolicy"), ("allowFrom", "allowFrom")):
            if old in dm:
                moved.setdefault(new, dm.pop(old))
        if dm.pop("enabled", True) is False:
            moved["dmPolicy"] = "disabled"
        return {**moved, "dm": dm}

    def group(self, place: Place) -> Group | None:
        guild = self.guilds.get(place.space_id or "") or self.guilds.get("*")
        if guild is None or not guild.channels:
            return guild
        listed = guild.channels
        own = listed.get(place.chat_id) or listed.get(place.chat_name) or listed.get("*")
        return with_defaults(own, guild) if own else Group(enabled=False)

    @property
    def lists_groups(self) -> bool:
        return bool(self.guilds)

    def listed_groups(self) -> dict[str, Group]:
        found: dict[str, Group] = {}
        for guild in self.guilds.values():
            found |= {name: with_defaults(own, guild) for name, own in guild.channels.items()}
            found.setdefault("*", guild)
        return found

    def rules(self) -> set[str]:
        return {"guilds"}

    def group_settings(self) -> str:
        return "guilds"

    def has_credentials(self) -> bool:
        return self.token is not None


class Discord(DiscordAccount, ChannelRoot):
    accounts: dict[AccountName, DiscordAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
