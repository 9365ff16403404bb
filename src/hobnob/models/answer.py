"""`Answer` collects the deltas of one model call and builds the message for the transcript."""

from __future__ import annotations

from typing import Any, Literal

import orjson

from hobnob import json_input
from hobnob.models import TextDelta, ThinkingDelta
from hobnob.models.failures import CallFailed
from hobnob.types import new_id, now_ms

StopReason = Literal["stop", "length", "toolUse"]
MAX_CHARS = 4_000_000  # of one answer, with thinking and tool arguments
MAX_PARTS, MAX_CALLS = 10_000, 500
_USAGE_FIELDS = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")
_NOT_JSON = "(arguments that cannot be written as JSON: nested too deeply, or of an unknown type)"


class _Part:
    __slots__ = ("fields", "kind", "pieces", "signature")

    def __init__(self, kind: str, **fields: Any) -> None:
        self.kind = kind
        self.fields = fields
        self.pieces: list[str] = []
        self.signature: list[str] | None = None


class Answer:
    """Collects parts in the order in which they begin. `stop` is None until the provider sends a reason.

    Raises CallFailed when the answer exceeds a limit.
    """

    def __init__(self) -> None:
        self.stop: StopReason | None = None
        self.usage: dict[str, int] | None = None
        self.call_count = 0
        self._chars = 0
        self._parts: list[_Part] = []
        self._calls: dict[object, _Part] = {}

    def add_text(self, piece: str) -> TextDelta:
        self._current("text").pieces.append(self._counted(piece))
        return TextDelta(piece)

    def add_thinking(self, piece: str) -> ThinkingDelta:
        self._current("thinking").pieces.append(self._counted(piece))
        return ThinkingDelta(piece)

    def sign_thinking(self, signature: str, **fields: Any) -> None:
        """Append to the signature that the provider requires when this thinking is sent back to it."""
        part = self._current("thinking")
        part.signature = part.signature or []
        part.signature.append(self._counted(signature))
        part.fields.update(fields)

    def begin_thinking(self) -> None:
        """Start a new thinking block, even directly after another one."""
        self._begin(_Part("thinking"))

    def add_call(
        self, key: object, call_id: str | None = None, name: str | None = None, **fields: Any
    ) -> None:
        """Start a tool call, or continue it if `key` is known and the call id does not differ."""
        self._counted((call_id or "") + (name or ""))
        part = self._calls.get(key)
        if part is None or (call_id and part.fields["id"] and call_id != part.fields["id"]):
            part = self._calls[key] = _Part("toolCall", id=call_id or "", name=name or "", **fields)
            self.call_count += 1
            self._begin(part)
            return
        part.fields["id"] = part.fields["id"] or call_id or ""
        part.fields["name"] = part.fields["name"] or name or ""

    def add_arguments(self, key: object, piece: str) -> None:
        self._calls[key].pieces.append(self._counted(piece))

    def add_argument_object(self, key: object, arguments: Any) -> None:
        """Arguments that arrive as a JSON value instead of text. Unusable ones spoil only this call."""
        try:
            text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        except TypeError:
            text = _NOT_JSON
        self.add_arguments(key, text)

    def replace_arguments(self, key: object, text: str) -> None:
        """Set the complete arguments in place of the pieces so far."""
        pieces = self._calls[key].pieces
        self._chars -= sum(map(len, pieces))
        pieces[:] = [self._counted(text)]

    def set_usage(
        self, *, uncached_input: int, output: int, cache_read: int = 0, cache_write: int = 0
    ) -> None:
        """Set the token counts. `uncached_input` excludes tokens read from a cache or written to one."""
        counts = (max(uncached_input, 0), output, cache_read, cache_write)
        self.usage = dict(zip(_USAGE_FIELDS, (*counts, sum(counts)), strict=True))

    def message(
        self, *, api: str, provider: str, model: str, cost: dict[str, float] | None = None
    ) -> dict[str, Any]:
        usage: dict[str, Any] = dict(self.usage or dict.fromkeys(_USAGE_FIELDS, 0))
        if cost is not None:
            usage["cost"] = cost
        return {
            "role": "assistant",
            "content": [item for part in self._parts if (item := _content_item(part))],
            "api": api,
            "provider": provider,
            "model": model,
            "usage": usage,
            # Some providers send `stop` although the answer calls tools.
            "stopReason": "toolUse" if self.call_count and self.stop == "stop" else self.stop,
            "timestamp": now_ms(),
        }

    def _current(self, kind: str) -> _Part:
        if self._parts and self._parts[-1].kind == kind:
            return self._parts[-1]
        self._begin(_Part(kind))
        return self._parts[-1]

    def _begin(self, part: _Part) -> None:
        if len(self._parts) >= MAX_PARTS or self.call_count > MAX_CALLS:
            raise CallFailed(
                "garbled", f"sent an answer of more than {MAX_PARTS} parts or {MAX_CALLS} tool calls"
            )
        self._parts.append(part)

    def _counted(self, piece: str) -> str:
        self._chars += len(_require_text(piece))
        if self._chars > MAX_CHARS:
            raise CallFailed("garbled", f"sent an answer of more than {MAX_CHARS:,} characters")
        return piece


def _require_text(piece: str) -> str:
    """Provider JSON can hold any type: fail at the chunk, not later with a broken message."""
    if not isinstance(piece, str):
        raise TypeError(f"expected text, got {type(piece).__name__}")
    return piece


def _content_item(part: _Part) -> dict[str, Any] | None:
    text = "".join(part.pieces)
    if part.signature is not None:
        part.fields["thinkingSignature"] = "".join(part.signature)
    if part.kind == "toolCall":
        part.fields["id"] = part.fields["id"] or f"call_{new_id().replace('-', '')}"
        return {"type": "toolCall", **part.fields, **_parse_arguments(text)}
    if not text and not part.fields:
        return None
    return {"type": part.kind, part.kind: text, **part.fields}


def _parse_arguments(text: str) -> dict[str, Any]:
    if not text.strip():
        return {"arguments": {}}
    try:
        arguments = json_input.loads(text)
    except ValueError:
        arguments = None
    return {"arguments": arguments} if isinstance(arguments, dict) else {"arguments": {}, "malformed": text}
