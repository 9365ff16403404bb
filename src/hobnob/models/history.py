"""A transcript made ready for the wire: what every provider demands of the order of messages.

A tool call is answered at once, by exactly one result. Transcripts can be otherwise: a crash or an abort
leaves calls without results, cutting off old messages leaves results without calls, and people write
while tools run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]
NO_RESULT = "There is no result: the call was interrupted."
_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


def in_order(messages: list[Message]) -> Iterator[tuple[Message, list[Message]]]:
    """Users, answers and tool results, each result right after the answer that called for it.

    With the parts of each that say anything; users and answers that say nothing are left out.
    """
    for at, message in enumerate(messages):
        role = message.get("role")
        if role not in ("user", "assistant") or not (parts := _parts_of(message)):
            continue
        yield message, parts
        if role == "assistant" and (calls := [p for p in parts if p["type"] == "toolCall"]):
            for result in _results(calls, messages, at + 1):
                yield result, _parts_of(result)


def _results(calls: list[Message], messages: list[Message], start: int) -> Iterator[Message]:
    found: dict[str, Message] = {}
    for at in range(start, len(messages)):
        if messages[at].get("role") == "assistant":
            break
        if messages[at].get("role") == "toolResult":
            found.setdefault(messages[at]["toolCallId"], messages[at])
    for call in calls:
        yield found.get(call["id"]) or {
            "role": "toolResult",
            "toolCallId": call["id"],
            "toolName": call["name"],
            "content": [{"type": "text", "text": NO_RESULT}],
            "isError": True,
        }


def _parts_of(message: Message) -> list[Message]:
    """The parts of a message that say anything; empty text is refused by some providers."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return [p for p in content or [] if p.get("type") != "text" or p.get("text", "").strip()]


def text_in(parts: list[Message], no_image: str = "") -> str:
    """The text of some parts; `no_image` stands for images where the format has no place for them."""
    texts = [p["text"] if p["type"] == "text" else no_image for p in parts if p["type"] in ("text", "image")]
    return "\n".join(text for text in texts if text)


def call_id(text: str) -> str:
    """An id that every provider takes: another provider may have made it."""
    if _ID.fullmatch(text):
        return text
    return f"call_{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def short_call_id(text: str) -> str:
    """An id of nine letters and digits."""
    if len(text) == 9 and text.isascii() and text.isalnum():
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:9]


def written_by(message: Message, api: str, model: str) -> bool:
    """Whether this very model wrote it: what it signed means nothing to others."""
    return message.get("api") == api and message.get("model") == model
