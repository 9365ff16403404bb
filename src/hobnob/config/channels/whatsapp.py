"""Settings of the channel `whatsapp`."""

from __future__ import annotations

from typing import Annotated, Literal

from hobnob.config.channels import AccountName, ChannelAccount, ChannelRoot
from hobnob.config.fields import NO_EFFECT_YET, Secret, Section, section


class WhatsAppCloud(Section):
    """The Cloud API of a business account."""

    phone_number_id: str | None = None
    """Id of the phone number (WhatsApp, API Setup); it is not the number itself."""
    access_token: Secret | None = None
    """Access token of a system user, with the permission `whatsapp_business_messaging`."""
    app_secret: Secret | None = None
    """Secret of the app (App settings, Basic); calls of WhatsApp are signed with it."""
    verify_token: Secret | None = None
    """A word of your choice that is also entered where the webhook is set up."""
    api_url: str = "https://graph.facebook.com"
    """Address of the Graph API."""
    api_version: str = "v23.0"
    """Version of the Graph API."""


class WhatsAppAccount(ChannelAccount):
    transport: Literal["web", "cloud"] = "web"
    """How WhatsApp is reached: as a linked device of a phone, or by the Cloud API of a business account."""
    cloud: WhatsAppCloud = section(WhatsAppCloud)
    """The Cloud API, with `transport: cloud`."""
    send_read_receipts: bool = False
    """Whether senders see that an admitted message was read. The Cloud API shows typing only with it."""
    auth_dir: Annotated[str | None, NO_EFFECT_YET] = None
    """Folder of the login; it is in the state directory, and those of other programs cannot be used."""
    self_chat_mode: Annotated[bool | None, NO_EFFECT_YET] = None
    """Whether the chat with oneself counts."""

    def has_credentials(self) -> bool:
        return self.transport == "cloud" and self.cloud.access_token is not None


class WhatsApp(WhatsAppAccount, ChannelRoot):
    accounts: dict[AccountName, WhatsAppAccount] = {}
    """Several accounts by name; each has every setting of the channel."""
