"""Settings of the channel `irc`."""

from __future__ import annotations

from pydantic import Field

from hobnob.config.channels import AccountName, ChannelAccount, ChannelRoot, Group, Place
from hobnob.config.fields import Secret, Section, section


class NickServ(Section):
    enabled: bool = False
    """Whether the bot identifies itself to a service after it has connected."""
    service: str = "NickServ"
    """Nick of the service."""
    password: Secret | None = None
    """Password for the service."""


class IrcAccount(ChannelAccount):
    host: str | None = None
    """Name of the server."""
    port: int | None = Field(None, ge=1, le=65535)
    """Port of the server; unset means 6697 with TLS, 6667 without."""
    tls: bool = True
    """Whether the connection is encrypted."""
    nick: str = "hobnob"
    """The bot's nick; `_` is appended while it is taken."""
    username: str | None = None
    """User name; unset means the nick."""
    realname: str = "Hobnob"
    """The name shown by WHOIS."""
    password: Secret | None = None
    """Password of the server."""
    sasl: bool = False
    """Whether the bot signs in by SASL, with `username` and `password`."""
    channels: list[str] = []
    """Rooms to join, such as `#hobnob`."""
    nickserv: NickServ = section(NickServ)
    """Sign-in at a service for nicks."""

    def has_credentials(self) -> bool:
        return self.host is not None

    def group(self, place: Place) -> Group | None:
        """The rules of a room. Names of rooms have no case."""
        named = {name.lower(): rules for name, rules in self.groups.items()}
        return named.get(place.chat_id.lower()) or named.get("*")


class Irc(IrcAccount, ChannelRoot):
    accounts: dict[AccountName, IrcAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
