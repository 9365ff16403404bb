"""Sessions, messages and exchanges as JSON rows for tools and API: bounded, redacted, no empty fields."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from hobnob import exchanges, keys, redact
from hobnob.briefings import STATUS
from hobnob.delivery_routes import delivery_route
from hobnob.errors import BadInput
from hobnob.policy import authority
from hobnob.store.entries import Line
from hobnob.store.mirror import name_of
from hobnob.types import Exchange, Session, Turn

TEXT_CHARS = 4_000
LIST_BYTES = 64 * 1024
HISTORY_BYTES = 80 * 1024
SEARCH_BYTES = 32 * 1024
SNIPPET_CHARS = 300
SHOWN_CHARS = 500_000  # of a reply or request that is shown in full
_CONTEXT_CHARS = 100_000  # before and after a match, redacted before the snippet is cut
_SNIPPET_WORDS = 20  # of a query, for which the place of the snippet is looked up
_MAX_ARGUMENTS = 64 * 1024  # bytes of tool arguments that are redacted; larger ones are left out
_CACHED_CHARS = 2_000  # longest message whose row is cached
_TRUNCATION_MARK = "\n…(truncated)…"
_MAX_CURSOR = 4096  # characters: a position can contain a session key
_INTERNAL = ("cron", "hook", "node")
Row = dict[str, Any]
_TIMEOUT = "did not answer in time. The turn goes on: read sessions_history later, or wait for its message"


@dataclass(frozen=True, slots=True, eq=False)
class RowStyle:
    """How the rows of one viewer are shown. Styles are compared by identity: `row_style` makes them."""

    viewer: keys.Viewer
    transcripts: str | None
    """The folder of their files; None if there are none."""


@lru_cache(64)
def row_style(viewer: keys.Viewer, transcripts: Path | None) -> RowStyle:
    return RowStyle(viewer, None if transcripts is None else str(transcripts))


@lru_cache(1024)
def session_row(
    session: Session, style: RowStyle, children: tuple[str, ...] = (), parent: str | None = None
) -> tuple[Row, int]:
    """The row of a session and its size as JSON. `children` and `parent` are those that the viewer may see.

    Callers must not modify the row: it is cached.
    """
    viewer, folder = style.viewer, style.transcripts
    route = delivery_route(session)
    context = route and _without_none(
        channel=route.channel, to=route.to, accountId=route.account_id, threadId=route.thread_id
    )
    child_keys = [keys.display_stored(child, viewer) for child in children]
    row = _without_none(
        key=keys.display_stored(session.key, viewer),
        kind=session.kind,
        channel=channel_of(session),
        displayName=session.display_name,
        label=session.label,
        updatedAt=session.updated_at_ms,
        sessionId=session.session_id,
        model=session.model_override or session.model,
        contextTokens=session.context_tokens,
        totalTokens=session.total_tokens or None,
        thinkingLevel=session.thinking_level,
        verboseLevel=session.verbose_level,
        systemSent=session.system_sent,
        abortedLastRun=session.aborted_last_run,
        sendPolicy=session.send_policy,
        lastChannel=session.last_channel,
        lastTo=session.last_to,
        deliveryContext=context,
        transcriptPath=folder and f"{folder}/{name_of(session.agent_id, session.session_id)}",
        status=session.status,
        spawnedBy=parent and keys.display_stored(parent, viewer),
        childSessions=child_keys or None,
        archivedAt=session.archived_at_ms,
    )
    return row, len(orjson.dumps(row))


def channel_of(session: Session) -> str:
    """The channel of a session: of a group the recorded one, else the last one used."""
    if session.kind in _INTERNAL:
        return "internal"
    if session.kind == "group":
        return session.channel or session.last_channel or "unknown"
    return session.last_channel or session.channel or "unknown"


@dataclass(slots=True)
class ShownMessages:
    """The rows of messages, and whether anything was truncated, redacted or dropped."""

    messages: list[Row] = field(default_factory=list)
    content_truncated: bool = False
    content_redacted: bool = False
    full: bool = False
    dropped: int = 0
    size: int = 2

    def flags(self) -> Row:
        return {
            "truncated": self.content_truncated or self.dropped > 0,
            "droppedMessages": self.dropped,
            "contentTruncated": self.content_truncated,
            "contentRedacted": self.content_redacted,
            "bytes": self.size - bool(self.messages),  # no comma after the last
        }


def messages(lines: Iterable[Line], limit: int = HISTORY_BYTES) -> ShownMessages:
    """The newest messages that fit into `limit` bytes, oldest first. The lines come newest first.

    It stops reading when the page is full, so it does not count the dropped messages; the caller does.
    """
    page = ShownMessages()
    for seq, role, body in lines:
        row_of = _cached_row if len(body) <= _CACHED_CHARS else _message_row
        message, size, cut, redacted = row_of(body, seq)
        if page.size + size > limit:
            if page.messages:
                page.full = True
                break
            message = {"role": role, "content": _too_large(seq), "seq": seq}
            size, cut = len(orjson.dumps(message)) + 1, True
        page.messages.append(message)
        page.size += size
        page.content_truncated |= cut
        page.content_redacted |= redacted
    page.messages.reverse()
    return page


def _message_row(body: str, seq: int) -> tuple[Row, int, bool, bool]:
    """The row of a message, its size in bytes, and whether it was truncated or redacted."""
    message, cut, redacted = sanitised(orjson.loads(body))
    message = {**message, "seq": seq}
    return message, len(orjson.dumps(message)) + 1, cut, redacted


# Messages never change, and lists read the newest ones often. Callers must not modify a cached row.
_cached_row = lru_cache(1024)(_message_row)


def sanitised(message: Row) -> tuple[Row, bool, bool]:
    """A message without secrets and image data, and whether it was truncated or redacted."""
    content = message["content"]
    if isinstance(content, list):
        message = {**message, "content": list(map(_without_large_arguments, content))}
    clean, redacted = redact.message(message, TEXT_CHARS)
    if isinstance(content, str):
        text, cut = _truncated(clean["content"], content)
        return {**clean, "content": text}, cut, redacted
    parts, any_cut = [], False
    for part, original in zip(clean["content"], content, strict=True):
        part, cut = _part(part, original)
        parts.append(part)
        any_cut |= cut
    return {**clean, "content": parts}, any_cut, redacted


def shown_text(text: str) -> str:
    """A text with its secrets masked, in full unless it is huge."""
    if not redact.exceeds(text, SHOWN_CHARS):
        return redact.text(text)[0]
    return redact.excerpt(text, SHOWN_CHARS) + _TRUNCATION_MARK


def shown_arguments(arguments: Any) -> Any:
    """The arguments of a tool call with their secrets masked; large ones are left out."""
    return redact.data(_small_arguments(arguments))[0]


def snippet(text: str, words: Iterable[str]) -> str:
    """The text around the first match. Redacted before it is cut: half a secret is not recognised."""
    words = list(words)[:_SNIPPET_WORDS]
    at = _first(text, words)
    context = text[max(0, at - _CONTEXT_CHARS) : at + _CONTEXT_CHARS]
    clean = " ".join(redact.text(context)[0].split())
    start = max(0, _first(clean, words) - SNIPPET_CHARS // 3)
    cut = clean[start : start + SNIPPET_CHARS - 2]
    return ("…" if start else "") + cut + ("…" if start + len(cut) < len(clean) else "")


def _first(text: str, words: Iterable[str]) -> int:
    low = text.lower()
    return min((at for word in words if (at := low.find(word.lower())) >= 0), default=0)


def step_row(turn: Turn) -> Row:
    """The row of a turn in an exchange."""
    used = {"input": turn.input_tokens, "output": turn.output_tokens, "costUsd": turn.cost_usd}
    status = turn.outcome if turn.status == "ended" else turn.status
    return _without_none(
        runId=turn.turn_id,
        step=turn.step,
        sessionKey=turn.session_key,
        sessionId=turn.session_id,
        seq=turn.input_seq,
        status=status,
        text=exchanges.reply_text(redact.text(turn.reply or "")[0]) or None,
        skipped=exchanges.is_skip(turn.reply or "") or None,
        error=turn.error,
        acceptedAt=turn.accepted_at_ms,
        startedAt=turn.started_at_ms,
        endedAt=turn.ended_at_ms,
        usage=used if turn.input_tokens or turn.output_tokens else None,
        authority=authority_row(turn),
    )


def authority_row(turn: Turn) -> Row | None:
    """Whose tools a turn was accepted with; None if that makes no difference.

    `both` has the tools that are `withheld` from the target, `target` the `rule` that leaves it those.
    """
    if f'"{authority.OPTION}"' not in turn.options:
        return None
    own = orjson.loads(turn.options)[authority.OPTION]
    if not own["withheld"]:
        return None
    more = {"withheld": own["withheld"]} if own["mode"] == "both" else {"rule": own["rule"]}
    return {"mode": own["mode"], "tools": own["tools"]} | more


def exchange_row(exchange: Exchange) -> Row:
    """The row of an exchange. `waited` is false for a message whose sender went on without the answer."""
    is_awaited = exchange.state == "open" and exchange.phase == "primary" and exchange.wait_until_ms > 0
    return _without_none(
        id=exchange.exchange_id,
        kind=exchange.kind,
        requester=exchange.requester_key,
        target=exchange.target_key,
        state=exchange.state,
        phase=exchange.phase if exchange.state == "open" else None,
        end=exchange.end_reason,
        loopEnd=exchange.loop_end,
        label=exchange.label,
        outcome=exchange.outcome,
        hop=exchange.hop,
        waitUntil=exchange.wait_until_ms if is_awaited else None,
        waited=exchange.wait_until_ms > 0,
        request=shown_text(exchange.request),
        createdAt=exchange.created_at_ms,
        updatedAt=exchange.updated_at_ms,
    )


def encode_cursor(*position: int | str) -> str:
    """A position in a list as an opaque cursor."""
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode().rstrip("=")


def decode_cursor(text: str, *kinds: type) -> tuple[Any, ...]:
    """Decode a cursor into its position. Raises BadInput unless its values have these types."""
    try:
        if len(text) > _MAX_CURSOR:
            raise ValueError("too long")
        padded = text + "=" * (-len(text) % 4)
        found = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except ValueError:
        found = None
    valid = isinstance(found, list) and [type(value) for value in found] == list(kinds)
    if not valid or any(isinstance(value, int) and abs(value) >= 2**63 for value in found):
        raise BadInput("The cursor is not valid for this list.", fix="Leave it out to begin at the start.")
    return tuple(found)


def _without_large_arguments(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "toolCall":
        return part
    return {**part, "arguments": _small_arguments(part.get("arguments"))}


def _small_arguments(arguments: Any) -> Any:
    size = len(orjson.dumps(arguments, default=str))
    return arguments if size <= _MAX_ARGUMENTS else {"omitted": True, "bytes": size}


def _part(part: Any, original: Any) -> tuple[Any, bool]:
    """A redacted part, bounded in size, and whether anything of the original is missing."""
    if not isinstance(part, dict):
        return part, False
    match part.get("type"):
        case "text":
            text, cut = _truncated(str(part.get("text", "")), str(original.get("text", "")))
            return {**part, "text": text}, cut
        case "thinking":
            text, cut = _truncated(str(part.get("thinking", "")), str(original.get("thinking", "")))
            kept = {k: v for k, v in part.items() if k not in ("thinkingSignature", "signature")}
            return {**kept, "thinking": text}, cut
        case "image":
            kept = {k: v for k, v in part.items() if k != "data"}
            return {**kept, "omitted": True, "bytes": len(str(part.get("data", "")))}, True
        case "toolCall":
            return _tool_call(part, original)
    return part, False


def _tool_call(part: Row, original: Row) -> tuple[Row, bool]:
    cut = False
    if isinstance(malformed := part.get("malformed"), str):
        malformed, cut = _truncated(malformed, str(original["malformed"]))
        part = {**part, "malformed": malformed}
    size = len(orjson.dumps(original.get("arguments"), default=str))
    if size <= TEXT_CHARS:
        return part, cut
    return {**part, "arguments": {"omitted": True, "bytes": size}}, True


def _truncated(text: str, original: str) -> tuple[str, bool]:
    """A redacted text without its end if it is too long, or if the redaction dropped the end."""
    if len(text) <= TEXT_CHARS and not redact.exceeds(original, TEXT_CHARS):
        return text, False
    return text[:TEXT_CHARS] + _TRUNCATION_MARK, True


def _too_large(seq: int) -> str:
    return f"[omitted: message {seq} alone is larger than a page may be]"


def _without_none(**values: Any) -> Row:
    return {name: value for name, value in values.items() if value is not None}


def outcome_row(turn: Turn) -> Row:
    """The answer to a send that waited for this turn."""
    if turn.status != "ended":
        return {"status": "timeout", "error": f"{turn.session_key} {_TIMEOUT}."}
    reply = exchanges.reply_text(turn.reply)
    if turn.outcome in ("ok", "no_output"):
        row: Row = {"status": "ok", "reply": reply} if reply else {"status": "no_reply"}
        if turn.structured is not None:
            row |= {"status": "ok", "structured": orjson.loads(turn.structured)}
        return row | ({"schemaError": turn.schema_error} if turn.schema_error else {})
    why = turn.error or STATUS[turn.outcome or "failed"]
    return {"status": "error", "error": f"The turn there ended as {STATUS[turn.outcome or 'failed']}: {why}"}
