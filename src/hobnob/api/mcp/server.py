"""The MCP server on the package `mcp`: requests in, `SessionCalls` behind, results and resources out.

Schemas and refusals pass unchanged: the low-level server of the package validates no arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types
import orjson
from mcp.server import Server
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError

from hobnob import __version__
from hobnob.api.budgets import NO_TICKET
from hobnob.api.mcp import calls
from hobnob.api.mcp.access import McpCaller
from hobnob.api.mcp.calls import SessionCalls
from hobnob.errors import HobnobError
from hobnob.tools import Result, refusal_result

SCHEME = "session://"
CALLER, TICKET = "hobnob.mcp_caller", "hobnob.mcp_ticket"  # keys of the ASGI scope
PROGRESS_S = 5.0
_IDLE_S = 1800
_MAX_SESSIONS = 1000


def make_server(tools: SessionCalls) -> Server[Any]:
    """A server for all clients: each request carries its own caller."""

    async def list_tools(ctx: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        toolbox = await tools.toolbox(_caller(ctx))
        return types.ListToolsResult(tools=[_tool(spec) for spec in toolbox.specs])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        caller, ticket = _caller(ctx), ctx.request.scope.get(TICKET, NO_TICKET)
        try:
            async with _progress(ctx, params):
                result = await tools.call(caller, params.name, params.arguments or {}, ticket.pause)
        except HobnobError as refusal:
            result = refusal_result(refusal)
        if result is None:
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name} for this session.")
        return _result(result)

    async def list_resources(
        ctx: Any, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        with _protocol_errors():
            page = await tools.sessions(_caller(ctx), params.cursor if params else None)
        found = [_resource(row) for row in page["sessions"]]
        return types.ListResourcesResult(resources=found, next_cursor=page.get("nextCursor"))

    async def list_templates(
        ctx: Any, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        described = "The newest messages of a session, by its key."
        template = types.ResourceTemplate(
            uri_template=SCHEME + "{key}", name="transcript", description=described, mime_type=_JSON
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if not params.uri.startswith(SCHEME):
            raise MCPError(types.INVALID_PARAMS, f"A resource is {SCHEME}<key>, not {params.uri[:200]!r}.")
        key = unquote(params.uri.removeprefix(SCHEME).rstrip("/"))
        with _protocol_errors():
            page = await tools.transcript(_caller(ctx), key)
        text = orjson.dumps(page, default=str).decode()
        found = types.TextResourceContents(uri=params.uri, mime_type=_JSON, text=text)
        return types.ReadResourceResult(contents=[found])

    return Server(
        "hobnob",
        version=__version__,
        instructions=calls.INSTRUCTIONS,
        get_tool_input_schema=lambda name: None,  # else each call would list all tools first
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )


def make_manager(
    tools: SessionCalls, max_body_bytes: int, *, stateless: bool
) -> StreamableHTTPSessionManager:
    """The server over streamable HTTP. Origin and credential are checked before a request gets here.

    `stateless`: it keeps no protocol sessions, and ignores the id of one.
    """
    return StreamableHTTPSessionManager(
        make_server(tools),
        stateless=stateless,
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        session_idle_timeout=_IDLE_S,
        max_sessions=_MAX_SESSIONS,
        max_request_body_size=max_body_bytes,
    )


def user_of(caller: McpCaller) -> AuthenticatedUser:
    """The owner of a protocol session: another grant gets a 404 for its id."""
    return AuthenticatedUser(AccessToken(token="", client_id=caller.grant.grant_id, scopes=[]))


_JSON = "application/json"


def _caller(ctx: Any) -> McpCaller:
    caller: McpCaller = ctx.request.scope[CALLER]
    return caller


def _tool(spec: Any) -> types.Tool:
    return types.Tool(
        name=spec.name,
        description=spec.description,
        input_schema=spec.parameters,
        annotations=types.ToolAnnotations(
            read_only_hint=spec.name in calls.READS,
            destructive_hint=spec.name in calls.DESTROYS,
            open_world_hint=False,
        ),
    )


def _result(result: Result) -> types.CallToolResult:
    try:
        found = orjson.loads(result.text)
    except orjson.JSONDecodeError:
        found = None
    return types.CallToolResult(
        content=[types.TextContent(text=result.text)],
        structured_content=found if isinstance(found, dict) else None,
        is_error=result.is_error,
    )


def _resource(row: dict[str, Any]) -> types.Resource:
    key = row["key"]
    return types.Resource(
        uri=SCHEME + quote(key, safe=""),  # a colon would begin a port
        name=key,
        title=row.get("label") or row.get("displayName") or key,
        description=f"Transcript of the session {key} ({row['kind']})",
        mime_type=_JSON,
    )


@asynccontextmanager
async def _progress(ctx: Any, params: types.CallToolRequestParams) -> AsyncIterator[None]:
    """Report progress while a call waits, so that clients that count from the last sign of life go on."""
    if params.name not in calls.WAITS:
        yield
        return

    async def report() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            await asyncio.sleep(PROGRESS_S)
            elapsed = loop.time() - began
            await ctx.session.report_progress(round(elapsed, 1), calls.MAX_WAIT_S, "waiting for the answer")

    reporting = asyncio.ensure_future(report())
    try:
        yield
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


@contextmanager
def _protocol_errors() -> Iterator[None]:
    """Report our errors as errors of the protocol: there is no tool result to put them in."""
    try:
        yield
    except HobnobError as error:
        data = {"code": error.reported_code} | ({"fix": error.fix} if error.fix else {})
        raise MCPError(types.INVALID_PARAMS, error.message, data) from None
