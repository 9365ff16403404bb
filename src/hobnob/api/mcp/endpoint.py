"""The ASGI application at `/mcp`: authenticate, count the request, pass it on to the MCP server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hobnob.api import Services, routing
from hobnob.api.auth import peer_of
from hobnob.api.mcp.access import McpCaller
from hobnob.errors import HobnobError, LimitReached, McpUnavailable

PATH = "/mcp"
_log = logging.getLogger(__name__)


class McpEndpoint:
    """Serves `/mcp` while `run` runs. The package `mcp` is imported, in a thread, at the first request."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._wanted = asyncio.Event()
        self._started = asyncio.Event()
        self._server: Any = None  # the module hobnob.api.mcp.server
        self._manager: Any = None
        self._stateless: Any = None  # for protocol sessions that another gateway has
        self._open: set[_OpenRequest] = set()

    async def run(self) -> None:
        """Start the MCP server when it is first asked for, and run it until cancelled."""
        self._services.mcp.on_revoked = self.close_grant
        await self._wanted.wait()
        try:
            self._server = await asyncio.to_thread(importlib.import_module, "hobnob.api.mcp.server")
        except ImportError as missing:
            _log.error("no MCP server at %s: the package mcp is not installed (%s)", PATH, missing)
            self._started.set()
            return
        logging.getLogger("mcp").setLevel(logging.WARNING)  # it logs the id of each protocol session
        limit = self._services.config.settings.gateway.limits.request_bytes
        make = partial(self._server.make_manager, self._services.mcp.calls, limit)
        self._manager, self._stateless = make(stateless=False), make(stateless=True)
        async with self._manager.run(), self._stateless.run():
            self._started.set()
            await asyncio.Event().wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Never raises an error of ours."""
        request = Request(scope, receive)
        try:
            routing.check_origin(self._services, request)
            peer = peer_of(self._services.config.settings, request)
            caller = await self._services.mcp.access.identify(peer, routing.bearer(request))
        except HobnobError as error:
            await (await routing.refuse(request, error))(scope, receive, send)
            return
        try:
            with self._counted(scope, caller):
                await self._pass_on(caller, scope, receive, send)
        except (LimitReached, McpUnavailable) as error:
            await routing.error_response(error)(scope, receive, send)

    def close_grant(self, grant_id: str) -> int:
        """End the open requests of a grant that was revoked. Returns how many."""
        found = [each for each in self._open if each.caller.grant.grant_id == grant_id]
        for each in found:
            each.close(1008, "the grant was revoked")
        return len(found)

    @contextlib.contextmanager
    def _counted(self, scope: Scope, caller: McpCaller) -> Iterator[None]:
        """Charge a request to whoever made the grant. Raises LimitReached."""
        account = self._services.budgets.account(caller.operator)
        slot = scope["hobnob.slot"]
        slot.sign_in(account)
        if scope["method"] == "GET":  # the client listens for notifications
            account.take("streams")
            try:
                yield
            finally:
                account.give("streams")
            return
        ticket = slot.ticket = account.open_ticket()
        scope["hobnob.mcp_ticket"] = ticket
        try:
            yield
        finally:
            ticket.close()

    async def _pass_on(self, caller: McpCaller, scope: Scope, receive: Receive, send: Send) -> None:
        self._wanted.set()
        await self._started.wait()
        if self._manager is None:
            raise McpUnavailable(fix="Install it where the gateway runs: pip install 'hobnob[mcp]'.")
        if (ticket := scope.get("hobnob.mcp_ticket")) is not None:
            await ticket.start()
        scope["hobnob.mcp_caller"] = caller
        scope["user"] = self._server.user_of(caller)
        opened = _OpenRequest(caller)
        self._open.add(opened)
        if caller.principal is not None:
            self._services.clients.streams.add(opened)
        try:
            with opened.scope:
                await self._manager_for(scope).handle_request(scope, receive, send)
        finally:
            self._open.discard(opened)
            self._services.clients.streams.discard(opened)

    def _manager_for(self, scope: Scope) -> Any:
        """A client may have begun its session of the protocol at another gateway."""
        session_id = Request(scope).headers.get("mcp-session-id")
        is_known = session_id is None or session_id in self._manager._server_instances
        return self._manager if is_known or not self._services.cluster.shared else self._stateless


class _OpenRequest:
    """A request that is being answered. It is ended when its grant or the secret behind it is withdrawn."""

    def __init__(self, caller: McpCaller) -> None:
        self.caller = caller
        self.principal = caller.principal or routing.NOBODY
        self.scope = anyio.CancelScope()

    def close(self, code: int, reason: str) -> None:
        self.scope.cancel()
