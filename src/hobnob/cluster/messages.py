"""Messages between gateways as payloads of PostgreSQL notifications, each of less than 8,000 bytes."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from hobnob.types import new_id

Message = tuple[str, Any]  # kind and payload

_PAYLOAD_BYTES = 7_500
_PART_BYTES = 5_400  # base64 makes 7,200 of them
_MAX_BYTES = 4_000_000  # of one message; a larger one is not sent
_MAX_INCOMPLETE = 200  # messages of which parts are missing


def pack(sender: str, messages: Iterable[Message]) -> Iterator[str]:
    """Payloads, each with several small messages, or with a part of one that is large."""
    batch: list[bytes] = []
    size = 0
    for message in messages:
        encoded = orjson.dumps(message)
        if len(encoded) > _MAX_BYTES:
            continue
        if size + len(encoded) > _PAYLOAD_BYTES and batch:
            yield _batch(sender, batch)
            batch, size = [], 0
        if len(encoded) > _PAYLOAD_BYTES:
            yield from _parts(sender, encoded)
        else:
            batch.append(encoded)
            size += len(encoded) + 1
    if batch:
        yield _batch(sender, batch)


def _batch(sender: str, encoded: list[bytes]) -> str:
    return orjson.dumps({"from": sender, "messages": [orjson.Fragment(each) for each in encoded]}).decode()


def _parts(sender: str, encoded: bytes) -> Iterator[str]:
    starts = range(0, len(encoded), _PART_BYTES)
    name = new_id()
    for number, start in enumerate(starts):
        text = base64.b64encode(encoded[start : start + _PART_BYTES]).decode()
        yield orjson.dumps({"from": sender, "part": [name, number, len(starts), text]}).decode()


class Unpacker:
    """Messages from payloads. Keeps the parts of large ones until they are complete."""

    def __init__(self) -> None:
        self._incomplete: OrderedDict[str, dict[int, bytes]] = OrderedDict()

    def unpack(self, payload: str) -> tuple[str, list[Message]]:
        """The sender and its messages. Raises ValueError, KeyError or TypeError for what is none of ours."""
        found = orjson.loads(payload)
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
