"""`GET /healthz`, and every RPC method as `POST /rpc/{method}`."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

from hobnob import __version__
from hobnob.api import rpc
from hobnob.api.routing import HttpCall, Payload, route

_STATUS = {"INVALID_REQUEST": 400, "FORBIDDEN": 403, "NOT_FOUND": 404, "UNAVAILABLE": 503}


@route("GET", "/healthz", scope=None)
async def healthz(call: HttpCall) -> Payload:
    """Whether the gateway is up."""
    return {"ok": True, "version": __version__}


@route("POST", "/rpc/{method}", scope="operator.read", body_bytes=None)
async def call_method(call: HttpCall, method: str, params: dict[str, Any] | None = None) -> Response:
    """Any RPC method, with its parameters as `params`. It needs the scope of the method."""
    answer = await rpc.dispatch(call, method, params)
    status = 200 if answer["ok"] else _STATUS.get(answer["error"]["code"], 400)
    return Response(orjson.dumps(answer), status, media_type="application/json")
