"""The channel `whatsapp`: as a linked device of a phone (`web`), or by the Cloud API (`cloud`)."""

from __future__ import annotations

from hobnob.channels import Account, Channel
from hobnob.config.channels.whatsapp import WhatsAppAccount


def channel(account: Account) -> Channel:
    settings = account.settings
    assert isinstance(settings, WhatsAppAccount)
    if settings.transport == "cloud":
        from hobnob.channels.whatsapp.cloud import Cloud

        return Cloud(account)
    from hobnob.channels.whatsapp.web import Web

    return Web(account)
