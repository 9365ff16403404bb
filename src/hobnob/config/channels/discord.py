"""Settings of the channel `discord`."""

from __future__ import annotations

from hobnob.config.channels import AccountName, ChannelAccount, ChannelRoot, Group, Id
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

    def group(self, chat_id: str, *, chat_name: str = "", space_id: str | None = None) -> Group | None:
        guild = self.guilds.get(space_id or "") or self.guilds.get("*")
        if guild is None or not guild.channels:
            return guild
        own = guild.channels.get(chat_id) or guild.channels.get(chat_name) or guild.channels.get("*")
        if own is None:
            return Group(enabled=False)
        return own.model_copy(
            update={n: getattr(guild, n) for n in Group.model_fields if n not in own.model_fields_set}
        )

    @property
    def lists_groups(self) -> bool:
        return bool(self.guilds)

    def has_credentials(self) -> bool:
        return self.token is not None


class Discord(DiscordAccount, ChannelRoot):
    accounts: dict[AccountName, DiscordAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
