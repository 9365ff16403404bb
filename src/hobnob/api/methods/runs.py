"""Runs: a turn as the wire calls it. Accept one, wait for one, end one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hobnob import keys
from hobnob.api.rpc import Call, Payload, method
from hobnob.sessions import TurnOptions
from hobnob.types import Outcome, QueueMode, Turn

MAX_RUN_ID = 128  # of a client's key that becomes the run's id
MAX_TIMEOUT_S = 30 * 86_400
TimeoutMs = Annotated[int, Field(ge=0, le=MAX_TIMEOUT_S * 1000)]

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
    idempotency_key: str,
    agent_id: str | None = None,
    session_key: str | None = None,
    model: str | None = None,
    thinking: str | None = None,
    timeout: Annotated[int, Field(ge=0, le=MAX_TIMEOUT_S)] | None = None,  # noqa: ASYNC109 - the wire's name; it limits the turn, not this call
    deliver: bool | None = None,
) -> Payload:
    """One turn. Answers twice: `accepted` once the message is kept, and again when the turn has ended."""
    key = session_key or (f"agent:{keys.agent_id(agent_id)}:main" if agent_id else "main")
    turn = await accept(
        call, key, message, idempotency_key, model=model, thinking=thinking, timeout_s=timeout
    )
    accepted = {"runId": turn.turn_id, "sessionKey": turn.session_key, "agentId": turn.agent_id}
    await call.early({**accepted, "status": "accepted", "acceptedAt": turn.accepted_at_ms})
    ended = await call.services.sessions.wait(turn.turn_id)
    return (
        accepted | _ended(ended) | {"summary": "completed" if ended.outcome == "ok" else str(ended.outcome)}
    )


@method("agent.wait", scope="operator.write")
async def agent_wait(call: Call, run_id: str, timeout_ms: int = 30_000) -> Payload:
    """How a turn ended, waiting for it when it has not."""
    turn = await call.services.sessions.wait(run_id, max(timeout_ms, 0) / 1000, caller=call.operator)
    if turn.status != "ended":
        return {"runId": run_id, "status": "timeout"}
    return {"runId": run_id} | _ended(turn)


@method("chat.send", scope="operator.write")
async def chat_send(
    call: Call,
    session_key: str,
    message: str,
    idempotency_key: str,
    thinking: str | None = None,
    timeout_ms: TimeoutMs | None = None,
    deliver: bool | None = None,
    session_id: str | None = None,
) -> Payload:
    """Accept a message and answer at once; the events tell what comes of it. A new key makes a session.

    With `sessionId` it is refused when the session has another transcript by now.
    """
    timeout_s = _seconds(timeout_ms)
    turn = await accept(
        call,
        session_key,
        message,
        idempotency_key,
        thinking=thinking,
        timeout_s=timeout_s,
        expected=session_id,
    )
    return started(turn)


@method("sessions.send", scope="operator.write")
async def sessions_send(
    call: Call,
    key: str,
    message: str,
    thinking: str | None = None,
    timeout_ms: TimeoutMs | None = None,
    idempotency_key: str | None = None,
) -> Payload:
    """Like `chat.send`, into a session that is there."""
    return await _into(call, key, message, thinking, timeout_ms, idempotency_key)


@method("sessions.steer", scope="operator.write")
async def sessions_steer(
    call: Call,
    key: str,
    message: str,
    thinking: str | None = None,
    timeout_ms: TimeoutMs | None = None,
    idempotency_key: str | None = None,
) -> Payload:
    """Like `sessions.send`, and what the session is doing is ended for it."""
    return await _into(call, key, message, thinking, timeout_ms, idempotency_key, mode="interrupt")


async def _into(
    call: Call,
    key: str,
    message: str,
    thinking: str | None,
    timeout_ms: int | None,
    idempotency_key: str | None,
    mode: QueueMode | None = None,
) -> Payload:
    session = await call.services.sessions.resolve(call.operator, key, verb="send")
    timeout_s = _seconds(timeout_ms)
    turn = await accept(
        call, session.key, message, idempotency_key, thinking=thinking, timeout_s=timeout_s, mode=mode
    )
    return started(turn) | {"sessionKey": turn.session_key}


@method("chat.abort", scope="operator.write")
async def chat_abort(call: Call, session_key: str, run_id: str | None = None) -> Payload:
    """End what a session is doing, or one turn of it."""
    ended = await call.services.sessions.abort(call.operator, session_key, turn_id=run_id)
    return {"ok": True, "aborted": bool(ended), "runIds": [turn.turn_id for turn in ended]}


@method("sessions.abort", scope="operator.write")
async def sessions_abort(
    call: Call, key: str, run_id: str | None = None, descendants: bool = False
) -> Payload:
    """Like `chat.abort`; with `descendants` also everything the session spawned."""
    sessions = call.services.sessions
    if descendants:
        ended = await sessions.cancel_tree(call.operator, key)
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
    expected: str | None = None,
) -> Turn:
    """Accept a message. The client's own key, when it is short enough, is the id of the run."""
    if model is not None:
        call.services.models.info(model)
    own_id = idempotency_key if idempotency_key and len(idempotency_key) <= MAX_RUN_ID else None
    turn = await call.services.sessions.send(
        call.operator,
        key,
        message,
        idempotency_key=idempotency_key,
        turn_id=own_id,
        mode=mode,
        timeout_s=timeout_s or None,
        options=TurnOptions(model=model, thinking=thinking),
        expected=expected,
    )
    call.follow(turn.session_key)
    return turn


def started(turn: Turn) -> Payload:
    """A turn just accepted, or how the one stands that was accepted under the same key before."""
    under_way = {"queued": "started", "running": "in_flight"}.get(turn.status)
    over = "ok" if turn.outcome in ("ok", "no_output") else "error"
    return {"runId": turn.turn_id, "status": under_way or over}


def _seconds(ms: int | None) -> int | None:
    return -(-ms // 1000) if ms else None


def _ended(turn: Turn) -> Payload:
    assert turn.outcome is not None
    payloads = [{"text": turn.reply, "mediaUrl": None}] if turn.reply else []
    started_at = turn.started_at_ms or turn.accepted_at_ms
    duration = (turn.ended_at_ms or started_at) - started_at
    return {
        "status": _STATUS[turn.outcome],
        "outcome": turn.outcome,
        "startedAt": turn.started_at_ms,
        "endedAt": turn.ended_at_ms,
        "result": {"payloads": payloads, "meta": {"durationMs": duration}},
    } | ({"error": turn.error} if turn.error else {})
