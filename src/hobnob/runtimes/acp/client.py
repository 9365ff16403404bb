"""`HarnessClient`: ACP requests to one harness process. Each ends with a response or `HarnessFailed`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hobnob import __version__
from hobnob.error_texts import summary
from hobnob.errors import HarnessFailed
from hobnob.mcp_grants import TurnGrant
from hobnob.runtimes.acp import options
from hobnob.runtimes.acp.options import OptionKind
from hobnob.runtimes.acp.permissions import MCP_SERVER
from hobnob.runtimes.acp.process import HarnessProcess
from hobnob.runtimes.acp.updates import UpdateHandler

PACKAGE = "agent-client-protocol"
_REQUEST_TIMEOUT_S = 90.0  # of every request but the prompt
_EXIT_GRACE_S = 0.5  # to read a response that a process sent right before it exited
_CANCEL_GRACE_S = 2.0  # for the harness to stop after session/cancel
_AUTH_REQUIRED = -32000  # error code of the protocol


@dataclass(slots=True)
class HarnessClient:
    """The ACP connection to one harness process. Call `connect` first, then `open_session`."""

    harness: str
    sdk: Any
    process: HarnessProcess
    grant: TurnGrant | None = None
    session_id: str = ""
    _session: Any = None
    _connection: Any = None
    _group: asyncio.TaskGroup | None = None

    def connect(self, handler: UpdateHandler, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._connection = self.sdk.connect_to_agent(handler, self.process.writer, self.process.reader)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def message_fields(self) -> dict[str, Any]:
        """Fields for every message of the transcript: harness, model and the harness's session id."""
        model = options.model_of(self._session.config_options) if self._session else None
        return {
            "api": "acp",
            "provider": self.harness,
            "model": model or "default",
            "harnessSession": self.session_id,
        }

    async def open_session(self, cwd: str, earlier: str | None) -> bool:
        """Load the harness's earlier session if possible, else create one. Returns whether it was loaded."""
        handshake = await self._request(
            "initialize",
            self._connection.initialize(
                protocol_version=self.sdk.PROTOCOL_VERSION,
                client_capabilities=self.sdk.schema.ClientCapabilities(),
                client_info=self.sdk.schema.Implementation(name="hobnob", version=__version__),
            ),
        )
        if handshake.protocol_version != self.sdk.PROTOCOL_VERSION:
            raise HarnessFailed(
                f"The harness {self.harness!r} speaks version {handshake.protocol_version} of the protocol, "
                f"not {self.sdk.PROTOCOL_VERSION}.",
                fix=f"Install another version of it, or of {PACKAGE}.",
            )
        capabilities = handshake.agent_capabilities
        mcp = capabilities.mcp_capabilities if capabilities else None
        servers = self._servers(over_http=bool(mcp and mcp.http))
        if earlier and capabilities and capabilities.load_session:
            with suppress(HarnessFailed):  # loading can fail; then a new session gets the earlier messages
                loading = self._connection.load_session(cwd=cwd, session_id=earlier, mcp_servers=servers)
                self._session = await self._request("session/load", loading)
                self.session_id = earlier
                return True
        opening = self._connection.new_session(cwd=cwd, mcp_servers=servers)
        self._session = await self._request("session/new", opening)
        self.session_id = self._session.session_id
        return False

    def _servers(self, *, over_http: bool) -> list[Any]:
        """The MCP server with the session tools: over HTTP where the harness can, else the command."""
        schema = self.sdk.schema
        if self.grant is None:
            return []
        if over_http:
            bearer = schema.HttpHeader(name="Authorization", value=f"Bearer {self.grant.token}")
            return [schema.HttpMcpServer(type="http", name=MCP_SERVER, url=self.grant.url, headers=[bearer])]
        env = {"HOBNOB_MCP_TOKEN": self.grant.token, "HOBNOB_URL": self.grant.url.removesuffix("/mcp")}
        variables = [schema.EnvVariable(name=name, value=value) for name, value in env.items()]
        arguments = ["-m", "hobnob", "mcp"]
        return [schema.McpServerStdio(name=MCP_SERVER, command=sys.executable, args=arguments, env=variables)]

    async def choose(self, kind: OptionKind, value: str) -> None:
        """Set the mode, model or thinking level of the session. Raises HarnessFailed if it is not offered."""
        choice = options.choose(self.harness, self._session, kind, value)
        if choice is None:
            return
        if choice.option_id is None:
            setting = self._connection.set_session_mode(session_id=self.session_id, mode_id=choice.value)
            await self._request(f"session/set_mode {value!r}", setting)
            return
        setting = self._connection.set_config_option(
            config_id=choice.option_id, session_id=self.session_id, value=choice.value
        )
        response = await self._request(f"session/set_config_option {kind} {value!r}", setting)
        self._session.config_options = response.config_options

    async def prompt(self, text: str) -> Any:
        """Send the prompt and wait until the harness has finished. Cancelling the wait cancels the prompt."""
        prompting = self._connection.prompt(session_id=self.session_id, prompt=[self.sdk.text_block(text)])
        return await self._request("session/prompt", prompting, timeout_s=None)

    async def _request(
        self, method: str, call: Coroutine[Any, Any, Any], timeout_s: float | None = _REQUEST_TIMEOUT_S
    ) -> Any:
        """The response of the harness. Raises HarnessFailed on an error, a timeout or process exit.

        A request without a timeout is cancelled at the harness when the caller is cancelled.
        """
        assert self._group is not None
        response = _Response()
        request = self._group.create_task(response.capture(call), name=f"request to {self.harness}")
        exited = self._group.create_task(self.process.gone.wait(), name=f"exit of {self.harness}")
        try:
            await asyncio.wait({request, exited}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                await asyncio.wait({request}, timeout=_EXIT_GRACE_S)
            if not request.done() and exited.done():
                raise self.process.failure(f"exited before it answered {method}")
            if not request.done():
                raise self.process.failure(f"did not answer {method} within {timeout_s:g} seconds")
        except asyncio.CancelledError:
            if timeout_s is None:
                await self._cancel_prompt({request, exited})
            raise
        finally:
            request.cancel()
            exited.cancel()
        error = response.error
        if isinstance(error, self.sdk.RequestError):
            raise self.process.failure(f"rejected {method}: {_error_text(error)}")
        if isinstance(error, OSError):
            await self.process.settle()
            raise self.process.failure(f"closed the connection before it answered {method}")
        if error is not None:
            raise self.process.failure(f"sent an invalid response to {method}")
        return response.value

    async def _cancel_prompt(self, until: set[asyncio.Task[Any]]) -> None:
        """Send session/cancel and wait for the prompt or the process to end, within the grace period."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_CANCEL_GRACE_S):
                await self._connection.cancel(session_id=self.session_id)
                await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)


@dataclass(slots=True)
class _Response:
    """A response, or the exception in its place: an exception in a task would end the task group."""

    value: Any = None
    error: Exception | None = None

    async def capture(self, call: Coroutine[Any, Any, Any]) -> None:
        try:
            self.value = await call
        except Exception as error:  # the protocol package and the harness can raise anything
            self.error = error


def _error_text(error: Any) -> str:
    detail = error.data.get("details") or error.data.get("message") if isinstance(error.data, dict) else None
    hint = ""
    if error.code == _AUTH_REQUIRED:
        hint = " Log in with the command of the harness, or set its API key in env."
    text = summary(f"{error}{f' ({detail})' if detail else ''}")
    return f"{text}.{hint}"
