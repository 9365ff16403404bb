"""Methods on nodes: pairing, listing, invoking commands; and those that nodes themselves call."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hobnob.api.rpc import Call, Payload, method
from hobnob.config.fields import Scope
from hobnob.errors import BadInput, MissingScope, NotAllowed
from hobnob.node_types import Node
from hobnob.nodes import node_events, surface
from hobnob.nodes.invocations import MAX_TIMEOUT_S
from hobnob.requests import IdempotencyKey
from hobnob.types import now_ms

TimeoutMs = Annotated[int, Field(ge=1, le=int(MAX_TIMEOUT_S * 1000))]

# -- for operators


@method("node.list", scope="operator.read")
async def node_list(call: Call) -> Payload:
    """The nodes, with the commands of each that can be invoked."""
    call.require_all_agents()
    registry = call.services.nodes.registry
    return {"ts": now_ms(), "nodes": [registry.row(node) for node in await registry.all()]}


@method("node.describe", scope="operator.read")
async def node_describe(call: Call, node_id: str) -> Payload:
    """One node, by its id, its name, or the beginning of its id."""
    call.require_all_agents()
    registry = call.services.nodes.registry
    return {"ts": now_ms(), **registry.row(await registry.named(node_id))}


@method("node.rename", scope="operator.pairing")
async def node_rename(call: Call, node_id: str, display_name: str) -> Payload:
    """Give a node a name; an empty one takes it away."""
    call.require_all_agents()
    registry = call.services.nodes.registry
    node = await registry.rename((await registry.named(node_id)).node_id, display_name)
    return {"nodeId": node.node_id, "displayName": node.shown_name}


@method("node.pair.list", scope="operator.pairing")
async def pair_list(call: Call) -> Payload:
    """Nodes that wait for approval, and approved ones."""
    call.require_all_agents()
    return await call.services.nodes.registry.pairing()


@method("node.pair.approve", scope="operator.pairing")
async def pair_approve(call: Call, request_id: str) -> Payload:
    """Approve what a node asks for. Commands that run programs need `operator.admin`, others write."""
    call.require_all_agents()
    registry = call.services.nodes.registry
    node = await registry.request(request_id)
    for scope in surface.approve_scopes(node.declared_surface):
        _require(call, scope)
    return {"requestId": request_id, "node": registry.row(await registry.approve(node))}


@method("node.pair.reject", scope="operator.pairing")
async def pair_reject(call: Call, request_id: str) -> Payload:
    """Reject what a node asks for. One that was approved before keeps what it had."""
    call.require_all_agents()
    node = await call.services.nodes.registry.reject(request_id)
    return {"requestId": request_id, "nodeId": node.node_id}


@method("node.pair.remove", scope="operator.pairing")
async def pair_remove(call: Call, node_id: str) -> Payload:
    """Withdraw the approval of a node and disconnect it."""
    call.require_all_agents()
    registry = call.services.nodes.registry
    node = await registry.remove((await registry.named(node_id)).node_id)
    return {"nodeId": node.node_id, "removedAtMs": now_ms()}


@method("node.pair.verify", scope="operator.pairing")
async def pair_verify(call: Call, node_id: str, token: str) -> Payload:
    """Whether a token is the current one of an approved node."""
    call.require_all_agents()
    node = await call.services.nodes.registry.find(node_id)
    if node is None or not call.services.nodes.sign_in.holds(node, token):
        return {"ok": False}
    return {"ok": True, "node": call.services.nodes.registry.row(node)}


@method("node.invoke", scope="operator.write")
async def node_invoke(
    call: Call,
    node_id: str,
    command: str,
    idempotency_key: IdempotencyKey,
    params: Any = None,
    timeout_ms: TimeoutMs = 30_000,
    session_key: str | None = None,
) -> Payload:
    """Run a command on a node. Programs need `operator.admin`. Output comes as `node.invoke.progress`.

    The same idempotency key gives the same answer; the node is asked once.
    """
    call.require_all_agents()
    if surface.needs_admin(command):
        _require(call, "operator.admin")
    services, connection = call.services.nodes, call.connection
    node = await services.registry.named(node_id)
    call.ticket.pause()
    answer = await services.invocations.invoke(
        call.operator.name,
        node,
        command,
        params,
        timeout_s=timeout_ms / 1000,
        idempotency_key=idempotency_key,
        progress=(lambda news: connection.send_named("node.invoke.progress", news)) if connection else None,
    )
    names = {"ok": True, "nodeId": node.node_id, "command": command}
    return names | {"payload": answer.payload, "payloadJSON": answer.json}


@method("node.invoke.cancel", scope="operator.write")
async def invoke_cancel(call: Call, idempotency_key: IdempotencyKey) -> Payload:
    """Cancel a command that this credential invoked. The node is told to stop it."""
    cancelled = await call.services.nodes.invocations.cancel(call.operator.name, idempotency_key)
    return {"cancelled": cancelled}


# -- for nodes


@method("node.pair.request", scope=None, roles=("node",))
async def pair_request(
    call: Call, caps: list[str] | None = None, commands: list[str] | None = None
) -> Payload:
    """Ask for the approval of another surface than the one the node connected with."""
    services, node = call.services.nodes, await _node(call)
    if caps is not None or commands is not None:
        known = node.declared_surface
        offered = (
            list(known.caps) if caps is None else caps,
            list(known.commands) if commands is None else commands,
        )
        node = await services.registry.declare(services.sign_in.described(node, *offered))
    status = "pending" if node.request_id else "approved"
    return {"status": status, "requestId": node.request_id, "nodeId": node.node_id}


@method("node.invoke.result", scope=None, roles=("node",))
async def invoke_result(
    call: Call,
    id: str,
    ok: bool,
    node_id: str | None = None,
    payload: Any = None,
    payloadJSON: str | None = None,
    error: Any = None,
) -> Payload:
    """The answer to a command. One that nothing waits for is ignored, and the answer says so."""
    own = _own_id(call, node_id)
    taken = call.services.nodes.invocations.result(
        own, id, ok=ok, payload=payload, payload_json=payloadJSON, error=error
    )
    return {"ok": True} if taken else {"ok": True, "ignored": True}


@method("node.invoke.progress", scope=None, roles=("node",))
async def invoke_progress(
    call: Call, invoke_id: str, seq: int, chunk: str, node_id: str | None = None
) -> Payload:
    """A piece of the output of a command, in order, at most 16,384 characters."""
    taken = call.services.nodes.invocations.progress(_own_id(call, node_id), invoke_id, seq, chunk)
    return {"ok": True} if taken else {"ok": True, "ignored": True}


@method("node.event", scope=None, roles=("node",))
async def node_event(
    call: Call, event: str, payload: Any = None, payloadJSON: str | None = None, node_id: str | None = None
) -> Payload:
    """Report an event: `agent.request` and `voice.transcript` become turns, `chat.subscribe` follows one."""
    own = _own_id(call, node_id)
    if call.connection is None:
        raise BadInput("Nodes call this over a WebSocket.")
    found = node_events.decoded(payload, payloadJSON)
    return await call.services.nodes.events.handle(own, event, found, call.connection)


@method("node.runnerInventory.update", scope=None, roles=("node",))
async def runner_inventory(
    call: Call, protocol_features: Any = None, worker_host: Any = None, runners: Any = None
) -> Payload:
    """Accepted and not used: Hobnob runs no workers on nodes."""
    return {"nodeId": _own_id(call)}


@method("node.skills.update", scope=None, roles=("node",))
async def node_skills(call: Call, skills: Any = None) -> Payload:
    """Accepted and not used: Hobnob has no skills of nodes."""
    return {"nodeId": _own_id(call), "skills": []}


@method("node.pluginTools.update", scope=None, roles=("node",))
async def plugin_tools(call: Call, tools: Any = None) -> Payload:
    """Accepted and not used: Hobnob has no tools of plugins on nodes."""
    return {"nodeId": _own_id(call), "tools": []}


def _require(call: Call, scope: Scope) -> None:
    if not call.operator.holds(scope):
        raise MissingScope(scope)


def _own_id(call: Call, claimed: str | None = None) -> str:
    """The id of the calling node. Raises NotAllowed when it claims another."""
    own = call.operator.node or ""
    if claimed not in (None, own):
        raise NotAllowed("nodeId mismatch: a node speaks only for itself.", rule="node.id")
    return own


async def _node(call: Call) -> Node:
    node = await call.services.nodes.registry.find(_own_id(call))
    if node is None:
        raise NotAllowed("This node is not known any more.", rule="node.unknown")
    return node
