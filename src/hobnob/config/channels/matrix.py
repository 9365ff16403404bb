"""Settings of the channel `matrix`."""

from __future__ import annotations

from typing import Literal

from hobnob.config.channels import AccountName, ChannelAccount, ChannelRoot, Id
from hobnob.config.fields import Secret


class MatrixAccount(ChannelAccount):
    homeserver: str | None = None
    """Address of the homeserver, such as `https://matrix.org`."""
    user_id: str | None = None
    """The bot's user id, such as `@bot:matrix.org`; needed with `password`."""
    password: Secret | None = None
    """The bot's password; used once, to obtain an access token that is kept in the state directory."""
    access_token: Secret | None = None
    """An access token, instead of a password."""
    device_id: str | None = None
    """The device the access token belongs to; unset means the one the login returned."""
    device_name: str = "Hobnob"
    """Name of the device that a login by password creates."""
    encryption: bool = False
    """Whether the bot takes part in encrypted rooms; needs the extra `matrix-e2e`."""
    auto_join: Literal["off", "allowlist", "always"] = "off"
    """Which invitations the bot accepts."""
    auto_join_allowlist: list[Id] = []
    """Ids of rooms, or of users who invite, for `autoJoin: allowlist`."""
    thread_replies: Literal["inbound", "always", "off"] = "inbound"
    """Answers in threads: to messages in threads, to every message of a room, never."""

    def has_credentials(self) -> bool:
        return self.access_token is not None or self.password is not None


class Matrix(MatrixAccount, ChannelRoot):
    accounts: dict[AccountName, MatrixAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
