"""Settings of the channel `discord`."""

from __future__ import annotations

from hobnob.config.channels import (
    AccountName,
    ChannelAccount,
    ChannelRoot,
    Group,
    Id,
    Place,
    with_defaults,
)
from hobnob.config.fields import Secret


class DiscordGuild(Group):
    channels: dict[Id, Group] = {}
    """Channels of the server by id or name; `*` means every one. With an entry, others are refused."""


class DiscordAccount(ChannelAccount):
    token: Secret | None = None
    """The bot's token; unset means `$DISCORD_BOT_TOKEN`."""
    api_url: str | None = None
    """Address of the REST API; unset means `$DISCORD_API_URL`, else that of Discord."""
    guilds: dict[Id, DiscordGuild] = {}
    """Servers by id; `*` stands for every server. With an entry, other servers are refused."""

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

    def group_settings(self) -> str:
        return "guilds"

    def has_credentials(self) -> bool:
        return self.token is not None


class Discord(DiscordAccount, ChannelRoot):
    accounts: dict[AccountName, DiscordAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
