"""Context pruning: shorten old tool results in requests to a model. The transcript keeps them. Pure."""

from __future__ import annotations

import fnmatch

from hobnob import timing
from hobnob.config.agents import ContextPruning
from hobnob.models.history import StoredMessage
from hobnob.runtimes import Message, context
from hobnob.types import text_of

SOFT_CHARS, SOFT_ENDS = 4_000, 1_500  # longer results keep their first and last part
_SOFT_SHARE, _HARD_SHARE = 0.3, 0.5  # of the context window, from which results are shortened or cleared
_HARD_CHARS = 50_000  # that can be cleared; less is not worth it
_LAST_ANSWERS = 3  # their results stay


def prune(messages: list[Message], settings: ContextPruning, window: int, now_ms: int) -> list[Message]:
    """The messages with old tool results shortened, if the provider's prompt cache has expired.

    While it is valid nothing changes, because a changed prefix would invalidate it.
    """
    if settings.mode == "off" or not _cache_expired(messages, settings, now_ms):
        return messages
    share = sum(map(context.tokens, messages)) / window
    if share < _SOFT_SHARE:
        return messages
    old = [i for i in _old(messages) if _named(str(messages[i].get("toolName")), settings)]
    pruned = list(messages)
    for index in old:
        if len(text := text_of(messages[index])) > SOFT_CHARS:
            left_out = len(text) - 2 * SOFT_ENDS
            short = f"{text[:SOFT_ENDS]}\n[… {left_out:,} characters left out …]\n{text[-SOFT_ENDS:]}"
            pruned[index] = _with_text(messages[index], short)
    chars = sum(len(text_of(pruned[i])) for i in old)
    share = sum(map(context.tokens, pruned)) / window
    if settings.hard_clear.enabled and share >= _HARD_SHARE and chars >= _HARD_CHARS:
        for index in old:
            pruned[index] = _with_text(messages[index], settings.hard_clear.placeholder)
    return pruned


def _cache_expired(messages: list[Message], settings: ContextPruning, now_ms: int) -> bool:
    last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
    return last is not None and now_ms - int(last.get("timestamp") or 0) >= (
        timing.duration_ms(settings.ttl) or 0
    )


def _old(messages: list[Message]) -> list[int]:
    """The tool results after the first input and before the last answers."""
    answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    end = answers[-_LAST_ANSWERS] if len(answers) >= _LAST_ANSWERS else 0
    start = next((i for i, m in enumerate(messages) if m["role"] == "user"), len(messages))
    return [i for i in range(start, end) if messages[i]["role"] == "toolResult"]


def _named(tool: str, settings: ContextPruning) -> bool:
    rules = settings.tools
    if any(fnmatch.fnmatchcase(tool, pattern) for pattern in rules.deny):
        return False
    return not rules.allow or any(fnmatch.fnmatchcase(tool, pattern) for pattern in rules.allow)


def _with_text(message: Message, text: str) -> Message:
    plain = dict(message) if isinstance(message, StoredMessage) else message
    return {**plain, "content": [{"type": "text", "text": text}]}
