"""Settings of the channel `email`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from hobnob.config.channels import AccountName, ChannelAccount, ChannelRoot, Group, Place, ReplyToMode
from hobnob.config.fields import Secret, Section, section

_LOCAL = ("127.0.0.1", "::1", "localhost")
# Servers whose results on senders are known to carry this name.
_KNOWN_RESULTS = {"imap.gmail.com": "mx.google.com"}


class MailServer(Section):
    host: str | None = None
    """Name of the server."""
    port: int | None = Field(None, ge=1, le=65535)
    """Port of the server; unset means the usual one for `security`."""
    security: Literal["tls", "starttls", "none"] = "tls"
    """How the connection is encrypted; `none` only for a server on this machine."""

    @model_validator(mode="after")
    def _check_security(self) -> MailServer:
        if self.security == "none" and self.host is not None and self.host not in _LOCAL:
            raise ValueError('security "none" would send the password readable for everybody on the way')
        return self


class Imap(MailServer):
    mailbox: str = "INBOX"
    """The mailbox whose new mails are read."""


class EmailAccount(ChannelAccount):
    address: str | None = None
    """The bot's mail address."""
    user: str | None = None
    """User name for both servers; unset means the address."""
    password: Secret | None = None
    """Password for both servers, where possible one for this program alone."""
    imap: Imap = section(Imap)
    """The server that mails are read from."""
    smtp: MailServer = section(MailServer)
    """The server that mails are sent through."""
    authserv_id: list[str] = []
    """Names under which your mail server writes `Authentication-Results`; `*` may stand for a part."""
    dangerously_allow_unverified_senders: bool = False
    """Whether a sender is believed without proof. Anybody can then write under any address."""
    sent_mailbox: str | None = None
    """The mailbox for copies of the bot's mails; unset means the one the server names, else the inbox."""
    reply_to_mode: ReplyToMode | None = "all"
    """Which mails of an answer refer to the question; those that do not refer to the thread only."""

    def has_credentials(self) -> bool:
        return self.imap.host is not None

    def group(self, place: Place) -> Group | None:
        """The rules of a mailing list. Its id has no case."""
        named = {name.lower(): rules for name, rules in self.groups.items()}
        return named.get(place.chat_id) or named.get("*")

    def trusted_results(self) -> list[str]:
        """The names under which results on senders are believed."""
        known = _KNOWN_RESULTS.get((self.imap.host or "").lower())
        return self.authserv_id or ([known] if known else [])


class Email(EmailAccount, ChannelRoot):
    accounts: dict[AccountName, EmailAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
