"""The runner: claim a turn, run it, commit its outcome.

One task per session drains its queue, so that turns of a session never overlap and keep their order. Turns of
different sessions run in parallel, as many as their pool has slots. No lock is held during a model call: the
fencing number of the claim decides who may write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

from hobnob import crashpoints, metering, redact
from hobnob.config import Config
from hobnob.effects import Effects
from hobnob.errors import Fenced, HobnobError, StoreClosed, StoreError
from hobnob.events import AnswerDelta, Change, ToolStarted, TurnChanged
from hobnob.hub import Hub
from hobnob.records import replace
from hobnob.resume_gate import ResumeGate
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
from hobnob.runtimes.transcripts import Position, Transcript, TranscriptCache
from hobnob.store import Store, Tx, entries, turns
from hobnob.store import sessions as session_rows
from hobnob.store.engine.tx import P, T, Verb
from hobnob.types import Entry, Outcome, Pool, Session, Turn, failure_message, now_ms

_STOP_POLL_S = 0.1
_RECENT = 40  # entries loaded with a claim
_YIELD_EVERY = 50  # deltas after which subscribers get to run
_FIRST_RETRY_S, _MAX_RETRY_S = 0.2, 5.0  # back-off between attempts to write
_Loaded = tuple[list[Entry], Transcript]
_RELEASED = Ended("lost")  # stopped by a shutdown: the claim is released for the next start
_log = logging.getLogger(__name__)


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

    def __init__(self, runner: Runner, turn: Turn, session: Session, loaded: _Loaded, slot: Slot) -> None:
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
                hub.publish(AnswerDelta(turn.session_key, turn.turn_id, text, thinking, restart))
                self._deltas += 1
                if self._deltas % _YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            case ToolCalled(call_id, name, arguments):
                hub.publish(ToolStarted(turn.session_key, turn.turn_id, call_id, name, arguments))
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


Runtime = Callable[[RunningTurn], Awaitable[Ended]]


class Runner:
    """Runs turns as they are accepted, until `stop`."""

    def __init__(self, store: Store, config: Config, hub: Hub, runtime: Runtime, effects: Effects) -> None:
        self.store = store
        self._effects = effects
        self.hub = hub
        self._config = config
        self._runtime = runtime
        self._node = f"{socket.gethostname()}:{os.getpid()}"
        self._boot_id = _boot_id()
        self.resuming = ResumeGate()
        self._transcripts = TranscriptCache()
        self._queued: dict[str, dict[str, Pool]] = {}  # session key: its waiting turns, in order
        self._draining: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, asyncio.Task[Ended]] = {}
        self._abort_reasons: dict[str, str] = {}  # turns whose abort was requested
        self._deleted: set[str] = set()  # running turns whose session was deleted
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._skip_grace = False
        settings = config.settings
        defaults = settings.agents.defaults
        self.slots: dict[Pool, asyncio.Semaphore] = {
            "main": asyncio.Semaphore(defaults.max_concurrent),
            "subagent": asyncio.Semaphore(defaults.subagents.max_concurrent),
            "acp": asyncio.Semaphore(settings.acp.max_concurrent_sessions),
            "cron": asyncio.Semaphore(settings.cron.max_concurrent_runs),
        }

    async def run(self) -> None:
        """Recover the turns of an earlier process, then run turns until stopped."""
        self.store.watch(self._on_changes)
        async with asyncio.TaskGroup() as group:
            self._group = group
            for turn in await self.store.write(self._effects.recover_turns, self._boot_id):
                if turn.crashes:
                    self.resuming.add(turn.turn_id)
                self._enqueue(turn.session_key, turn.turn_id, turn.pool)
            await self._stopping.wait()

    async def stop(self, grace_s: float) -> None:
        """Start no more turns, let running ones end, then release the rest for the next start."""
        self._stopping.set()
        self.resuming.close()
        with contextlib.suppress(StoreError):
            await self.store.write(turns.stopping, self._node)
        deadline = asyncio.get_running_loop().time() + grace_s
        while self._running and not self._skip_grace and asyncio.get_running_loop().time() < deadline:
            await asyncio.wait(set(self._running.values()), timeout=_STOP_POLL_S)
        for task in list(self._running.values()):
            task.cancel()
        if self._draining:
            await asyncio.wait(set(self._draining.values()))

    def skip_grace(self) -> None:
        """End the grace period of `stop`: release running turns now."""
        self._skip_grace = True

    async def persist(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Write with retries: while the store is unavailable (a full disk, say), the turn waits."""
        pause = _FIRST_RETRY_S
        while True:
            try:
                return await self.store.write(verb, *args, **kwargs)
            except StoreClosed:
                raise
            except StoreError as error:
                if self._stopping.is_set():
                    raise
                _log.error("store unavailable, turn waits: %s", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_S)

    def has_queued(self, session_key: str) -> bool:
        return bool(self._queued.get(session_key))

    @property
    def stopping(self) -> bool:
        """Whether it takes no new turns."""
        return self._stopping.is_set()

    @property
    def busy(self) -> int:
        return len(self._running)

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            if not isinstance(change, TurnChanged):
                continue
            turn = change.turn
            if turn.status == "queued":
                self._enqueue(turn.session_key, turn.turn_id, turn.pool)
                continue
            self._queued.get(turn.session_key, {}).pop(turn.turn_id, None)
            if turn.status == "ended":
                self._abort_reasons.pop(turn.turn_id, None)
                if turn.turn_id in self._running:
                    self._deleted.add(turn.turn_id)
            elif turn.abort_reason is not None:
                # Recorded also before its task exists: the claim may be about to return.
                self._abort_reasons[turn.turn_id] = turn.abort_reason
            else:
                continue
            if task := self._running.get(turn.turn_id):
                task.cancel()  # aborted, or its session was deleted

    def _enqueue(self, session_key: str, turn_id: str, pool: Pool) -> None:
        self._queued.setdefault(session_key, {})[turn_id] = pool
        if self._group is not None and not self._stopping.is_set() and session_key not in self._draining:
            task = self._group.create_task(self._drain(session_key), name=f"drain {session_key}")
            self._draining[session_key] = task

    async def _drain(self, session_key: str) -> None:
        """Run a session's turns one after the other until its queue is empty."""
        try:
            while (queued := self._queued.get(session_key)) and not self._stopping.is_set():
                slot = Slot(self.slots[next(iter(queued.values()))])
                async with slot:
                    await self.resuming.wait(next(iter(queued), ""))
                    if self._stopping.is_set():
                        return
                    known = set(queued)
                    position = self._transcripts.position(session_key)
                    turn, session, recent = await self.persist(
                        _claim, session_key, self._node, self._boot_id, position
                    )
                    if (
                        turn is None
                    ):  # those we knew of were aborted or merged; more may have been queued meanwhile
                        for turn_id in known:
                            queued.pop(turn_id, None)
                        continue
                    queued.pop(turn.turn_id, None)
                    if self._stopping.is_set():
                        with contextlib.suppress(Fenced):  # its session was deleted
                            await self.store.write(turns.release, turn)
                        return
                    transcript = self._transcripts.update(session_key, turn.session_id, recent)
                    await self._run(turn, session, (recent, transcript), slot)
                    self._transcripts.shrink(session_key)
        except StoreError as error:  # stopping: the next start claims it
            _log.error("next turn of %s not claimed, left for the next start: %s", session_key, error)
        finally:
            self._draining.pop(session_key, None)
            if not self._queued.get(session_key):
                self._queued.pop(session_key, None)

    async def _run(self, turn: Turn, session: Session | None, loaded: _Loaded, slot: Slot) -> None:
        """One turn, from its claim to its outcome. A failure ends the turn and nothing else."""
        crashpoints.point("after-claim")
        if session is None:
            ended = Ended("cancelled", error="The session was deleted.")
        elif turn.step == "note":  # it is in the transcript now; no model is called
            ended = Ended("ok")
        elif turn.step == "command":
            ended = _command_answer(turn)
        else:
            ended = await self._in_task(RunningTurn(self, turn, session, loaded, slot))
        crashpoints.point("before-end")
        try:
            if ended is _RELEASED:
                await self.store.write(turns.release, turn)
                return
            await self.persist(self._end, turn, ended)
        except Fenced:
            _log.warning("outcome of turn %s discarded: a newer claim holds it", turn.turn_id)
            return
        except StoreError as error:  # stopping: the next start resumes the turn as after a crash
            _log.error("outcome of turn %s not saved: %s", turn.turn_id, error)
            return
        finally:
            self.resuming.progressed(turn.turn_id)
        crashpoints.point("after-end")

    def _end(self, tx: Tx, turn: Turn, ended: Ended) -> None:
        """Commit the last answer or the reason of a failure, the outcome and its effects together."""
        tx.lock("session", turn.session_key)  # before its transcript, as everywhere
        if (message := _last_message(ended)) is not None:
            steps.append(tx, turn, message)
        metering.close(tx, turn, ended.reply or "")
        # This also checks the claim: if it no longer holds, the answer is rolled back too.
        self._effects.end_turn(
            tx,
            turn,
            ended.outcome,
            reply=ended.reply,
            error=ended.error,
            structured=ended.structured,
            schema_error=ended.schema_error,
            transient=ended.transient,
        )

    async def _in_task(self, running: RunningTurn) -> Ended:
        """Run a turn in its own task, so that cancelling it does not cancel the session's drain task."""
        turn_id = running.turn.turn_id
        assert self._group is not None
        task = self._group.create_task(self._outcome(running), name=f"turn {turn_id}")
        self._running[turn_id] = task
        try:
            await _settled(task)
            # A task cancelled before its first step returns no outcome.
            return self._cancelled(running) if task.cancelled() else task.result()
        finally:
            self._running.pop(turn_id, None)
            self._deleted.discard(turn_id)

    def _cancelled(self, running: RunningTurn) -> Ended:
        """The outcome of a cancelled task: aborted on request, released, or failed by its own code."""
        turn_id = running.turn.turn_id
        if reason := self._abort_reasons.get(turn_id):
            return running.interrupted("cancelled", reason)
        if self._stopping.is_set() or turn_id in self._deleted:
            return _RELEASED
        return running.interrupted("failed", "The turn was cancelled by its own code.")

    async def _outcome(self, running: RunningTurn) -> Ended:
        """The outcome of a turn. The one place that catches every exception."""
        turn = running.turn
        if reason := turn.abort_reason or self._abort_reasons.get(turn.turn_id):
            return running.interrupted("cancelled", reason)
        limit = turn.timeout_s or self._config.settings.agents.defaults.timeout_seconds
        try:
            async with asyncio.timeout(limit) as clock:
                return await self._runtime(running)
        except TimeoutError as fault:
            if clock.expired():
                return running.interrupted("timed_out", f"The turn was stopped after {limit} seconds.")
            return running.interrupted("failed", f"TimeoutError: {fault}")
        except asyncio.CancelledError:
            return self._cancelled(running)
        except Fenced:
            return _RELEASED
        except HobnobError as error:
            return running.interrupted("failed", " ".join(filter(None, (error.message, error.fix))))
        except Exception as fault:  # the turn boundary: a failure ends only this turn
            _log.exception("turn %s failed", turn.turn_id)
            return running.interrupted("failed", f"{type(fault).__name__}: {fault}")


def _boot_id() -> str | None:
    """Identifies the boot of the machine; None where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _claim(
    tx: Tx, session_key: str, node: str, boot_id: str | None, known: Position | None
) -> tuple[Turn | None, Session | None, list[Entry]]:
    """The next turn with its session, and the entries after the known ones, else the latest."""
    turn = turns.claim(tx, session_key, node, boot_id)
    if turn is None:
        return None, None, []
    session = session_rows.find(tx, session_key)
    if known is not None and known[0] == turn.session_id and session is not None and not session.is_external:
        new = entries.after(tx, turn.session_id, known[1], limit=_RECENT + 1)
        if len(new) <= _RECENT:
            return turn, session, new
    return turn, session, entries.history(tx, turn.session_id, limit=_RECENT)


async def _settled(task: asyncio.Task[Any]) -> None:
    """Wait until a task is done. `asyncio.wait` does the same at several times the cost."""
    done = asyncio.Event()
    task.add_done_callback(lambda _: done.set())
    await done.wait()


def _last_message(ended: Ended) -> Message | None:
    """What a turn leaves in the transcript at its end. A failed turn always leaves its reason."""
    if ended.error is None or ended.outcome == "cancelled":
        return ended.message
    why = redact.text(ended.error)[0]
    return {**ended.message, "errorMessage": why} if ended.message else failure_message(why)


def _command_answer(turn: Turn) -> Ended:
    """The answer to a slash command, which ran when it was accepted."""
    answer = str(orjson.loads(turn.options)["answer"])
    content = [{"type": "text", "text": answer}]
    message: Message = {"role": "assistant", "content": content, "stopReason": "stop", "timestamp": now_ms()}
    return Ended("ok", reply=answer, message=message)
