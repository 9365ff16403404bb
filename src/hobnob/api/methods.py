"""The RPC methods."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hobnob import __version__, keys
from hobnob.api.rpc import Call, Payload, method
from hobnob.models.rehearsal import INFO as REHEARSAL
from hobnob.sessions import Options
from hobnob.types import Outcome, Turn, now_ms

MAX_RUN_ID = 128  # of a client's key that becomes the run's id
MAX_TIMEOUT_S = 30 * 86_400

_STATUS: dict[Outcome, str] = {
    "ok": "ok",
    "no_output": "ok",
    "timed_out": "timeout",
    "failed": "error",
    "cancelled": "error",
    "lost": "error",
}


@method("health", scope="operator.read")
async def health(call: Call, probe: bool | None = None) -> Payload:
    """Whether the gateway is up."""
    settings = call.parts.config.settings
    return {
        "ok": True,
        "ts": now_ms(),
        "version": __version__,
        "uptimeMs": now_ms() - call.parts.started_at_ms,
        "defaultAgentId": settings.default_agent.id,
        "agents": [{"agentId": agent.id} for agent in settings.agent_list()],
        "runningTurns": call.parts.running_turns(),
        "model": settings.agents.defaults.model.primary or REHEARSAL.name,
        "channels": {},
        "channelOrder": [],
        "channelLabels": {},
    }


@method("agents.list", scope="operator.read")
async def agents_list(call: Call) -> Payload:
    """The agents that are configured."""
    settings = call.parts.config.settings
    agents = [{"id": a.id} | ({"name": a.name} if a.name else {}) for a in settings.agent_list()]
    return {
        "defaultId": settings.default_agent.id,
        "mainKey": settings.session.main_key,
        "scope": settings.session.scope,
        "agents": agents,
    }


@method("models.list", scope="operator.read")
async def models_list(call: Call) -> Payload:
    """The models that are named somewhere, and the built-in one."""
    models = []
    for info in call.parts.models.known():
        row: dict[str, Any] = {"id": info.id, "name": info.name, "provider": info.provider}
        models.append(row | {"contextWindow": info.context_window, "reasoning": info.reasoning})
    return {"models": models}


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
    if model is not None:
        call.parts.models.info(model)
    key = session_key or (f"agent:{keys.agent_id(agent_id)}:main" if agent_id else "main")
    turn = await call.parts.sessions.send(
        call.operator,
        key,
        message,
        idempotency_key=idempotency_key,
        turn_id=idempotency_key if len(idempotency_key) <= MAX_RUN_ID else None,
        timeout_s=timeout or None,
        options=Options(model=model, thinking=thinking),
    )
    accepted = {"runId": turn.turn_id, "sessionKey": turn.session_key, "agentId": turn.agent_id}
    await call.early({**accepted, "status": "accepted", "acceptedAt": turn.accepted_at_ms})
    ended = await call.parts.sessions.wait(turn.turn_id)
    return (
        accepted | _ended(ended) | {"summary": "completed" if ended.outcome == "ok" else str(ended.outcome)}
    )


@method("agent.wait", scope="operator.write")
async def agent_wait(call: Call, run_id: str, timeout_ms: int = 30_000) -> Payload:
    """How a turn ended, waiting for it when it has not."""
    turn = await call.parts.sessions.wait(run_id, max(timeout_ms, 0) / 1000, caller=call.operator)
    if turn.status != "ended":
        return {"runId": run_id, "status": "timeout"}
    return {"runId": run_id} | _ended(turn)


@method("chat.abort", scope="operator.write")
async def chat_abort(call: Call, session_key: str, run_id: str | None = None) -> Payload:
    """End what a session is doing, or one turn of it."""
    ended = await call.parts.sessions.abort(call.operator, session_key, turn_id=run_id)
    return {"ok": True, "aborted": bool(ended), "runIds": [turn.turn_id for turn in ended]}


def _ended(turn: Turn) -> Payload:
    assert turn.outcome is not None
    payloads = [{"text": turn.reply, "mediaUrl": None}] if turn.reply else []
    started = turn.started_at_ms or turn.accepted_at_ms
    duration = (turn.ended_at_ms or started) - started
    return {
        "status": _STATUS[turn.outcome],
        "outcome": turn.outcome,
        "startedAt": turn.started_at_ms,
        "endedAt": turn.ended_at_ms,
        "result": {"payloads": payloads, "meta": {"durationMs": duration}},
    } | ({"error": turn.error} if turn.error else {})
