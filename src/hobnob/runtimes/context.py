"""Fits a conversation into the context window of a model, with a note about omitted messages."""

from __future__ import annotations

from typing import Any

import orjson

from hobnob.models.history import StoredMessage
from hobnob.runtimes import Message
from hobnob.types import text_of

DEFAULT_WINDOW = 128_000
RESULT_CHARS = 90_000  # of a tool result as the model sees it; a page of sessions_history fits
_HISTORY_SHARE = 0.75  # of the window; the rest is for the system prompt, tools and the answer
_BYTES_PER_TOKEN = 3.5
_IMAGE_TOKENS = 1_500


def budget(context_window: int | None) -> int:
    """The number of tokens of history to send to a model."""
    return int((context_window or DEFAULT_WINDOW) * _HISTORY_SHARE)


def tokens(message: Message) -> int:
    """Estimate the tokens of a message, rather too high than too low."""
    if isinstance(message, StoredMessage):
        return message.tokens
    content = message.get("content")
    if isinstance(content, str):
        return int(len(content.encode()) / _BYTES_PER_TOKEN) + 4
    parts = content if isinstance(content, list) else []
    rest = [part for part in parts if part.get("type") != "image"]
    images = len(parts) - len(rest)
    return int(len(orjson.dumps(rest)) / _BYTES_PER_TOKEN) + images * _IMAGE_TOKENS + 4


def fit(messages: list[Message], limit: int) -> list[Message]:
    """The newest messages that fit, from a user message on. The last user message always stays.

    So the conversation never starts with a tool result whose call was dropped.
    """
    if messages and messages[0]["role"] == "user" and sum(map(tokens, messages)) <= limit:
        return messages
    kept, used = len(messages), 0
    while kept and (used := used + tokens(messages[kept - 1])) <= limit:
        kept -= 1
    last_input = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
    start = next((i for i in range(kept, len(messages)) if messages[i]["role"] == "user"), last_input)
    return messages[start:]


def omission_note(omitted: int) -> str:
    """The note for the system prompt when messages were omitted."""
    return (
        f"The conversation exceeds your context window: {omitted} earlier messages are not shown to you. "
        "Say so when you are asked about them."
    )


def cut(message: Message, limit: int) -> Message:
    """A message with its text shortened to about `limit` characters, from its middle."""
    text = text_of(message)
    if len(text) <= limit:
        return message
    head, tail = text[: limit * 3 // 4], text[-limit // 4 :]
    note = f"\n[… {len(text) - len(head) - len(tail):,} of {len(text):,} characters left out …]\n"
    images: list[Any] = [p for p in message["content"] if p.get("type") == "image"]
    return {**message, "content": [{"type": "text", "text": head + note + tail}, *images]}
