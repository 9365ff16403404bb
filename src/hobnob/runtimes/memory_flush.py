"""The memory flush: before a summary replaces what it knows, an agent may save notes to its workspace.

It is a copy of the conversation with one more request. The agent has the tools for files, its answer is
discarded, and nothing of it is appended to the transcript. It takes place once before each summary: it is
marked before it begins, so that a crash does not repeat it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import strftime

from hobnob import briefings, crashpoints
from hobnob.config.agents import Compaction
from hobnob.errors import HobnobError
from hobnob.models import Failed, Finished, Request
from hobnob.records import Struct, replace
from hobnob.runtimes import (
    Compacting,
    Emit,
    Ended,
    Message,
    ModelAnswered,
    Step,
    TurnContext,
    builtin,
    context,
)
from hobnob.runtimes.compaction import next_compaction, silent
from hobnob.runtimes.meter import Meter
from hobnob.runtimes.model_calls import ModelChoice, call_model
from hobnob.store import Store, entries
from hobnob.tools import Context, Toolbox

TOOLS = ("read", "write", "edit")
_MAX_STEPS = 12
_REASON_CHARS = 300


class MemoryFlush(Struct, frozen=True):
    """The memory flush of one turn's session. `system` makes the system prompt for a set of tools."""

    running: TurnContext
    store: Store
    settings: Compaction
    choices: Sequence[ModelChoice]
    meter: Meter
    toolbox: Toolbox
    system: Callable[[Toolbox, str], str]

    async def __call__(self, budget: int) -> None:
        """Save notes, unless that was done or begun since the last summary, or cannot be done."""
        tools = self.toolbox.limited(TOOLS)
        if not self.settings.memory_flush.enabled or "write" not in tools.names:
            return  # a read-only workspace: the session has no tool that writes
        state = await next_compaction(self.store, self.running)
        history = self._history(budget)
        if state.flush is not None or not history:
            return
        crashpoints.point("before-flush")
        begun = replace(state, flush="begun")
        await self.running.emit(Compacting(begun))
        ended = await self._run(history, tools, budget, begun)
        # A model that was not reachable did nothing: the next turn may try again.
        flush = "done" if ended.error is None else f"failed: {ended.error[:_REASON_CHARS]}"
        result = replace(state, flush=None if ended.transient else flush)
        await self.running.emit(Compacting(result, (ended.message,) if ended.message else ()))
        crashpoints.point("after-flush")

    def _history(self, budget: int) -> list[Message]:
        """The conversation before this turn, as much of it as fits."""
        known, first_own = self.running.transcript, self.running.turn.input_seq
        earlier = [m for m in known.for_model() if first_own is None or m.seq < first_own]
        return context.fit([*earlier], budget)

    async def _run(
        self, history: list[Message], tools: Toolbox, budget: int, begun: entries.Compaction
    ) -> Ended:
        session, turn = self.running.session, self.running.turn
        settings = self.settings.memory_flush
        request = Request(
            model="",
            system=self.system(tools, briefings.flush(settings.system_prompt)),
            messages=[],
            tools=tools.specs,
            session_key=f"agent:{session.agent_id}:flush",
        )
        discard = silent()

        async def call(messages: list[Message], emit: Emit) -> Finished | Failed:
            fitting = context.fit([*messages], budget)
            return await call_model(
                self.choices, replace(request, messages=fitting), discard, meter=self.meter
            )

        async def receive(step: Step) -> None:
            if isinstance(step, ModelAnswered):  # its usage; the next call is reserved after that
                await self.running.emit(Compacting(begun, (step.message,)))

        async def no_input() -> list[Message]:
            return []

        asked = settings.prompt or briefings.flush_request(strftime("%Y-%m-%d"))
        loop = builtin.LoopInput(
            history=[*history, {"role": "user", "content": asked}],
            resumed=False,
            call_model=call,
            toolbox=tools,
            context=Context(session, turn, waiting=self.running.waiting),
            steer=no_input,
            max_steps=_MAX_STEPS,
        )
        try:
            async with asyncio.timeout(self.settings.timeout_seconds):
                return await builtin.run(loop, receive)
        except HobnobError as refusal:  # a budget that is used up: the turn itself will say so
            return Ended("failed", error=refusal.message)
        except TimeoutError:
            return Ended("timed_out", error=f"it took longer than {self.settings.timeout_seconds} seconds")
