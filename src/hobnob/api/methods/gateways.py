"""Methods on the gateways that share this database: list, drain, remove."""

from __future__ import annotations

from hobnob.api.rpc import Call, Payload, method
from hobnob.cluster import GatewayInfo
from hobnob.errors import BadInput, Conflict, NotFound
from hobnob.types import now_ms


@method("gateways.list", scope="operator.read")
async def gateways_list(call: Call) -> Payload:
    """The gateways that share this database. With SQLite it is this one, and `shared` is false.

    `clients` of another gateway counts at most 50. `silentSeconds` is the time since the last sign of life of
    one that should have given one.
    """
    call.require_all_agents()
    own = call.services.cluster.gateway_id
    rows = [_row(call, gateway) for gateway in await call.services.cluster.gateways()]
    return {"ts": now_ms(), "self": own, "shared": call.services.cluster.shared, "gateways": rows}


@method("gateways.drain", scope="operator.admin")
async def gateways_drain(call: Call, gateway_id: str, on: bool = True) -> Payload:
    """Let a gateway start no new turns and give up its roles, or undo it. Turns that run there go on.

    `gatewayId` is the id, its beginning, or the name. `others` counts the gateways that take new turns.
    """
    call.require_all_agents()
    cluster = call.services.cluster
    _require_shared(
        call, "be drained", "It is drained when it is stopped: running turns have 20 seconds to end."
    )
    gateway = _find(await cluster.gateways(), gateway_id)
    await cluster.drain(gateway.gateway_id, on=on)
    found = await cluster.gateways()
    after = next((each for each in found if each.gateway_id == gateway.gateway_id), None)
    if after is None:
        raise NotFound(f"The gateway {gateway.name} has left meanwhile.", fix=_LIST)
    others = sum(not (each.draining or each.silent or each is after) for each in found)
    return {"gateway": _row(call, after), "others": others}


@method("gateways.remove", scope="operator.admin")
async def gateways_remove(call: Call, gateway_id: str, force: bool = False) -> Payload:
    """Take a gateway for dead now: others run its turns, and its connections to the database are ended.

    One that is alive is refused unless it is drained and runs no turn, or with `force`. If its process still
    runs, it ends its turns and programs and joins again under a new id.
    """
    call.require_all_agents()
    _require_shared(call, "be removed", "Stop its process instead.")
    gateway = _find(await call.services.cluster.gateways(), gateway_id)
    if gateway.gateway_id == call.services.cluster.gateway_id:
        raise Conflict(
            f"The gateway {gateway.name} is the one that answers this request.",
            fix="Stop its process (SIGTERM), or ask another gateway.",
        )
    if not (gateway.silent or force or (gateway.draining and not gateway.turns)):
        turns = f"{gateway.turns} turn{'' if gateway.turns == 1 else 's'}"
        running = f"runs {turns}" if gateway.turns else "takes new turns"
        raise Conflict(
            f"The gateway {gateway.name} is alive and {running}.",
            fix=f"Drain it first (hobnob nodes drain {gateway.name} --wait), or stop its process."
            " With --force (force: true) its turns start again elsewhere.",
        )
    removed = await call.services.cluster.remove(gateway.gateway_id)
    return {
        "gatewayId": gateway.gateway_id,
        "name": gateway.name,
        "removed": removed,
        "wasAlive": not gateway.silent,
        "turns": gateway.turns,
    }


_LIST = "`hobnob nodes list` shows the gateways."


def _require_shared(call: Call, what: str, instead: str) -> None:
    if not call.services.cluster.shared:
        raise Conflict(
            f"The only gateway of an SQLite store cannot {what}: no other one could take over.",
            fix=f"{instead} Several gateways need PostgreSQL, see docs/scale.md.",
        )


def _find(gateways: list[GatewayInfo], wanted: str) -> GatewayInfo:
    """A gateway by its name, its id, or the beginning of the id."""
    named = [each for each in gateways if each.name == wanted]
    found = named or [each for each in gateways if wanted and each.gateway_id.startswith(wanted.lower())]
    if not found:
        raise NotFound(f"No gateway has the name {wanted!r}, or an id that begins so.", fix=_LIST)
    if len(found) > 1:
        ids = ", ".join(each.gateway_id for each in found)
        raise BadInput(f"More than one gateway is meant by {wanted!r}: {ids}.", fix="Give the whole id.")
    return found[0]


def _row(call: Call, gateway: GatewayInfo) -> Payload:
    is_self = gateway.gateway_id == call.services.cluster.gateway_id
    services = call.services
    name = services.config.settings.gateway.name if is_self else None
    return {
        "gatewayId": gateway.gateway_id,
        "name": name or gateway.name,
        "self": is_self,
        "host": gateway.host,
        "pid": gateway.pid,
        "url": gateway.url,
        "version": gateway.version,
        "state": "silent" if gateway.silent else "draining" if gateway.draining else "alive",
        "draining": gateway.draining,
        "silentSeconds": round(gateway.age_s, 1) if gateway.silent else None,
        "runningTurns": services.running_turns() if is_self else gateway.turns,
        "clients": len(services.clients) if is_self else gateway.clients,
        "roles": gateway.roles,
        "startedAt": gateway.started_at_ms,
        "beatAt": gateway.beat_at_ms,
    }
