"""`{{a.b[0].c}}` in a text is what stands at that place in a payload. Nothing else is understood."""

from __future__ import annotations

import re
from typing import Any

import orjson

_PLACE = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d{1,6})\]")
_PATH = re.compile(r"[^.\[\]]+(?:\[\d{1,6}\])*(?:\.[^.\[\]]+(?:\[\d{1,6}\])*)*")


def rendered(template: str, payload: Any) -> str:
    """The text with what the payload holds. A place that is not there is empty."""
    return _PLACE.sub(lambda found: _text(at(payload, found[1])), template)


def has_places(template: str) -> bool:
    """Whether a payload has a say in what comes out."""
    return _PLACE.search(template) is not None


def at(payload: Any, path: str) -> Any:
    """What stands at a place; None when nothing does."""
    if not _PATH.fullmatch(path):
        return None
    for name, index in _STEP.findall(path):
        if name and isinstance(payload, dict):
            payload = payload.get(name)
        elif index and isinstance(payload, list):
            payload = payload[int(index)] if int(index) < len(payload) else None
        else:
            return None
    return payload


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
