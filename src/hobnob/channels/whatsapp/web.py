"""WhatsApp as a linked device of a phone."""

from __future__ import annotations

from hobnob.channels import Channel


class Web(Channel):
    pass
