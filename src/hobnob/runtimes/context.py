"""What the model is shown of a conversation: as much as fits its window, and nothing left out silently."""

from __future__ import annotations

from typing import Any

import orjson

from hobnob.runtimes import Message
from hobnob.types import text_of

DEFAULT_WINDOW = 128_000
RESULT_CHARS = 90_000  # of a tool result that the model is shown: a page of history fits
_SHARE = 0.75  # of the window for history; the rest is for the system prompt, tools and the answer
_BYTES_PER_TOKEN = 3.5
_IMAGE_TOKENS = 1_500


def budget(context_window: int | None) -> int:
    """How many tokens of history a model is shown."""
    return int((context_window or DEFAULT_WINDOW) * _SHARE)


def tokens(message: Message) -> int:
    """A careful guess at what a message costs."""
    content = message.get("content")
    if isinstance(content, str):
        return int(len(content.encode()) / _BYTES_PER_TOKEN) + 4
    parts = content if isinstance(content, list) else []
    rest = [part for part in parts if part.get("type") != "image"]
    images = len(parts) - len(rest)
    return int(len(orjson.dumps(rest)) / _BYTES_PER_TOKEN) + images * _IMAGE_TOKENS + 4


def fit(messages: list[Message], limit: int) -> list[Message]:
    """The newest messages that fit. What is kept starts with somebody's input.

    A conversation never starts with a tool result whose call was cut off; the last input always stays.
    """
    kept, used = len(messages), 0
    while kept and (used := used + tokens(messages[kept - 1])) <= limit:
        kept -= 1
    last_input = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
    start = next((i for i in range(kept, len(messages)) if messages[i]["role"] == "user"), last_input)
    return messages[start:]


def marker(left_out: int) -> str:
    """What the system prompt says when something was left out."""
    return (
        f"The conversation is longer than you can read: {left_out} earlier messages are not shown to you. "
        "Say so when somebody asks about them."
    )


def cut_results(messages: list[Message], limit: int) -> list[Message]:
    """Long tool results shortened for the model; the transcript keeps them whole."""
    return [_cut(m, limit) if m["role"] == "toolResult" else m for m in messages]


def _cut(message: Message, limit: int) -> Message:
    text = text_of(message)
    if len(text) <= limit:
        return message
    head, tail = text[: limit * 3 // 4], text[-limit // 4 :]
    note = f"\n[… {len(text) - len(head) - len(tail):,} of {len(text):,} characters left out …]\n"
    images: list[Any] = [p for p in message["content"] if p.get("type") == "image"]
    return {**message, "content": [{"type": "text", "text": head + note + tail}, *images]}
