"""Proof that a message was sent, for when the answer to the request is lost.

Discord shows the bot its own messages over the gateway, each with the nonce that it was sent with. The nonce
contains the key of the part, so this also works for messages that an earlier process sent.
"""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from typing import Any

from hobnob.channels import Inbox

_MAX_ANSWERED = 1000
_KEY = re.compile(r"(?P<id>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):(?P<part>0|[1-9][0-9]{0,2})")
_NONCE = re.compile(r"(?P<id>[\w-]{22})(?P<part>0|[1-9][0-9]{0,2})", re.ASCII)


def nonce(key: str) -> str:
    """A name for a part that Discord takes: at most 25 characters. `<uuid>:<number>` can be read back."""
    if parts := _KEY.fullmatch(key):
        return f"{_packed(uuid.UUID(parts['id']).bytes)}{parts['part']}"
    return _packed(hashlib.blake2b(key.encode(), digest_size=16).digest())


def key_of(name: str) -> str | None:
    """The key in a nonce, if it has one."""
    if (parts := _NONCE.fullmatch(name)) is None:
        return None
    return f"{uuid.UUID(bytes=base64.urlsafe_b64decode(parts['id'] + '=='))}:{parts['part']}"


def _packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Receipts:
    """What is known about the messages that the bot sends."""

    def __init__(self) -> None:
        self._sending: dict[str, str | None] = {}  # nonce → id, as soon as the message was seen
        self._answered: dict[str, None] = {}  # nonces; the oldest go

    def begin(self, key: str) -> None:
        """A part is being sent."""
        name = nonce(key)
        self._answered.pop(name, None)
        self._sending[name] = None

    def answered(self, key: str) -> None:
        """The request was answered with the message."""
        name = nonce(key)
        self._sending.pop(name, None)
        self._answered[name] = None
        if len(self._answered) > _MAX_ANSWERED:
            del self._answered[next(iter(self._answered))]

    def ended(self, key: str) -> str | None:
        """The request ended in another way. Returns the id of the message, if it was seen meanwhile."""
        return self._sending.pop(nonce(key), None)

    async def on_own_message(self, raw: dict[str, Any], inbox: Inbox) -> None:
        """Report a message of the bot itself, unless its request was answered or is under way."""
        name, message_id = raw.get("nonce"), raw.get("id")
        if not isinstance(name, str) or not isinstance(message_id, str) or name in self._answered:
            return
        if name in self._sending:
            self._sending[name] = message_id
        elif (key := key_of(name)) is not None:
            await inbox.confirm(key, message_id)
