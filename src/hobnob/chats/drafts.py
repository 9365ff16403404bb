"""Drafts of answers: messages that are shown while an answer grows, and become its first part."""

from __future__ import annotations

import asyncio
import logging

from hobnob.channels import Channel, NotNow, Outgoing
from hobnob.inbound import Address
from hobnob.types import Delivery

EDIT_TIMEOUT_S = 10.0
_log = logging.getLogger(__name__)


class Drafts:
    """Completes and removes drafts. `Live` overrides `take`: it shows those of running turns."""

    async def take(self, delivery: Delivery, *, has_text: bool) -> str | None:
        """Stop showing the draft of an answer. Returns its id if the first part can take its place."""
        return None

    async def complete(self, channel: Channel, part: Outgoing, draft_id: str) -> bool:
        """Make a draft the first part of its answer. If it cannot be changed, remove it and return False.

        Raises NotNow. It may be repeated: a second time changes nothing.
        """
        try:
            async with asyncio.timeout(EDIT_TIMEOUT_S):
                await channel.edit(part.address, draft_id, part.text)
            return True
        except NotNow:
            raise
        except Exception as error:  # whatever the channel raises: the answer is sent as a new message
            _log.debug("draft not completed: %s", error)
            await self.remove(channel, part.address, draft_id)
            return False

    async def remove(self, channel: Channel, to: Address, draft_id: str, instead: str = "…") -> None:
        """Remove a draft; where a channel cannot, leave a short text in its place."""
        try:
            async with asyncio.timeout(EDIT_TIMEOUT_S):
                if channel.capabilities.deletes:
                    await channel.delete(to, draft_id)
                else:
                    await channel.edit(to, draft_id, instead)
        except Exception as error:  # whatever the channel raises: nothing more can be done
            _log.debug("draft not removed: %s", error)
