"""Events as WebSocket frames. They carry what changed, not the whole session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from hobnob import approvals, keys
from hobnob.events import (
    AnswerDelta,
    ApprovalChanged,
    EntryAppended,
    Event,
    ExchangeChanged,
    JobChanged,
    SessionChanged,
    SessionDeleted,
    ToolStarted,
    TurnChanged,
    WebchatMessage,
)
from hobnob.jobs.presentation import job_row, run_row
from hobnob.sessions import presentation
from hobnob.types import Delivery, Entry, Session, Turn, now_ms

Payload = dict[str, Any]
Frame = tuple[str, Payload]
Frames = Callable[[Event], list[Frame]]

NAMES = (
    "agent",
    "chat",
    "connect.challenge",
    "cron",
    "exchange.changed",
    "exec.approval.requested",
    "exec.approval.resolved",
    "health",
    "node.invoke.cancel",
    "node.invoke.progress",
    "node.invoke.request",
    "node.pair.requested",
    "node.pair.resolved",
    "presence",
    "session.message",
    "session.tool",
    "sessions.changed",
    "shutdown",
    "tick",
)
CAPABILITIES = ("published-model-catalog",)  # clients check these before they call
_CACHED = 256
_SENT_PER_DOUBLING = 64  # about how often the text so far is sent while it doubles
_CHAT_STATES = {"cancelled": "aborted", "failed": "error", "timed_out": "error", "lost": "error"}


def run_frames(event: Event) -> list[Frame]:
    """For clients that sent into a session: the progress of its runs."""
    match event:
        case AnswerDelta(key, turn_id, text, thinking, restart):
            return _delta_frames(key, turn_id, text, thinking=thinking, restart=restart)
        case ToolStarted(key, turn_id):
            return [("agent", _agent(key, turn_id, "tool", _tool_started(event)))]
        case EntryAppended(key, entry) if entry.role == "toolResult" and entry.turn_id:
            return [("agent", _agent(key, entry.turn_id, "tool", _tool_result(entry)))]
        case TurnChanged(turn) if turn.step != "note":
            return _turn(turn)
        case WebchatMessage(key, delivery):
            return [("chat", _post(key, delivery))]
        case _:
            return []


def transcript_frames(event: Event) -> list[Frame]:
    """For clients that read a transcript: new entries and tool calls."""
    match event:
        case EntryAppended(key, entry):
            frames: list[Frame] = [("session.message", message_payload(key, entry))]
            if entry.role == "toolResult" and entry.turn_id:
                frames.append(("session.tool", _tool(key, entry.turn_id, _tool_result(entry))))
            return frames
        case ToolStarted(key, turn_id):
            return [("session.tool", _tool(key, turn_id, _tool_started(event)))]
        case _:
            return []


def gateway_frames(event: Event) -> list[Frame]:
    """For clients that watch all sessions: which of them changed, and how."""
    match event:
        case EntryAppended(key, entry):
            news = {"phase": "message", "sessionId": entry.session_id, "messageSeq": entry.seq}
            return [_changed(key, entry.created_at_ms, news)]
        case TurnChanged(turn) if turn.merged_into is None:
            return _progress(turn)
        case SessionChanged(session, reason):
            return [_changed(session.key, session.updated_at_ms, {"reason": reason, **_settings(session)})]
        case SessionDeleted(key):
            return [_changed(key, now_ms(), {"reason": "delete"})]
        case ExchangeChanged(exchange):
            return [("exchange.changed", presentation.exchange_row(exchange))]
        case JobChanged(job, action, run):
            news = {"jobId": job.job_id, "action": action, "job": job_row(job)}
            return [("cron", (run_row(run) if run else {}) | news)]
        case ApprovalChanged(approval) if approval.state == "pending":
            return [("exec.approval.requested", approvals.payload(approval))]
        case ApprovalChanged(approval):
            decision = {"id": approval.approval_id, "decision": approval.state, "ts": approval.decided_at_ms}
            return [("exec.approval.resolved", decision | {"resolvedBy": approval.decided_by})]
        case _:
            return []


def message_payload(key: str, entry: Entry) -> Payload:
    """An entry as subscribers get it, like a message of the history."""
    message, _, _ = presentation.sanitised(entry.message)
    known = {"id": f"{entry.session_id}:{entry.seq}", "seq": entry.seq}
    if entry.turn_id:
        known["runId"] = entry.turn_id
        if entry.role == "user":  # lets a client recognise its own message
            message["idempotencyKey"] = known["idempotencyKey"] = f"{entry.turn_id}:user"
    message |= {"seq": entry.seq, "__openclaw": known}
    payload = {
        "sessionKey": key,
        "agentId": keys.agent_of(key),
        "sessionId": entry.session_id,
        "messageId": f"{entry.session_id}:{entry.seq}",
        "messageSeq": entry.seq,
        "message": message,
    }
    return payload | ({"runId": entry.turn_id} if entry.turn_id else {})


def _delta_frames(key: str, turn_id: str, text: str, *, thinking: bool, restart: bool) -> list[Frame]:
    data: Payload = {"delta": text} | ({"restart": True} if restart else {})
    frames = [("agent", _agent(key, turn_id, "thinking" if thinking else "assistant", data))]
    if not thinking:
        delta = {**_run(key, turn_id), "state": "delta", "deltaText": text}
        frames.append(("chat", delta | ({"replace": True} if restart else {})))
    return frames


def _tool_started(tool: ToolStarted) -> Payload:
    arguments = presentation.shown_arguments(tool.arguments)
    return {"phase": "start", "name": tool.name, "toolCallId": tool.call_id, "args": arguments}


def _tool_result(entry: Entry) -> Payload:
    """The end of a tool call, with its result as in the history: bounded, without secrets."""
    message, _, _ = presentation.sanitised(entry.message)
    return {
        "phase": "result",
        "name": message.get("toolName"),
        "toolCallId": message.get("toolCallId"),
        "isError": bool(message.get("isError")),
        "result": {"content": message["content"]},
    }


def _turn(turn: Turn) -> list[Frame]:
    key = turn.session_key
    if turn.status == "running" and turn.abort_reason is None:
        started = {"phase": "start", "startedAt": turn.started_at_ms}
        return [("agent", _agent(key, turn.turn_id, "lifecycle", started))]
    if turn.status != "ended" or turn.outcome is None:
        return []
    phase = "end" if turn.outcome in ("ok", "no_output") else "error"
    ended = {"phase": phase, "endedAt": turn.ended_at_ms, "outcome": turn.outcome, "error": turn.error}
    chat = {**_run(key, turn.turn_id), "state": _CHAT_STATES.get(turn.outcome, "final")}
    if turn.error:
        chat["errorMessage"] = turn.error
    if turn.reply:
        content = [{"type": "text", "text": presentation.shown_text(turn.reply)}]
        chat["message"] = {"role": "assistant", "content": content, "timestamp": now_ms()}
    return [("agent", _agent(key, turn.turn_id, "lifecycle", ended)), ("chat", chat)]


def _progress(turn: Turn) -> list[Frame]:
    news: Payload = {"runId": turn.turn_id, "step": turn.step}
    match turn.status:
        case "queued":
            news |= {"reason": "send", "status": "queued", "hasActiveRun": True}
        case "running" if turn.abort_reason is None:
            news |= {"phase": "start", "status": "running", "hasActiveRun": True}
        case "ended":
            failed = turn.outcome not in ("ok", "no_output")
            news |= {"phase": "error" if failed else "end", "outcome": turn.outcome, "hasActiveRun": False}
        case _:
            return []
    at = turn.ended_at_ms or turn.started_at_ms or turn.accepted_at_ms
    return [_changed(turn.session_key, at, news)]


def _settings(session: Session) -> Payload:
    row = {
        "sessionId": session.session_id,
        "kind": session.kind,
        "label": session.label,
        "displayName": session.display_name,
        "model": session.model_override,
        "thinkingLevel": session.thinking_level,
        "verboseLevel": session.verbose_level,
        "sendPolicy": session.send_policy,
        "archived": session.archived_at_ms is not None,
    }
    return {name: value for name, value in row.items() if value is not None}


def _post(key: str, delivery: Delivery) -> Payload:
    # Its own run id: the turn that wrote it has already had its last chat event.
    chat = {**_run(key, f"post-{delivery.delivery_id}"), "state": "final"}
    content = [{"type": "text", "text": presentation.shown_text(delivery.text)}]
    chat["message"] = {"role": "assistant", "content": content, "timestamp": delivery.created_at_ms}
    chat["deliveryId"] = delivery.delivery_id
    return chat | ({"exchangeId": delivery.exchange_id} if delivery.exchange_id else {})


def _changed(key: str, at_ms: int, news: Payload) -> Frame:
    agent = keys.agent_of(key)
    return "sessions.changed", {
        "sessionKey": key,
        "agentId": agent,
        "ts": now_ms(),
        "updatedAt": at_ms,
        **news,
    }


def _run(key: str, turn_id: str) -> Payload:
    return {"runId": turn_id, "sessionKey": key, "agentId": keys.agent_of(key)}


def _agent(key: str, turn_id: str, stream: str, data: Payload) -> Payload:
    return {**_run(key, turn_id), "stream": stream, "ts": now_ms(), "data": data}


def _tool(key: str, turn_id: str, data: Payload) -> Payload:
    return {**_run(key, turn_id), "ts": now_ms(), "data": data}


class TextSoFar:
    """The text of a run so far, for clients that expect it whole instead of its deltas.

    It is due when it has grown by a share: sent with each delta, a long answer would cost quadratic time. The
    last event of a run always has its whole text.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = self._sent_chars = 0

    def add(self, piece: str) -> str | None:
        """The text, if it is due."""
        self._pieces.append(piece)
        self._chars += len(piece)
        if self._chars - self._sent_chars < self._chars // _SENT_PER_DOUBLING:
            return None
        self._sent_chars = self._chars
        self._pieces[:] = ["".join(self._pieces)]
        return self._pieces[0]


class EventEncoder:
    """Encodes each event once for all subscribers. A connection adds its own sequence number."""

    def __init__(self) -> None:
        # The event is kept with its text: while it is alive, no other object has its id.
        self._cache: dict[tuple[int, Frames], tuple[Event, list[bytes]]] = {}

    def texts(self, event: Event, of: Frames) -> list[bytes]:
        found = self._cache.get((id(event), of))
        if found is None:
            found = event, [encode_open(name, payload) for name, payload in of(event)]
            self._cache[id(event), of] = found
            if len(self._cache) > _CACHED:
                del self._cache[next(iter(self._cache))]
        return found[1]


def encode_open(name: str, payload: Payload) -> bytes:
    """An event frame without its end, which `with_seq` adds."""
    return orjson.dumps({"type": "event", "event": name, "payload": payload})[:-1]


def with_seq(text: bytes, seq: int) -> bytes:
    return b'%b,"seq":%d}' % (text, seq)
