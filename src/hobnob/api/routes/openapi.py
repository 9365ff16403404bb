"""The description of all this, for programs that write clients."""

from __future__ import annotations

from functools import cache

import orjson
from starlette.responses import Response

from hobnob.api import openapi
from hobnob.api.routing import HttpCall, route


@route("GET", "/openapi.json", scope=None)
async def openapi_json(visit: HttpCall) -> Response:
    """What can be asked here, as an OpenAPI document."""
    return Response(_written(), media_type="application/json")


@cache
def _written() -> bytes:
    return orjson.dumps(openapi.document())
