"""Hook templates: `{{a.b[0].c}}` is the value at that path of the payload. There is no other syntax.

Where the payload has no such value, `headers.x`, `query.k`, `path`, `now` and `payload.a` are of the call.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

_PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d{1,6})\]")
_SECRET_HEADER = re.compile(r"authorization|cookie|token|secret|signature|api-?key")
PLAIN = re.compile(r"[A-Za-z0-9._@+/:-]*")
_PATH = re.compile(r"[^.\[\]]+(?:\[\d{1,6}\])*(?:\.[^.\[\]]+(?:\[\d{1,6}\])*)*")


def render(template: str, payload: Any) -> str:
    """The template with values of the payload. A path that does not exist renders as nothing."""
    return _PLACEHOLDER.sub(lambda found: _text(value_at(payload, found[1])), template)


def render_key(template: str, payload: Any) -> str:
    """A session key with values of the payload. A value that is not plain is replaced by its hash.

    Keys stand in prompts: a sentence of a stranger must not become part of one.
    """
    return _PLACEHOLDER.sub(lambda found: _plain(_text(value_at(payload, found[1]))), template)


def _plain(value: str) -> str:
    if PLAIN.fullmatch(value):
        return value
    return "sha256-" + hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()[:32]


def has_placeholders(template: str) -> bool:
    """Whether the payload contributes to the result."""
    return _PLACEHOLDER.search(template) is not None


class CallValues(dict[str, Any]):
    """A payload with the values of its call behind it. Headers with secrets are left out."""

    def __init__(
        self, payload: Mapping[str, Any], headers: Mapping[str, str], query: Mapping[str, str], path: str
    ) -> None:
        super().__init__(payload)
        self._call = {
            "headers": {k.lower(): v for k, v in headers.items() if not _SECRET_HEADER.search(k.lower())},
            "query": dict(query),
            "path": path,
            "now": datetime.now(UTC).isoformat(timespec="seconds"),
            "payload": payload,
        }

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name, self._call.get(name, default))


def value_at(payload: Any, path: str) -> Any:
    """The value at a path; None when there is none."""
    path = path.strip()
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
