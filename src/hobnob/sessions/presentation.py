"""Sessions and transcripts as tools and API show them: bounded, without secrets, absent when unknown."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from hobnob import exchanges, keys, redact
from hobnob.delivery_routes import delivery_route
from hobnob.errors import BadInput
from hobnob.store.entries import Line
from hobnob.store.mirror import name_of
from hobnob.types import Exchange, Session, Turn

TEXT_CHARS = 4_000
LIST_BYTES = 64 * 1024
HISTORY_BYTES = 80 * 1024
SEARCH_BYTES = 32 * 1024
SNIPPET_CHARS = 300
_NEAR_CHARS = 8_000  # looked at around a match
_REMEMBERED = 2_000  # characters of a message that is remembered as it is shown
_CUT = "\n…(truncated)…"
_INTERNAL = ("cron", "hook", "node")
Row = dict[str, Any]


def session_row(
    session: Session,
    viewer: keys.Viewer,
    home: Path,
    *,
    children: Iterable[str] = (),
    parent: str | None = None,
) -> Row:
    """A session as a row of a list, with the keys of its family that may be shown."""
    route = delivery_route(session)
    context = route and _known(
        channel=route.channel, to=route.to, accountId=route.account_id, threadId=route.thread_id
    )
    shown = [keys.shown(child, viewer) for child in children]
    return _known(
        key=keys.shown(session.key, viewer),
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
        systemSent=session.system_sent or None,
        abortedLastRun=session.aborted_last_run or None,
        sendPolicy=session.send_policy,
        lastChannel=session.last_channel,
        lastTo=session.last_to,
        deliveryContext=context,
        transcriptPath=f"{home}/{name_of(session.agent_id, session.session_id)}",
        status=session.status,
        spawnedBy=parent and keys.shown(parent, viewer),
        childSessions=shown or None,
        archivedAt=session.archived_at_ms,
    )


def channel_of(session: Session) -> str:
    """Where a session takes place: as recorded for groups, by its last use for direct chats."""
    if session.kind in _INTERNAL:
        return "internal"
    if session.kind == "group":
        return session.channel or session.last_channel or "unknown"
    return session.last_channel or session.channel or "unknown"


@dataclass(slots=True)
class ShownMessages:
    """Messages fit to be shown, and what was taken out of them."""

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
            "bytes": self.size - bool(self.messages),  # there is no comma after the last
        }


def messages(lines: Iterable[Line], limit: int = HISTORY_BYTES) -> ShownMessages:
    """The newest messages that fit into `limit` bytes, oldest first. The lines come newest first.

    Once it is full no further line is read, and whoever wants to know how many were dropped has to count.
    """
    shown = ShownMessages()
    for seq, role, body in lines:
        look = _seen if len(body) <= _REMEMBERED else _line
        message, size, cut, redacted = look(body, seq)
        if shown.size + size > limit:
            if shown.messages:
                shown.full = True
                break
            message = {"role": role, "content": _too_large(seq), "seq": seq}
            size, cut = len(orjson.dumps(message)) + 1, True
        shown.messages.append(message)
        shown.size += size
        shown.content_truncated |= cut
        shown.content_redacted |= redacted
    shown.messages.reverse()
    return shown


def _line(body: str, seq: int) -> tuple[Row, int, bool, bool]:
    """A message with its number, its size, and what was taken out of it."""
    message, cut, redacted = sanitised(orjson.loads(body))
    message = {**message, "seq": seq}
    return message, len(orjson.dumps(message)) + 1, cut, redacted


# What was said does not change, and lists and pages show the newest of it again and again. Nobody who is
# given a remembered message changes it.
_seen = lru_cache(4096)(_line)


def sanitised(message: Row) -> tuple[Row, bool, bool]:
    """A message without secrets and image data, its texts cut; whether anything was cut, or redacted."""
    clean, redacted = redact.message(message)
    content = clean["content"]
    if isinstance(content, str):
        text, cut = _shortened(content)
        return {**clean, "content": text}, cut, redacted
    parts, any_cut = [], False
    for part in content:
        part, cut = _part(part)
        parts.append(part)
        any_cut |= cut
    return {**clean, "content": parts}, any_cut, redacted


def snippet(text: str, words: Iterable[str]) -> str:
    """The part of a text around the first of the words. Redacted before it is cut: half a secret is one."""
    at = _first(text, words)
    near = text[max(0, at - _NEAR_CHARS) : at + _NEAR_CHARS]
    clean = " ".join(redact.text(near)[0].split())
    start = max(0, _first(clean, words) - SNIPPET_CHARS // 3)
    cut = clean[start : start + SNIPPET_CHARS - 2]
    return ("…" if start else "") + cut + ("…" if start + len(cut) < len(clean) else "")


def _first(text: str, words: Iterable[str]) -> int:
    low = text.lower()
    return min((at for word in words if (at := low.find(word.lower())) >= 0), default=0)


def step_row(turn: Turn) -> Row:
    """A turn of an exchange."""
    used = {"input": turn.input_tokens, "output": turn.output_tokens, "costUsd": turn.cost_usd}
    status = turn.outcome if turn.status == "ended" else turn.status
    return _known(
        runId=turn.turn_id,
        step=turn.step,
        sessionKey=turn.session_key,
        sessionId=turn.session_id,
        seq=turn.input_seq,
        status=status,
        text=exchanges.said(redact.text(turn.reply or "")[0]) or None,
        skipped=exchanges.is_skip(turn.reply or "") or None,
        error=turn.error,
        acceptedAt=turn.accepted_at_ms,
        startedAt=turn.started_at_ms,
        endedAt=turn.ended_at_ms,
        usage=used if turn.input_tokens or turn.output_tokens else None,
    )


def exchange_row(found: Exchange) -> Row:
    return _known(
        id=found.exchange_id,
        kind=found.kind,
        requester=found.requester_key,
        target=found.target_key,
        state=found.state,
        phase=found.phase if found.state == "open" else None,
        end=found.end_reason,
        loopEnd=found.loop_end,
        label=found.label,
        outcome=found.outcome,
        hop=found.hop,
        waitUntil=found.wait_until_ms or None,
        request=redact.text(found.request)[0],
        createdAt=found.created_at_ms,
        updatedAt=found.updated_at_ms,
    )


def encode_cursor(*position: int | str) -> str:
    """A place in a list, as an opaque word."""
    return base64.urlsafe_b64encode(orjson.dumps(position)).decode().rstrip("=")


def decode_cursor(text: str, *kinds: type) -> tuple[Any, ...]:
    """What a cursor says. Raises BadInput for one that is not ours."""
    try:
        found = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError:
        found = None
    fits = isinstance(found, list) and [type(value) for value in found] == list(kinds)
    if not fits or any(isinstance(value, int) and abs(value) >= 2**63 for value in found):
        raise BadInput("The cursor is not one this list gave out.", fix="Leave it out to begin at the start.")
    return tuple(found)


def _part(part: Any) -> tuple[Any, bool]:
    if not isinstance(part, dict):
        return part, False
    match part.get("type"):
        case "text":
            text, cut = _shortened(str(part.get("text", "")))
            return {**part, "text": text}, cut
        case "thinking":
            text, cut = _shortened(str(part.get("thinking", "")))
            kept = {k: v for k, v in part.items() if k not in ("thinkingSignature", "signature")}
            return {**kept, "thinking": text}, cut
        case "image":
            kept = {k: v for k, v in part.items() if k != "data"}
            return {**kept, "omitted": True, "bytes": len(str(part.get("data", "")))}, True
        case "toolCall":
            arguments = orjson.dumps(part.get("arguments"), default=str)
            if len(arguments) <= TEXT_CHARS:
                return part, False
            return {**part, "arguments": {"omitted": True, "bytes": len(arguments)}}, True
    return part, False


def _shortened(text: str) -> tuple[str, bool]:
    return (text, False) if len(text) <= TEXT_CHARS else (text[:TEXT_CHARS] + _CUT, True)


def _too_large(seq: int) -> str:
    return f"[omitted: message {seq} alone is larger than what may be shown at a time]"


def _known(**values: Any) -> Row:
    return {name: value for name, value in values.items() if value is not None}
