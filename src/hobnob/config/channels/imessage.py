"""Settings of the channel `imessage`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from hobnob.config.channels import AccountName, ChannelAccount, ChannelRoot
from hobnob.config.fields import NO_EFFECT_YET, Secret, Section, section


def _no_option(host: str) -> str:
    if host.startswith("-"):
        raise ValueError("a host does not begin with '-'")
    return host


class BlueBubbles(Section):
    """A BlueBubbles server on a Mac."""

    server_url: str | None = None
    """Address of the server, such as `http://192.168.1.20:1234`."""
    password: Secret | None = None
    """Password of the server."""
    webhook_url: str | None = None
    """Address at which the server reaches this gateway; unset means that the server is asked every 3 s."""
    method: Literal["apple-script", "private-api"] = "apple-script"
    """How the server sends messages; answers that quote a message need its private API."""


class IMessageAccount(ChannelAccount):
    transport: Literal["imsg", "bluebubbles"] = "imsg"
    """How Messages is reached: by the program `imsg` on a Mac, or by a BlueBubbles server."""
    cli_path: str = "imsg"
    """The program, with arguments before `rpc` if it needs some."""
    remote_host: Annotated[str, AfterValidator(_no_option)] | None = None
    """Mac on which the program runs, as `ssh` takes it; unset means this machine."""
    db_path: str | None = None
    """Database of Messages; unset means that of the user."""
    service: Literal["auto", "imessage", "sms"] = "auto"
    """What messages are sent by."""
    region: str = "US"
    """Country of phone numbers that are written without a country code."""
    include_attachments: bool = False
    """Whether files of messages are received."""
    attachment_roots: list[str] = ["/Users/*/Library/Messages/Attachments"]
    """Folders from which files of messages are read; `*` stands for one name."""
    send_read_receipts: Annotated[bool | None, NO_EFFECT_YET] = None
    """Whether messages are marked as read."""
    bluebubbles: BlueBubbles = section(BlueBubbles)
    """The BlueBubbles server, with `transport: bluebubbles`."""

    def has_credentials(self) -> bool:
        return self.transport == "bluebubbles" and self.bluebubbles.password is not None


class IMessage(IMessageAccount, ChannelRoot):
    accounts: dict[AccountName, IMessageAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
