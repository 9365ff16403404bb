"""Methods on runs, the wire name of turns: start, wait, abort."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hobnob import exchanges, keys
from hobnob.api.rpc import Call, Payload, method
from hobnob.requests import TIMEOUT_MAX_S, IdempotencyKey
from hobnob.sessions import InboundMessage, TurnOptions
from hobnob.types import Outcome, QueueMode, Turn

MAX_RUN_ID = 128  # longest idempotency key that becomes the id of its run
TimeoutMs = Annotated[int, Field(ge=0, le=TIMEOUT_MAX_S * 1000)]

_STATUS: dict[Outcome, str] = {
    "ok": "ok",
    "no_output": "ok",
    "timed_out": "timeout",
    "failed": "error",
    "cancelled": "error",
    "lost": "error",
}


@method("agent", scope="operator.write")
async def agent(
    call: Call,
    message: str,
    idempotency_key: IdempotencyKey,
    agent_id: str | None = None,
    session_key: str | None = None,
    model: str | None = None,
    thinking: str | None = None,
    timeout: Annotated[int, Field(ge=0, le=TIMEOUT_MAX_S)] | None = None,  # noqa: ASYNC109 - the wire's name; it limits the turn, not this call
    deliver: bool | None = None,
) -> Payload:
    """Run one turn. Responds twice: `accepted` when the message is stored, and when the turn has ended."""
    key = session_key or (f"agent:{keys.agent_id(agent_id)}:main" if agent_id else "main")
    turn = await accept(
        call, key, message, idempotency_key, model=model, thinking=thinking, timeout_s=timeout
    )
    accepted = {"runId": turn.turn_id, "sessionKey": turn.session_key, "agentId": turn.agent_id}
    early = {**accepted, "status": "accepted", "acceptedAt": turn.accepted_at_ms}
    await call.respond_early(early | await _reason(call, turn))
    call.ticket.pause()
    ended = await call.services.sessions.wait(turn.turn_id)
    return (
        accepted | _outcome(ended) | {"summary": "completed" if ended.outcome == "ok" else str(ended.outcome)}
    )


@method("agent.wait", scope="operator.write")
async def agent_wait(call: Call, run_id: str, timeout_ms: int = 30_000) -> Payload:
    """Wait for a turn to end and return its outcome.

    After the timeout, `reason` says so if the turn waits for a gateway that does not run.
    """
    call.ticket.pause()
    turn = await call.services.sessions.wait(run_id, max(timeout_ms, 0) / 1000, caller=call.operator)
    if turn.status != "ended":
        return {"runId": run_id, "status": "timeout"} | await _reason(call, turn)
    return {"runId": run_id} | _outcome(turn)


@method("chat.send", scope="operator.write")
async def chat_send(
    call: Call,
    session_key: str,
    message: str,
    idempotency_key: IdempotencyKey,
    thinking: str | None = None,
    timeout_ms: TimeoutMs | None = None,
    deliver: bool | None = None,
    session_id: str | None = None,
) -> Payload:
    """Accept a message and respond at once; events report the rest. An unknown key creates a session.

    With `sessionId`, it is refused when the session has another transcript by now.
    """
    timeout_s = _seconds(timeout_ms)
    turn = await accept(
        call,
        session_key,
        message,
        idempotency_key,
        thinking=thinking,
        timeout_s=timeout_s,
        transcript=session_id,
    )
    return started(turn)


@method("chat.retry", scope="operator.write")
async def chat_retry(
    call: Call,
    session_key: str,
    seq: Annotated[int, Field(ge=1)],
    idempotency_key: Annotated[str, Field(min_length=1, max_length=MAX_RUN_ID)],
) -> Payload:
    """Send the message `seq` of the transcript again, whole, for example after its turn failed."""
    turn = await call.services.sessions.resend(call.operator, session_key, seq, idempotency_key)
    call.follow_runs(turn.session_key)
    return started(turn)


@method("sessions.send", scope="operator.write")
async def sessions_send(
    call: Call,
    key: str,
    message: str,
    thinking: str | None = None,
    timeout_ms: TimeoutMs | None = None,
    idempotency_key: IdempotencyKey | None = None,
) -> Payload:
    """Like `chat.send`, into an existing session."""
    return await _send_existing(call, key, message, thinking, timeout_ms, idempotency_key)


@method("sessions.steer", scope="operator.write")
async def sessions_steer(
    call: Call,
    key: str,
    message: str,
    thinking: str | None = None,
    timeout_ms: TimeoutMs | None = None,
    idempotency_key: IdempotencyKey | None = None,
) -> Payload:
    """Like `sessions.send`, but it aborts the running turn first."""
    return await _send_existing(call, key, message, thinking, timeout_ms, idempotency_key, mode="interrupt")


async def _send_existing(
    call: Call,
    key: str,
    message: str,
    thinking: str | None,
    timeout_ms: int | None,
    idempotency_key: str | None,
    mode: QueueMode | None = None,
) -> Payload:
    turn = await accept(
        call,
        key,
        message,
        idempotency_key,
        thinking=thinking,
        timeout_s=_seconds(timeout_ms),
        mode=mode,
        must_exist=True,
    )
    return started(turn) | {"sessionKey": turn.session_key}


@method("chat.abort", scope="operator.write")
async def chat_abort(call: Call, session_key: str, run_id: str | None = None) -> Payload:
    """Abort the open turns of a session, or one of them."""
    ended = await call.services.sessions.abort(call.operator, session_key, turn_id=run_id)
    return {"ok": True, "aborted": bool(ended), "runIds": [turn.turn_id for turn in ended]}


@method("sessions.abort", scope="operator.write")
async def sessions_abort(
    call: Call, key: str, run_id: str | None = None, descendants: bool = False
) -> Payload:
    """Like `chat.abort`; with `descendants` also the turns of everything the session spawned."""
    sessions = call.services.sessions
    if descendants:
        ended = await sessions.abort_tree(call.operator, key)
    else:
        ended = await sessions.abort(call.operator, key, turn_id=run_id)
    return {
        "ok": True,
        "abortedRunId": ended[0].turn_id if ended else None,
        "runIds": [turn.turn_id for turn in ended],
        "status": "aborted" if ended else "no-active-run",
    }


async def accept(
    call: Call,
    key: str,
    message: str,
    idempotency_key: str | None,
    *,
    model: str | None = None,
    thinking: str | None = None,
    timeout_s: int | None = None,
    mode: QueueMode | None = None,
    transcript: str | None = None,
    must_exist: bool = False,
) -> Turn:
    """Accept a message. The client's idempotency key, if short enough, becomes the id of the run."""
    if model is not None:
        call.services.models.info(model)
    own_id = idempotency_key if idempotency_key and len(idempotency_key) <= MAX_RUN_ID else None
    turn = await call.services.sessions.send(
        call.operator,
        key,
        InboundMessage(
            message,
            idempotency_key=idempotency_key,
            turn_id=own_id,
            mode=mode,
            timeout_s=timeout_s or None,
            options=TurnOptions(model=model, thinking=thinking),
            transcript=transcript,
            must_exist=must_exist,
        ),
    )
    call.follow_runs(turn.session_key)
    return turn


def started(turn: Turn) -> Payload:
    """The response for an accepted turn, or the state of the one accepted under the same key before."""
    open_status = {"queued": "started", "running": "in_flight"}.get(turn.status)
    ended_status = "ok" if turn.outcome in ("ok", "no_output") else "error"
    return {"runId": turn.turn_id, "status": open_status or ended_status}


async def _reason(call: Call, turn: Turn) -> Payload:
    why = await call.services.sessions.queries.why_waiting(turn)
    return {"reason": why} if why else {}


def _seconds(ms: int | None) -> int | None:
    return -(-ms // 1000) if ms else None


def _outcome(turn: Turn) -> Payload:
    assert turn.outcome is not None
    payloads = [{"text": turn.reply, "mediaUrl": None}] if turn.reply else []
    reply = exchanges.reply_text(turn.reply)  # the same text `sessions_send` returns
    optional = ({"reply": reply} if reply else {}) | ({"error": turn.error} if turn.error else {})
    started_at = turn.started_at_ms or turn.accepted_at_ms
    duration = (turn.ended_at_ms or started_at) - started_at
    return {
        "status": _STATUS[turn.outcome],
        "outcome": turn.outcome,
        "startedAt": turn.started_at_ms,
        "endedAt": turn.ended_at_ms,
        "result": {"payloads": payloads, "meta": {"durationMs": duration}},
    } | optional
