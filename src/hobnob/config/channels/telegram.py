"""Settings of the channel `telegram`."""

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


class TelegramGroup(Group):
    topics: dict[Id, Group] = {}
    """Topics of the group by id; `*` stands for every topic."""


class TelegramAccount(ChannelAccount):
    bot_token: Secret | None = None
    """The token that @BotFather gave; unset means `tokenFile`, else `$TELEGRAM_BOT_TOKEN`."""
    token_file: str | None = None
    """File that contains the token."""
    api_root: str = "https://api.telegram.org"
    """Address of the Bot API."""
    link_preview: bool = True
    """Whether links in answers show a preview."""
    groups: dict[Id, TelegramGroup] = {}  # type: ignore[assignment]
    """Groups by id (a negative number); `*` means every group. With an entry, others are refused."""

    def group(self, place: Place) -> Group | None:
        group = self.groups.get(place.chat_id) or self.groups.get("*")
        if group is None or place.thread_id is None:
            return group
        topic = group.topics.get(place.thread_id) or group.topics.get("*")
        return with_defaults(topic, group) if topic else group

    def has_credentials(self) -> bool:
        return self.bot_token is not None or self.token_file is not None


class Telegram(TelegramAccount, ChannelRoot):
    accounts: dict[AccountName, TelegramAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
