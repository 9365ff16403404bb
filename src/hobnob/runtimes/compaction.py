"""Compaction: replace the older part of a conversation by a summary, for the model only.

The summary is one entry at the end of the transcript that names what it covers; nothing is deleted. A model
is sent the summary, then the messages from `firstKeptSeq` on. The entry is committed when the summary is
complete, so a crash before that repeats the summary and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from hobnob import briefings
from hobnob.config.agents import Compaction
from hobnob.models import Failed, Request
from hobnob.models.history import StoredMessage
from hobnob.runtimes import Compacted, Message, Step, TurnContext
from hobnob.runtimes.meter import Meter
from hobnob.runtimes.model_calls import ModelChoice, call_model
from hobnob.runtimes.transcripts import Transcript
from hobnob.store import Store, Tx, entries
from hobnob.types import now_ms, text_of

MAX_CHUNKS = 64  # model calls of one compaction; what they cannot read is left out and named
_PAGE = 100
_CHARS_PER_TOKEN = 3
_RESULT_CHARS = 2_000  # of a tool result in what is summarised
_MIN_CHARS = 20  # a shorter summary is none
_LOST = "[Messages {first} to {last} could not be summarised and are left out: {why}]"


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary, or what is known instead of it, with the usage of the calls."""

    text: str
    failed: str | None = None
    fields: dict[str, Any] | None = None


class Compactor:
    """Compacts the transcript of one turn's session. `choices` are the models that summarise.

    `window` is the context window that may be used of each.
    """

    def __init__(
        self,
        running: TurnContext,
        store: Store,
        settings: Compaction,
        choices: Sequence[ModelChoice],
        window: int,
        meter: Meter,
    ) -> None:
        self._running = running
        self._store = store
        self._settings = settings
        self._choices = choices
        self._meter = meter
        self._chunk_tokens = max(window // 2, 500)

    async def compact(self, budget: int, *, keep_tokens: int | None = None, focus: str = "") -> bool:
        """Summarise what is older than the newest messages. False when there is nothing to summarise."""
        known = self._running.transcript
        keep = min(self._settings.keep_recent_tokens, budget // 2) if keep_tokens is None else keep_tokens
        first_kept = cut_point(known.messages, keep)
        if first_kept is None or first_kept <= known.first_kept:
            return False
        tokens_before = known.tokens
        summary = await self._summarise(known, first_kept, focus)
        message = entry(summary, known.first_kept, first_kept, tokens_before)
        await self._running.emit(Compacted(message))
        known.compact(message)
        return True

    async def _summarise(self, known: Transcript, first_kept: int, focus: str) -> Summary:
        earlier = text_of(known.summary) if known.summary is not None else ""
        text, done_to, fields = earlier, known.first_kept - 1, dict[str, Any]()
        calls = 0
        async for first, last, part in self._parts(known, first_kept):
            if calls == MAX_CHUNKS:
                lost = _LOST.format(first=first, last=first_kept - 1, why="there are too many of them")
                return Summary(f"{text}\n\n{lost}".strip(), fields=fields)
            calls += 1
            answer = await self._call(text, part, focus)
            if isinstance(answer, str):
                lost = _LOST.format(first=done_to + 1, last=first_kept - 1, why=answer)
                return Summary(f"{text}\n\n{lost}".strip(), answer, fields)
            text, done_to = text_of(answer), last
            fields = _with_usage(fields, answer)
        return Summary(text, fields=fields)

    async def _parts(self, known: Transcript, first_kept: int) -> AsyncIterator[tuple[int, int, str]]:
        """The messages to summarise as text, in parts that fit into a request, with their first and last."""
        session_id, after = self._running.turn.session_id, known.first_kept - 1
        lines: list[str] = []
        first, size = after + 1, 0
        while after < first_kept - 1:
            page = await self._store.read(_lines, session_id, after, first_kept)
            if not page:
                break
            for after, line in page:
                if line:
                    lines.append(line)
                    size += len(line) // _CHARS_PER_TOKEN
                if size > self._chunk_tokens:
                    yield first, after, "\n".join(lines)
                    lines, first, size = [], after + 1, 0
        if lines:
            yield first, after, "\n".join(lines)

    async def _call(self, earlier: str, part: str, focus: str) -> Message | str:
        """One summary, or why there is none."""
        session = self._running.session
        request = Request(
            model="",
            system=briefings.summarise(focus),
            messages=[{"role": "user", "content": briefings.to_summarise(earlier, part)}],
            thinking=self._settings.thinking_level,
            session_key=f"agent:{session.agent_id}:compaction",
        )
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                answer = await call_model(self._choices, request, _silent, meter=self._meter)
        except TimeoutError:
            return f"the model took longer than {self._settings.timeout_seconds} seconds"
        if isinstance(answer, Failed):
            return answer.message
        if len(text_of(answer.message).strip()) < _MIN_CHARS:
            return "the model wrote no summary"
        return answer.message


async def _silent(step: Step) -> None:
    """The summary is not streamed to anybody."""


def _lines(tx: Tx, session_id: str, after: int, before: int) -> list[tuple[int, str]]:
    """The next messages as text, in the thread of a reader: other turns need not wait for it."""
    page = entries.after(tx, session_id, after, limit=_PAGE)
    return [(each.seq, as_text(each.message)) for each in page if each.seq < before]


def cut_point(messages: Sequence[StoredMessage], keep_tokens: int) -> int | None:
    """The sequence number of the first message to keep: a user message, so that no call loses its result.

    The last user message and what follows it is always kept. None when nothing would be left to summarise.
    """
    inputs = [i for i, m in enumerate(messages) if m["role"] == "user"]
    if not inputs:
        return None
    kept, used = len(messages), 0
    while kept and (used := used + messages[kept - 1].tokens) <= keep_tokens:
        kept -= 1
    start = next((i for i in inputs if i >= kept), inputs[-1])
    return messages[start].seq if start > 0 else None


def as_text(message: Message) -> str:
    """A message as a line of what is summarised."""
    if "compaction" in message:
        return ""
    text = text_of(message).strip()
    if message["role"] == "toolResult":
        return f"[result of {message.get('toolName')}] {text[:_RESULT_CHARS]}"
    content = message["content"] if isinstance(message["content"], list) else []
    calls = [f"[calls {p['name']}] {p.get('arguments')}" for p in content if p.get("type") == "toolCall"]
    who = "Agent" if message["role"] == "assistant" else "User"
    return "\n".join(filter(None, (f"{who}: {text}" if text else "", *calls)))


def entry(summary: Summary, covered_from: int, first_kept: int, tokens_before: int) -> Message:
    """The entry of a compaction. Earlier summaries are part of it, so it covers everything before."""
    facts: dict[str, Any] = {
        "covers": [1, first_kept - 1],
        "newlyCovers": [covered_from, first_kept - 1],
        "firstKeptSeq": first_kept,
        "tokensBefore": tokens_before,
    }
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": summary.text}],
        "stopReason": "stop",
        "timestamp": now_ms(),
        **(summary.fields or {}),
        "provenance": {"kind": "compaction"},
        "compaction": facts | ({"failed": summary.failed} if summary.failed else {}),
    }


def _with_usage(fields: dict[str, Any], answer: Message) -> dict[str, Any]:
    """The model and usage of several calls together."""
    usage, before = answer.get("usage") or {}, fields.get("usage") or {}
    total: dict[str, Any] = {}
    for name in usage.keys() | before.keys():
        if name == "cost":
            costs = [each.get("cost") or {} for each in (usage, before)]
            total["cost"] = {"total": sum(cost.get("total", 0.0) for cost in costs)}
        else:
            total[name] = (usage.get(name) or 0) + (before.get(name) or 0)
    named = {name: answer[name] for name in ("api", "provider", "model") if name in answer}
    return named | ({"usage": total} if total else {})
