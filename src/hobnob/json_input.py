"""JSON from outside, with limits on its depth and its number of objects and lists.

The decoder accepts deeper JSON than the encoder writes, so without a limit a value could come in, but not be
stored or passed on. And decoding millions of tiny lists stops the event loop for seconds.
"""

from __future__ import annotations

from typing import Any

import orjson

MAX_DEPTH = 100
MAX_CONTAINERS = 250_000
_ENCODER_DEPTH = 254  # the limit of orjson.dumps


class TooComplex(ValueError):
    """The JSON exceeds a limit."""


def loads(data: bytes | bytearray | str, *, max_depth: int | None = MAX_DEPTH) -> Any:
    """Decode JSON. Raises ValueError; its text is the rest of a sentence. The decoder's own limit is 1024."""
    opened = check_size(data)
    value = orjson.loads(data)
    if max_depth is not None and opened > max_depth and _is_deeper(value, max_depth):
        raise TooComplex(f"nested deeper than {max_depth} levels")
    return value


def check_size(data: bytes | bytearray | str) -> int:
    """Raise TooComplex if there are too many objects and lists. Returns their number."""
    opened = count(data)
    if opened > MAX_CONTAINERS:
        raise TooComplex(f"more than {MAX_CONTAINERS:,} objects and lists")
    return opened


def count(data: bytes | bytearray | str) -> int:
    """The number of opening brackets, including those in texts."""
    if isinstance(data, str):
        return data.count("{") + data.count("[")
    return data.count(b"{") + data.count(b"[")


def _is_deeper(value: Any, depth: int) -> bool:
    """Ask the encoder, which counts levels quickly: wrapped in enough lists, the value exceeds its limit."""
    for _ in range(_ENCODER_DEPTH - depth):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False
