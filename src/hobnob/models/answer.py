"""The answer of a model as it grows, from the first delta to the message the transcript keeps."""

from __future__ import annotations

from typing import Any, Literal

import orjson

from hobnob.models import TextDelta, ThinkingDelta
from hobnob.types import new_id, now_ms

StopReason = Literal["stop", "length", "toolUse"]
_COUNTS = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")


class _Part:
    __slots__ = ("fields", "kind", "pieces")

    def __init__(self, kind: str, **fields: Any) -> None:
        self.kind = kind
        self.fields = fields
        self.pieces: list[str] = []


class Answer:
    """Collects parts in the order in which they begin. `stop` is set once the provider says why it ended."""

    def __init__(self) -> None:
        self.stop: StopReason | None = None
        self.usage: dict[str, int] | None = None
        self._parts: list[_Part] = []
        self._calls: dict[object, _Part] = {}

    def text(self, piece: str) -> TextDelta:
        self._last("text").pieces.append(_checked(piece))
        return TextDelta(piece)

    def thinking(self, piece: str) -> ThinkingDelta:
        self._last("thinking").pieces.append(_checked(piece))
        return ThinkingDelta(piece)

    def sign_thinking(self, signature: str, **more: Any) -> None:
        """What the provider wants to see again next to this thinking. It can come in pieces."""
        part = self._last("thinking")
        part.fields["thinkingSignature"] = part.fields.get("thinkingSignature", "") + signature
        part.fields.update(more)

    def new_thinking(self) -> None:
        """The next thinking is a block of its own, also right after another."""
        self._parts.append(_Part("thinking"))

    def call(self, key: object, call_id: str | None = None, name: str | None = None, **more: Any) -> None:
        """A tool call begins, or goes on when `key` is known and the id is no other one."""
        _checked((call_id or "") + (name or ""))
        part = self._calls.get(key)
        if part is None or (call_id and part.fields["id"] and call_id != part.fields["id"]):
            part = self._calls[key] = _Part("toolCall", id=call_id or "", name=name or "", **more)
            self._parts.append(part)
            return
        part.fields["id"] = part.fields["id"] or call_id or ""
        part.fields["name"] = part.fields["name"] or name or ""

    def arguments(self, key: object, piece: str) -> None:
        self._calls[key].pieces.append(_checked(piece))

    def whole_arguments(self, key: object, text: str) -> None:
        """The arguments in one piece, in place of the pieces so far."""
        self._calls[key].pieces[:] = [_checked(text)]

    @property
    def calls(self) -> int:
        return sum(part.kind == "toolCall" for part in self._parts)

    def count(self, *, read: int, written: int, cache_read: int = 0, cache_write: int = 0) -> None:
        """Tokens; `read` is without what came from a cache or went into one."""
        counts = (max(read, 0), written, cache_read, cache_write)
        self.usage = dict(zip(_COUNTS, (*counts, sum(counts)), strict=True))

    def message(
        self, *, api: str, provider: str, model: str, cost: dict[str, float] | None = None
    ) -> dict[str, Any]:
        usage: dict[str, Any] = dict(self.usage or dict.fromkeys(_COUNTS, 0))
        if cost is not None:
            usage["cost"] = cost
        return {
            "role": "assistant",
            "content": [made for part in self._parts if (made := _made(part))],
            "api": api,
            "provider": provider,
            "model": model,
            "usage": usage,
            # Some providers say `stop` although they call tools.
            "stopReason": "toolUse" if self.calls and self.stop == "stop" else self.stop,
            "timestamp": now_ms(),
        }

    def _last(self, kind: str) -> _Part:
        if self._parts and self._parts[-1].kind == kind:
            return self._parts[-1]
        self._parts.append(_Part(kind))
        return self._parts[-1]


def _checked(piece: str) -> str:
    """Providers are not bound by our types: better a misfit at its chunk than a broken message at the end."""
    if not isinstance(piece, str):
        raise TypeError(f"{piece!r} should be text")
    return piece


def _made(part: _Part) -> dict[str, Any] | None:
    text = "".join(part.pieces)
    if part.kind == "toolCall":
        part.fields["id"] = part.fields["id"] or f"call_{new_id().replace('-', '')}"
        return {"type": "toolCall", **part.fields, **_arguments(text)}
    if not text and not part.fields:
        return None
    return {"type": part.kind, part.kind: text, **part.fields}


def _arguments(text: str) -> dict[str, Any]:
    if not text.strip():
        return {"arguments": {}}
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError:
        arguments = None
    return {"arguments": arguments} if isinstance(arguments, dict) else {"arguments": {}, "malformed": text}
