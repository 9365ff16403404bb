"""Messages between gateways as payloads of PostgreSQL notifications, each of less than 8,000 bytes.

Everybody who can connect to a database can send and hear its notifications, without a right to any table. So
payloads are encrypted, with a key from a table, and numbered and dated: one that is heard cannot be sent
again, neither to a gateway that got it nor to one that started later.
"""

from __future__ import annotations

import base64
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hobnob.types import new_id

Message = tuple[str, Any]  # kind and payload

_PAYLOAD_BYTES = 5_700  # encrypted and as base64: less than 8,000, with the names of sender and parts
_PART_BYTES = 4_200  # base64 makes 5,600 of them
_NONCE_BYTES = 12
_MAX_BYTES = 4_000_000  # of one message; a larger one is not sent
_MAX_INCOMPLETE = 200  # messages of which parts are missing
_MAX_SENDERS = 1_000  # whose last number is known
_CLOCK_ERROR_S = 1.0  # of what two gateways take for the time of the database
_MAX_AGE_S = 60.0  # of a payload: the number of its sender may be forgotten after that


class Packer:
    """Makes the payloads of one gateway. `clock` tells the time of the database."""

    def __init__(self, sender: str, key: bytes, clock: Callable[[], float]) -> None:
        self._sender = sender
        self._clock = clock
        self._cipher = AESGCM(key)
        self._numbers = count(1)

    def pack(self, messages: Iterable[Message]) -> Iterator[str]:
        """Payloads, each with several small messages, or with a part of one that is large."""
        for content in _contents(messages):
            stamp = {"from": self._sender, "number": next(self._numbers), "at": self._clock()}
            plain = orjson.dumps(stamp | content)
            nonce = os.urandom(_NONCE_BYTES)
            yield base64.b64encode(nonce + self._cipher.encrypt(nonce, plain, None)).decode()


def _contents(messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
    batch: list[bytes] = []
    size = 0
    for message in messages:
        encoded = orjson.dumps(message)
        if len(encoded) > _MAX_BYTES:
            continue
        if size + len(encoded) > _PAYLOAD_BYTES and batch:
            yield _batch(batch)
            batch, size = [], 0
        if len(encoded) > _PAYLOAD_BYTES:
            yield from _parts(encoded)
        else:
            batch.append(encoded)
            size += len(encoded) + 1
    if batch:
        yield _batch(batch)


def _batch(encoded: list[bytes]) -> dict[str, Any]:
    return {"messages": [orjson.Fragment(each) for each in encoded]}


def _parts(encoded: bytes) -> Iterator[dict[str, Any]]:
    starts = range(0, len(encoded), _PART_BYTES)
    name = new_id()
    for number, start in enumerate(starts):
        text = base64.b64encode(encoded[start : start + _PART_BYTES]).decode()
        yield {"part": [name, number, len(starts), text]}


class Unpacker:
    """Messages from payloads made since this gateway started. Keeps parts of large ones until all came."""

    def __init__(self, key: bytes, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s = clock() - _CLOCK_ERROR_S
        self._cipher = AESGCM(key)
        self._last: OrderedDict[str, int] = OrderedDict()  # the number of a sender's last payload
        self._incomplete: OrderedDict[str, dict[int, bytes]] = OrderedDict()

    def unpack(self, payload: str) -> tuple[str, list[Message]]:
        """The sender and its messages. Raises ValueError, KeyError or TypeError for what is none of ours."""
        sealed = base64.b64decode(payload, validate=True)
        try:
            plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except InvalidTag:
            raise ValueError("not written with the key of this database") from None
        found = orjson.loads(plain)
        if found["at"] < max(self._since_s, self._clock() - _MAX_AGE_S):
            raise ValueError("sent long ago, or before this gateway started")
        self._check_number(found["from"], found["number"])
        if "part" not in found:
            return found["from"], [(kind, content) for kind, content in found["messages"]]
        name, number, count, text = found["part"]
        parts = self._incomplete.setdefault(name, {})
        parts[number] = base64.b64decode(text)
        if len(parts) < count:
            if len(self._incomplete) > _MAX_INCOMPLETE:
                self._incomplete.popitem(last=False)
            return found["from"], []
        del self._incomplete[name]
        kind, content = orjson.loads(b"".join(parts[n] for n in range(count)))
        return found["from"], [(kind, content)]

    def _check_number(self, sender: str, number: int) -> None:
        if number <= self._last.get(sender, 0):
            raise ValueError("sent again")
        self._last[sender] = number
        self._last.move_to_end(sender)
        if len(self._last) > _MAX_SENDERS:
            self._last.popitem(last=False)
