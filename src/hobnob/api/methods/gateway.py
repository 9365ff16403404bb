"""Methods on the gateway: health, status, clients, logs, agents, models."""

from __future__ import annotations

import socket
from typing import Annotated, Any

from pydantic import Field
from pydantic.alias_generators import to_camel

from hobnob import __version__, keys, logs, policy
from hobnob.api.rpc import Call, Payload, method
from hobnob.config.agents import Agent
from hobnob.models.choice import model_names
from hobnob.models.rehearsal import INFO as REHEARSAL
from hobnob.policy.names import unknown_agent
from hobnob.sessions import resolve
from hobnob.types import Session, now_ms

_RECENT = 10


@method("health", scope="operator.read", roles=("operator", "node"))
async def health(call: Call, probe: bool | None = None) -> Payload:
    """Whether the gateway is up."""
    settings = call.services.config.settings
    recent = await _recent(call)
    agents = [
        {"agentId": agent.id, "isDefault": agent is settings.default_agent, "sessions": _of(agent.id, recent)}
        for agent in _agents(call)
    ]
    return {
        "ok": True,
        "ts": now_ms(),
        "version": __version__,
        "uptimeMs": now_ms() - call.services.started_at_ms,
        "defaultAgentId": settings.default_agent.id,
        "agents": agents,
        "sessions": recent,
        "runningTurns": call.services.running_turns(),
        "model": settings.agents.defaults.model.primary or REHEARSAL.name,
        "channels": {},
        "channelOrder": [],
        "channelLabels": {},
        "heartbeatSeconds": 0,
    }


def _agents(call: Call) -> list[Agent]:
    """The agents a credential may use."""
    known, own = call.services.config.settings.agent_list(), call.operator.agents
    return [agent for agent in known if own is None or agent.id in own]


def _of(agent_id: str, recent: Payload) -> Payload:
    rows = [row for row in recent["recent"] if keys.agent_of(row["key"]) == agent_id]
    return recent | {"count": len(rows), "recent": rows}


async def _recent(call: Call) -> Payload:
    """The sessions used last. Counting all sessions would take longer the more there are."""
    sessions, has_more = await call.services.sessions.queries.recent(call.operator, _RECENT)
    now = now_ms()
    rows = [
        {
            "key": session.key,
            "updatedAt": session.updated_at_ms,
            "age": now - session.updated_at_ms,
            "status": session.status,
        }
        for session in sessions
    ]
    return {
        "path": "(store)",
        "count": len(rows),
        "hasMore": has_more,
        "recent": rows,
    }


@method("status", scope="operator.read")
async def status(call: Call) -> Payload:
    """Version, uptime, connected clients, running turns, the default model and recent sessions.

    `connections`: how many have not signed in, and what each credential uses. `gateways`: how many share the
    database, by state. Both are for credentials of all agents.
    """
    settings = call.services.config.settings
    details: Payload = {}
    if call.operator.agents is None:
        details = {"connections": _connections(call), "gateways": await _gateways(call)}
    return details | {
        "version": __version__,
        "uptimeMs": now_ms() - call.services.started_at_ms,
        "defaultAgentId": settings.default_agent.id,
        "agents": [agent.id for agent in _agents(call)],
        "model": settings.agents.defaults.model.primary or REHEARSAL.name,
        "runningTurns": call.services.running_turns(),
        "clients": len(call.services.clients),
        "sessions": await _recent(call),
        "channels": {},
    }


async def _gateways(call: Call) -> Payload:
    found = await call.services.cluster.gateways()
    silent = [each.name for each in found if each.silent]
    draining = [each.name for each in found if each.draining and not each.silent]
    return {"alive": len(found) - len(silent), "draining": draining, "silent": silent}


def _connections(call: Call) -> Payload:
    budgets, credentials = call.services.budgets, dict[str, Payload]()
    for name, resource, used in budgets.usage():
        credentials.setdefault(name, {})[to_camel(resource)] = used
    return {
        "unauthenticated": len(budgets.strangers),
        "dropped": budgets.strangers.dropped,
        "refused": budgets.refused.total(),
        "credentials": credentials,
    }


@method("system-presence", scope="operator.read")
async def system_presence(call: Call) -> list[Payload]:
    """The gateway and its connected clients."""
    services = call.services
    own = {
        "host": socket.gethostname(),
        "version": __version__,
        "mode": "gateway",
        "reason": "self",
        "instanceId": services.boot_id,
        "text": f"Gateway · Hobnob {__version__}",
        "ts": now_ms(),
    }
    others = [] if call.operator.agents is not None else services.clients.presence()
    return [own, *others]


@method("logs.tail", scope="operator.read")
async def logs_tail(
    call: Call,
    cursor: Annotated[int, Field(ge=0)] | None = None,
    limit: Annotated[int, Field(ge=1, le=5000)] = 500,
    max_bytes: Annotated[int, Field(ge=1)] = 250_000,
) -> Payload:
    """The last lines of the gateway's log; with a cursor, those since."""
    call.require_all_agents()
    lines, last, lost = logs.recent.since(cursor, limit, max_bytes)
    size = logs.recent.last
    return {"file": None, "cursor": last, "size": size, "lines": lines, "truncated": lost, "reset": False}


@method("agent.identity.get", scope="operator.read")
async def agent_identity_get(
    call: Call, agent_id: str | None = None, session_key: str | None = None
) -> Payload:
    """The id and name of an agent."""
    settings = call.services.config.settings
    named = agent_id or (keys.parse(session_key, settings.viewer()).agent if session_key else None)
    chosen = keys.agent_id(named) if named else settings.default_agent.id
    resolve.require(policy.may(settings, call.operator, "list", Session.of(keys.main_of(chosen))))
    agent = settings.agent(chosen)
    if agent is None:
        raise unknown_agent(settings, chosen)
    return {"agentId": agent.id, "name": agent.name or agent.id}


@method("agents.list", scope="operator.read")
async def agents_list(call: Call) -> Payload:
    """The agents that are configured."""
    settings = call.services.config.settings
    agents = []
    for agent in _agents(call):
        row: dict[str, Any] = {"id": agent.id, "model": {"primary": model_names(settings, agent, None)[0]}}
        agents.append(row | ({"name": agent.name} if agent.name else {}))
    return {
        "defaultId": settings.default_agent.id,
        "mainKey": settings.session.main_key,
        "scope": settings.session.scope,
        "agents": agents,
    }


@method("models.list", scope="operator.read")
async def models_list(
    call: Call,
    view: str | None = None,
    provider: str | None = None,
    include_details: bool | None = None,
    session_key: str | None = None,
    agent_id: str | None = None,
) -> Payload:
    """The configured models and the built-in one. `view` is accepted and ignored."""
    models = []
    for info in call.services.models.known():
        if provider is not None and info.provider != provider:
            continue
        row: dict[str, Any] = {"id": info.id, "name": info.name, "provider": info.provider}
        models.append(row | {"contextWindow": info.context_window, "reasoning": info.reasoning})
    return {"models": models}
