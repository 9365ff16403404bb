"""Proof that a message was sent, for when the answer to the request is lost.

Discord shows the bot its own messages over the gateway, with the nonce that they were sent with.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from hobnob.channels import Inbox

_MAX_LOST = 1000


def nonce(key: str) -> str:
    """A name for a part that Discord takes: at most 25 characters."""
    return base64.urlsafe_b64encode(hashlib.blake2b(key.encode(), digest_size=16).digest()).decode()[:22]


class Receipts:
    def __init__(self) -> None:
        self._sending: dict[str, str | None] = {}  # nonce → id, as soon as the message was seen
        self._lost: dict[str, str] = {}  # nonce → key

    def begin(self, key: str) -> None:
        """The part is being sent."""
        self._sending[nonce(key)] = None

    def end(self, key: str, *, lost: bool) -> str | None:
        """The request is over. If its answer was lost: the id of the message, if it was seen meanwhile."""
        name = nonce(key)
        seen = self._sending.pop(name, None)
        self._lost.pop(name, None)
        if lost and seen is None:
            self._lost[name] = key
            if len(self._lost) > _MAX_LOST:
                del self._lost[next(iter(self._lost))]
        return seen

    async def on_own_message(self, raw: dict[str, Any], inbox: Inbox) -> None:
        name, message_id = raw.get("nonce"), raw.get("id")
        if not isinstance(name, str) or not isinstance(message_id, str):
            return
        if name in self._sending:
            self._sending[name] = message_id
        elif (key := self._lost.pop(name, None)) is not None:
            await inbox.confirm(key, message_id)
