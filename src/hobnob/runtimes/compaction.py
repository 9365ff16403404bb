"""Compaction: replace the older part of a conversation by a summary, for the model only.

The summary is one entry at the end of the transcript that names what it covers; nothing is deleted. A model
is sent the summary, then the messages from `firstKeptSeq` on. A long part is summarised in several calls.
The result of each is saved, so a crash repeats at most the call under way. Reading is spread out over time,
because turns of other sessions are more urgent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import orjson

from hobnob import briefings, crashpoints
from hobnob.config.agents import Compaction
from hobnob.models import Failed, Request
from hobnob.models.history import StoredMessage
from hobnob.records import Struct, replace
from hobnob.runtimes import Compacted, Compacting, Message, Step, TurnContext
from hobnob.runtimes.meter import Meter
from hobnob.runtimes.model_calls import ModelChoice, call_model
from hobnob.store import Store, Tx, entries
from hobnob.types import now_ms, text_of

_PAGE = 25  # messages read at a time: about half a millisecond
_REST = 9  # the pause after each page, in multiples of the CPU time it took
_MAX_REST_S = 0.05
_YIELD_EVERY = 20  # deltas of a summary after which others get to run
_CHARS_PER_TOKEN = 3
_RESULT_CHARS = 2_000  # of a tool result in what is summarised
_MIN_CHARS = 20  # a shorter summary is none
_LOST = "[Messages {first} to {last} could not be summarised and are left out: {why}]"


class Summary(Struct, frozen=True):
    """A summary, or what is known instead of it, with the usage of the calls."""

    text: str
    failed: str | None = None
    fields: dict[str, Any] | None = None


class Compactor:
    """Compacts the transcript of one turn's session. `choices` are the models that summarise.

    `window` is the context window that may be used of each. `flush` is called before a summary is made.
    """

    def __init__(
        self,
        running: TurnContext,
        store: Store,
        settings: Compaction,
        choices: Sequence[ModelChoice],
        window: int,
        meter: Meter,
        flush: Callable[[int], Awaitable[None]],
    ) -> None:
        self._running = running
        self._store = store
        self._settings = settings
        self._choices = choices
        self._meter = meter
        self._flush = flush
        self._chunk_chars = max(window // 2, 500) * _CHARS_PER_TOKEN

    async def compact(
        self, budget: int, *, keep_tokens: int | None = None, keep: int | None = None, focus: str = ""
    ) -> bool:
        """Summarise what is older than the newest messages. False when there is nothing to summarise.

        `keep` is a number of messages to keep as they are, instead of tokens.
        """
        known = self._running.transcript
        if keep is not None:
            keep_tokens = sum(message.tokens for message in known.messages[-keep:])
        elif keep_tokens is None:
            keep_tokens = min(self._settings.keep_recent_tokens, budget // 2)
        first_kept = cut_point(known.messages, keep_tokens)
        if first_kept is None or first_kept <= known.first_kept:
            return False
        await self._flush(budget)
        tokens_before = known.tokens
        done = await next_compaction(self._store, self._running)
        summary = await self._summarise(done, first_kept, focus)
        message = entry(summary, known.first_kept, first_kept, tokens_before, done.flush)
        await self._running.emit(Compacted(message))
        known.compact(message)
        return True

    async def _summarise(self, done: entries.Compaction, first_kept: int, focus: str) -> Summary:
        known = self._running.transcript
        if done.done_to is None or done.focus != focus or done.done_to >= first_kept:
            earlier = text_of(known.summary) if known.summary is not None else ""
            done = replace(done, focus=focus, done_to=known.first_kept - 1, summary=earlier, fields="{}")
        async for last, part in self._parts(done.done_to or 0, first_kept):
            fields = orjson.loads(done.fields)
            answer = await self._call(done.summary, part, focus)
            if isinstance(answer, str):
                lost = _LOST.format(first=(done.done_to or 0) + 1, last=first_kept - 1, why=answer)
                return Summary(f"{done.summary}\n\n{lost}".strip(), answer, fields)
            spent = orjson.dumps(_with_usage(fields, answer)).decode()
            done = replace(done, done_to=last, summary=text_of(answer), fields=spent)
            await self._running.emit(Compacting(done, (answer,)))
            crashpoints.point("after-summary-part")
        return Summary(done.summary, fields=orjson.loads(done.fields))

    async def _parts(self, after: int, first_kept: int) -> AsyncIterator[tuple[int, str]]:
        """The messages to summarise as text, in parts that fit into a request, each with its last message."""
        session_id = self._running.turn.session_id
        lines: list[str] = []
        size = 0
        while after < first_kept - 1:
            page, took_s = await self._store.read(_lines, session_id, after, first_kept, self._chunk_chars)
            if not page:
                break
            for after, line in page:
                if line:
                    lines.append(line)
                    size += len(line)
                if size > self._chunk_chars:
                    yield after, "\n".join(lines)
                    lines, size = [], 0
            await asyncio.sleep(min(_REST * took_s, _MAX_REST_S))
        if lines:
            yield after, "\n".join(lines)

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
                answer = await call_model(self._choices, request, silent(), meter=self._meter)
        except TimeoutError:
            return f"the model took longer than {self._settings.timeout_seconds} seconds"
        if isinstance(answer, Failed):
            return answer.message
        if len(text_of(answer.message).strip()) < _MIN_CHARS:
            return "the model wrote no summary"
        return answer.message


async def next_compaction(store: Store, running: TurnContext) -> entries.Compaction:
    """What is done of the compaction that the transcript needs next."""
    covered_from = running.transcript.first_kept
    known = await store.read(entries.compaction, running.turn.session_id)
    if known is None or known.covered_from != covered_from:
        return entries.Compaction(covered_from)
    return known


def silent() -> Callable[[Step], Awaitable[None]]:
    """Receives what is streamed to nobody. An answer that comes at once must not hold up the others."""
    received = 0

    async def receive(step: Step) -> None:
        nonlocal received
        received += 1
        if received % _YIELD_EVERY == 0:
            await asyncio.sleep(0)

    return receive


def _lines(
    tx: Tx, session_id: str, after: int, before: int, limit: int
) -> tuple[list[tuple[int, str]], float]:
    """The next messages as text, in the thread of a reader, and the CPU time it took."""
    started = time.thread_time()
    page = entries.lines_after(tx, session_id, after, before=before, limit=_PAGE)
    found = [(seq, _cut(as_text(orjson.loads(body)), limit)) for seq, _, body in page]
    return found, time.thread_time() - started


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} [… {len(text) - limit:,} characters left out …]"


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


def entry(
    summary: Summary, covered_from: int, first_kept: int, tokens_before: int, flush: str | None = None
) -> Message:
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
        "compaction": facts
        | ({"failed": summary.failed} if summary.failed else {})
        | ({"memoryFlush": flush} if flush else {}),
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
