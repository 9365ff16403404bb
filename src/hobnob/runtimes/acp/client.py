"""The conversation with one harness: each question has an answer, a refusal or an end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hobnob import __version__
from hobnob.errors import HarnessFailed
from hobnob.runtimes.acp import options
from hobnob.runtimes.acp.options import What
from hobnob.runtimes.acp.process import HarnessProcess
from hobnob.runtimes.acp.updates import UpdateHandler

PACKAGE = "agent-client-protocol"
_ANSWER_S = 90.0  # for anything but the prompt
_LAST_WORDS_S = 0.5  # of a process that is gone
_CALL_OFF_S = 2.0
_LOG_IN_FIRST = -32000  # the protocol's code for it


@dataclass(slots=True)
class HarnessClient:
    """The conversation with one process."""

    harness: str
    sdk: Any
    process: HarnessProcess
    session_id: str = ""
    _session: Any = None
    _connection: Any = None
    _group: asyncio.TaskGroup | None = None

    def connect(self, listener: UpdateHandler, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._connection = self.sdk.connect_to_agent(listener, self.process.writer, self.process.reader)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def stamp(self) -> dict[str, Any]:
        """What messages are marked with: who speaks, and which session that is for the harness."""
        model = options.model_of(self._session.config_options) if self._session else None
        return {
            "api": "acp",
            "provider": self.harness,
            "model": model or "default",
            "harnessSession": self.session_id,
        }

    async def open_session(self, cwd: str, earlier: str | None) -> bool:
        """Take up the harness's earlier session, or begin one. Returns whether it was taken up."""
        hello = await self._ask(
            "was greeted",
            self._connection.initialize(
                protocol_version=self.sdk.PROTOCOL_VERSION,
                client_capabilities=self.sdk.schema.ClientCapabilities(),
                client_info=self.sdk.schema.Implementation(name="hobnob", version=__version__),
            ),
        )
        if hello.protocol_version != self.sdk.PROTOCOL_VERSION:
            raise HarnessFailed(
                f"The harness {self.harness!r} speaks version {hello.protocol_version} of the protocol, "
                f"not {self.sdk.PROTOCOL_VERSION}.",
                fix=f"Install another version of it, or of {PACKAGE}.",
            )
        if earlier and hello.agent_capabilities and hello.agent_capabilities.load_session:
            with suppress(HarnessFailed):  # that it could is no promise: it begins anew, and is told
                loading = self._connection.load_session(cwd=cwd, session_id=earlier, mcp_servers=[])
                self._session = await self._ask("was given its session", loading)
                self.session_id = earlier
                return True
        opening = self._connection.new_session(cwd=cwd, mcp_servers=[])
        self._session = await self._ask("was asked for a session", opening)
        self.session_id = self._session.session_id
        return False

    async def choose(self, what: What, asked: str) -> None:
        choice = options.choose(self.harness, self._session, what, asked)
        if choice is None:
            return
        if choice.option_id is None:
            setting = self._connection.set_session_mode(session_id=self.session_id, mode_id=choice.value)
            await self._ask(f"was given the {what} {asked!r}", setting)
            return
        setting = self._connection.set_config_option(
            config_id=choice.option_id, session_id=self.session_id, value=choice.value
        )
        answer = await self._ask(f"was given the {what} {asked!r}", setting)
        self._session.config_options = answer.config_options

    async def prompt(self, text: str) -> Any:
        """Send the prompt and wait for the end of the work. Whoever stops waiting calls it off."""
        asked = self._connection.prompt(session_id=self.session_id, prompt=[self.sdk.text_block(text)])
        return await self._ask("worked", asked, limit_s=None)

    async def _ask(self, when: str, work: Coroutine[Any, Any, Any], limit_s: float | None = _ANSWER_S) -> Any:
        """What the harness answers. Raises HarnessFailed when it does not, or is gone before it could.

        What may take as long as it likes is called off when nobody waits for it any more.
        """
        assert self._group is not None
        answer = _Answer()
        asking = self._group.create_task(answer.of(work), name=f"asking {self.harness}")
        gone = self._group.create_task(self.process.gone.wait(), name=f"watching {self.harness}")
        try:
            await asyncio.wait({asking, gone}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                await asyncio.wait({asking}, timeout=_LAST_WORDS_S)
            if not asking.done():
                slow = f"did not answer within {limit_s:g} seconds" if limit_s else "did not answer"
                raise self.process.failure(f"{'died' if gone.done() else slow} when it {when}")
        except asyncio.CancelledError:
            if limit_s is None:
                await self._call_off({asking, gone})
            raise
        finally:
            asking.cancel()
            gone.cancel()
        fault = answer.fault
        if isinstance(fault, self.sdk.RequestError):
            raise self.process.failure(f"said no when it {when}: {_refusal(fault)}")
        if isinstance(fault, OSError):
            await self.process.settle()
            raise self.process.failure(f"ended the conversation when it {when}")
        if fault is not None:
            raise self.process.failure(f"gave an answer outside the protocol when it {when}")
        return answer.value

    async def _call_off(self, until: set[asyncio.Task[Any]]) -> None:
        """Ask the harness to stop, and give it a moment to."""
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(_CALL_OFF_S):
                await self._connection.cancel(session_id=self.session_id)
                await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)


@dataclass(slots=True)
class _Answer:
    """An answer or the fault in its place: what goes wrong in a conversation ends no task group."""

    value: Any = None
    fault: Exception | None = None

    async def of(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.value = await work
        except Exception as fault:  # the edge to somebody else's package and process
            self.fault = fault


def _refusal(fault: Any) -> str:
    detail = fault.data.get("details") or fault.data.get("message") if isinstance(fault.data, dict) else None
    hint = (
        " Log in with its own command first, or give it a key in env." if fault.code == _LOG_IN_FIRST else ""
    )
    return f"{fault}{f' ({detail})' if detail else ''}.{hint}"[:1000]
