"""The HTTP route that calls a tool."""

from __future__ import annotations

from hobnob.api.methods.tools import tools_invoke
from hobnob.api.routing import route

route("POST", "/tools/invoke", scope="operator.write")(tools_invoke)
