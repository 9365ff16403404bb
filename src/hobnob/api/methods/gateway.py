"""The gateway itself: whether it is up, which agents and models it has."""

from __future__ import annotations

from typing import Any

from hobnob import __version__
from hobnob.api.rpc import Call, Payload, method
from hobnob.models.choice import model_names
from hobnob.models.rehearsal import INFO as REHEARSAL
from hobnob.types import now_ms


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
    agents = []
    for agent in settings.agent_list():
        row: dict[str, Any] = {"id": agent.id, "model": {"primary": model_names(settings, agent, None)[0]}}
        agents.append(row | ({"name": agent.name} if agent.name else {}))
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
