"""A turn while it runs, and the slot that it needs for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hobnob import crashpoints
from hobnob.events import AnswerDelta, ToolStarted
from hobnob.records import replace
from hobnob.runtimes import (
    Compacted,
    Compacting,
    Delta,
    Ended,
    Message,
    ModelAnswered,
    Reminded,
    Step,
    ToolCalled,
    ToolReturned,
    steps,
)
from hobnob.runtimes.transcripts import Transcript
from hobnob.store import turns
from hobnob.types import Entry, Outcome, Session, Turn, failure_message

if TYPE_CHECKING:
    from hobnob.runner import Runner

Loaded = tuple[list[Entry], Transcript]
_YIELD_EVERY = 50  # deltas after which subscribers get to run


class Slot:
    """One of the slots of a pool: a turn needs one to run."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._reacquiring = asyncio.Lock()
        self._lent = 0
        self._held = False

    async def __aenter__(self) -> None:
        await self._slots.acquire()
        self._held = True

    async def __aexit__(self, *_: object) -> None:
        if self._held:
            self._slots.release()

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Lend the slot to another turn while this one waits. Several tools of a turn may wait at a time."""
        self._lent += 1
        if self._held:
            self._held = False
            self._slots.release()
        try:
            yield
        except asyncio.CancelledError:
            self._lent -= 1  # the turn is ending, which needs no slot
            raise
        except BaseException:
            await self._reacquire()
            raise
        await self._reacquire()

    async def _reacquire(self) -> None:
        """Acquire the slot again, once, when no tool of the turn waits any more."""
        self._lent -= 1
        async with self._reacquiring:
            if self._lent or self._held:
                return
            await self._slots.acquire()
            if self._lent:  # another tool began to wait meanwhile and will reacquire it
                self._slots.release()
            else:
                self._held = True


class RunningTurn:
    """A claimed turn while it runs; the `TurnContext` of its runtime."""

    def __init__(self, runner: Runner, turn: Turn, session: Session, loaded: Loaded, slot: Slot) -> None:
        self._runner = runner
        self.turn = turn
        self.session = session
        self.recent, self.transcript = loaded
        self.waiting = slot.lent
        self._text: list[str] = []  # streamed since the last committed answer
        self._deltas = 0

    async def emit(self, step: Step) -> None:
        """Publish a step of the turn. Answers and tool results are committed when this returns."""
        hub, turn = self._runner.hub, self.turn
        match step:
            case Delta(text, thinking, restart):
                if restart:
                    self._text.clear()
                elif not thinking:
                    self._text.append(text)
                hub.publish_live(AnswerDelta(turn.session_key, turn.turn_id, text, thinking, restart))
                self._deltas += 1
                if self._deltas % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            case ToolCalled(call_id, name, arguments):
                hub.publish_live(ToolStarted(turn.session_key, turn.turn_id, call_id, name, arguments))
            case ModelAnswered(message):
                self._text.clear()
                await self._commit(message)
                crashpoints.point("after-step")
            case ToolReturned(message) | Reminded(message):
                await self._commit(message)
                crashpoints.point("after-tool-result")
            case Compacting(state, spent):
                await self._runner.persist(steps.save_compaction, self.turn, state, spent)
                self._progressed()
            case Compacted(message):
                crashpoints.point("before-compaction")
                await self._runner.persist(steps.append_summary, self.turn, message)
                self._progressed()
                crashpoints.point("after-compaction")

    async def steer(self) -> list[Message]:
        """Queued input with queue mode `steer`, merged into this turn."""
        # A turn of an exchange answers another agent: input of people gets its own turn.
        if self.turn.exchange_id is not None or not self._runner.has_queued(self.turn.session_key):
            return []
        taken = await self._runner.store.write(turns.absorb, self.turn, {"steer"})
        return [entry.message for entry in taken]

    def interrupted(self, outcome: Outcome, why: str) -> Ended:
        """The outcome of a turn that was interrupted. The text streamed so far is kept."""
        text = "".join(self._text)
        message = failure_message(why, text)
        if outcome != "failed":
            message["stopReason"] = "aborted"
        return Ended(outcome, reply=text or None, error=why, message=message if text else None)

    async def _commit(self, message: Message) -> None:
        await self._runner.persist(steps.append_step, self.turn, message)
        self._progressed()

    def _progressed(self) -> None:
        """What killed the process earlier is behind the turn."""
        if self.turn.crashes:
            self.turn = replace(self.turn, crashes=0, crashed_at_ms=None)
            self._runner.resuming.progressed(self.turn.turn_id)
