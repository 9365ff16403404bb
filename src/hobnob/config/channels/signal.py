"""Settings of the channel `signal`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hobnob.config.channels import AccountName, ChannelAccount, ChannelRoot
from hobnob.config.fields import Section, section


class SignalTransport(Section):
    """How `signal-cli` is reached. Not taken over from the channel by its accounts."""

    kind: Literal["managed-native", "external-native"] = "managed-native"
    """Whether Hobnob runs `signal-cli` itself, or a daemon is running already."""
    cli_path: str = "signal-cli"
    """The program that Hobnob runs."""
    config_path: str | None = None
    """The folder with the data of `signal-cli`; unset means one in the state directory."""
    socket_path: str | None = None
    """The socket of a daemon that is running: `signal-cli daemon --socket PATH`."""
    url: str | None = None
    """The address of a daemon that is running: `http://127.0.0.1:8080` for `signal-cli daemon --http`."""
    startup_timeout_ms: int = Field(60_000, ge=1_000)
    """How long `signal-cli` may take until it answers."""


class SignalAccount(ChannelAccount):
    account: str | None = None
    """The bot's phone number, such as `+15551234567`; unset means the one account of `signal-cli`."""
    account_uuid: str | None = None
    """The bot's id at Signal, by which others may mention it."""
    transport: SignalTransport = section(SignalTransport)
    """How `signal-cli` is reached."""
    ignore_attachments: bool = False
    """Whether files of messages are left out."""

    def has_credentials(self) -> bool:
        return self.account is not None


class Signal(SignalAccount, ChannelRoot):
    accounts: dict[AccountName, SignalAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
