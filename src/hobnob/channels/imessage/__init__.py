"""The channel `imessage`: by the program `imsg` on a Mac, or by a BlueBubbles server."""

from __future__ import annotations

from hobnob.channels import Account, Channel
from hobnob.config.channels.imessage import IMessageAccount


def channel(account: Account) -> Channel:
    settings = account.settings
    assert isinstance(settings, IMessageAccount)
    if settings.transport == "bluebubbles":
        from hobnob.channels.imessage.bluebubbles import BlueBubblesChannel

        return BlueBubblesChannel(account)
    from hobnob.channels.imessage.imsg import Imsg

    return Imsg(account)
