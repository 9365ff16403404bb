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
    """Whether the gateway takes work: the store answers, and it is not stopping. Else the status is 503."""
    if call.services.stopping():
        raise GatewayUnreachable("The gateway is stopping.")
    await call.services.sessions.queries.check_store()
    return {"ok": True, "version": __version__}


@route("POST", "/rpc/{method}", scope="operator.read", body_bytes=None)
async def call_method(call: HttpCall, method: str, params: dict[str, Any] | None = None) -> Payload:
    """Any RPC method, with its parameters as `params`. It needs the scope of the method."""
    return {"ok": True, "payload": await rpc.invoke(call, method, params)}
