"""Prepares a transcript for the wire formats: message order, empty parts, tool call ids.

Providers require exactly one result directly after each tool call. Transcripts can differ: a crash or an
abort leaves calls without results, dropping old messages leaves results without calls, and users write
while tools run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import orjson

Message = dict[str, Any]
NO_RESULT = "There is no result: the call was interrupted."
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


class StoredMessage(Message):
    """A message of a transcript, which never changes, with what was computed for it.

    `wire` is its encoded form by format, for formats in which it does not depend on its neighbours.
    """

    __slots__ = ("chars", "parts", "seq", "tokens", "turn_id", "wire")

    def __init__(self, message: Message, *, seq: int, turn_id: str | None, tokens: int, chars: int) -> None:
        super().__init__(message)
        self.seq = seq
        self.turn_id = turn_id
        self.tokens = tokens
        self.chars = chars
        self.parts: list[Message] = _parts_of(message)
        self.wire: dict[object, list[orjson.Fragment]] = {}


def ordered(messages: list[Message]) -> Iterator[tuple[Message, list[Message]]]:
    """User, assistant and tool result messages with their non-empty parts, results directly after calls.

    User and assistant messages without non-empty parts are left out.
    """
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ("user", "assistant") or not (parts := _non_empty_parts(message)):
            continue
        yield message, parts
        if role == "assistant" and (calls := [p for p in parts if p["type"] == "toolCall"]):
            for result in _results(calls, messages, index + 1):
                yield result, _non_empty_parts(result)


def _results(calls: list[Message], messages: list[Message], start: int) -> Iterator[Message]:
    found: dict[str, Message] = {}
    for index in range(start, len(messages)):
        if messages[index].get("role") == "assistant":
            break
        if messages[index].get("role") == "toolResult":
            found.setdefault(messages[index]["toolCallId"], messages[index])
    for call in calls:
        yield found.get(call["id"]) or {
            "role": "toolResult",
            "toolCallId": call["id"],
            "toolName": call["name"],
            "content": [{"type": "text", "text": NO_RESULT}],
            "isError": True,
        }


def _non_empty_parts(message: Message) -> list[Message]:
    return message.parts if isinstance(message, StoredMessage) else _parts_of(message)


def _parts_of(message: Message) -> list[Message]:
    """Parts without blank texts, which some providers reject."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return [p for p in content or [] if p.get("type") != "text" or p.get("text", "").strip()]


def joined_text(parts: list[Message], image_placeholder: str = "") -> str:
    """The texts of the parts; `image_placeholder` replaces images where the format cannot carry them."""
    texts = [
        part["text"] if part["type"] == "text" else image_placeholder
        for part in parts
        if part["type"] in ("text", "image")
    ]
    return "\n".join(text for text in texts if text)


def call_id(text: str) -> str:
    """An id that every provider accepts: the original may come from another provider."""
    if _ID.fullmatch(text):
        return text
    return f"call_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def short_call_id(text: str) -> str:
    """An id of exactly nine letters and digits."""
    if len(text) == 9 and text.isascii() and text.isalnum():
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:9]


def written_by(message: Message, api: str, model: str) -> bool:
    """Whether this model wrote the message: its signatures are invalid for every other model."""
    return message.get("api") == api and message.get("model") == model
