"""`GET /healthz`, `GET /readyz`, and every RPC method as `POST /rpc/{method}`."""

from __future__ import annotations

from typing import Any

from hobnob import __version__
from hobnob.api import rpc
from hobnob.api.routing import HttpCall, Payload, route
from hobnob.errors import GatewayUnreachable


@route("GET", "/healthz", scope=None)
async def healthz(call: HttpCall) -> Payload:
    """Whether the gateway is up."""
    return {"ok": True, "version": __version__}


@route("GET", "/readyz", scope=None)
async def readyz(call: HttpCall) -> Payload:
    """Whether the gateway takes work: the store answers, and it does not stop or drain. Else 503.

    On PostgreSQL it also has to be known to the other gateways as alive.
    """
    cluster = call.services.cluster
    if call.services.stopping():
        raise GatewayUnreachable("The gateway is stopping.")
    if cluster.draining:
        raise GatewayUnreachable("The gateway is drained.", fix="To undo it: hobnob nodes drain NAME --off")
    queries = call.services.sessions.queries
    queries.check_writable()
    if not cluster.is_member:
        raise GatewayUnreachable("The gateway has lost its database. It goes on when it has joined again.")
    await queries.check_store()
    return {"ok": True, "version": __version__}


@route("POST", "/rpc/{method}", scope="operator.read", body_bytes=None)
async def call_method(call: HttpCall, method: str, params: dict[str, Any] | None = None) -> Payload:
    """Any RPC method, with its parameters as `params`. It needs the scope of the method."""
    return {"ok": True, "payload": await rpc.invoke(call, method, params)}
