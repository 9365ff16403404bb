"""Settings of the channel `slack`."""

from __future__ import annotations

from typing import Literal

from hobnob.config.channels import AccountName, ChannelAccount, ChannelRoot, Group, Id, Place
from hobnob.config.fields import Secret


class SlackAccount(ChannelAccount):
    mode: Literal["socket"] = "socket"
    """How Slack is reached: over Socket Mode, which needs no public address."""
    bot_token: Secret | None = None
    """The bot token (`xoxb-…`); unset means `$SLACK_BOT_TOKEN`."""
    app_token: Secret | None = None
    """The app token for Socket Mode (`xapp-…`); unset means `$SLACK_APP_TOKEN`."""
    api_url: str = "https://slack.com/api/"
    """Address of the Web API."""
    channels: dict[Id, Group] = {}
    """Channels by id; `*` stands for every channel. With an entry, other channels are refused."""
    unfurl_links: bool = False
    """Whether links in answers show a preview."""

    def group(self, place: Place) -> Group | None:
        return self.channels.get(place.chat_id) or self.channels.get("*")

    @property
    def lists_groups(self) -> bool:
        return bool(self.channels)

    def listed_groups(self) -> dict[str, Group]:
        return dict(self.channels)

    def rules(self) -> set[str]:
        return {"channels"}

    def group_settings(self) -> str:
        return "channels"

    def has_credentials(self) -> bool:
        return self.bot_token is not None


class Slack(SlackAccount, ChannelRoot):
    accounts: dict[AccountName, SlackAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
