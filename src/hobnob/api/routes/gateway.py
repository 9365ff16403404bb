"""The gateway itself over HTTP: whether it is up, and every RPC method."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

from hobnob import __version__
from hobnob.api import rpc
from hobnob.api.routing import HttpCall, Payload, route

_STATUS = {"INVALID_REQUEST": 400, "FORBIDDEN": 403, "NOT_FOUND": 404, "UNAVAILABLE": 503}


@route("GET", "/healthz", scope=None)
async def healthz(visit: HttpCall) -> Payload:
    """Whether the gateway is up."""
    return {"ok": True, "version": __version__}


@route("POST", "/rpc/{method}", scope="operator.read", body_bytes=25 * 1024 * 1024)
async def call_method(visit: HttpCall, method: str, params: dict[str, Any] | None = None) -> Response:
    """Any method of the WebSocket, with its parameters as `params`. It needs the scope the method needs."""
    answer = await rpc.dispatch(visit, method, params)
    status = 200 if answer["ok"] else _STATUS.get(answer["error"]["code"], 400)
    return Response(orjson.dumps(answer), status, media_type="application/json")
