"""The runner: claim a turn, run it, commit its outcome.

One task per session drains its queue, so that turns of a session never overlap and keep their order. Turns of
different sessions run in parallel, as many as their pool has slots. No lock is held during a model call: the
fencing number of the claim decides who may write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from hobnob import crashpoints, metering, redact
from hobnob.cluster import Alone, Cluster
from hobnob.config import Config
from hobnob.effects import Effects
from hobnob.errors import Fenced, HobnobError, StoreClosed, StoreError
from hobnob.events import AnswerDelta, Change, TurnChanged
from hobnob.hub import Hub
from hobnob.processes.records import boot_id
from hobnob.resume_gate import ResumeGate
from hobnob.runner.running_turn import Loaded, RunningTurn, Slot
from hobnob.runtimes import Ended, Message, steps
from hobnob.runtimes.transcripts import Position, TranscriptCache
from hobnob.store import Store, Tx, entries, turns
from hobnob.store import sessions as session_rows
from hobnob.store.engine.tx import P, T, Verb
from hobnob.types import Entry, Pool, Session, Turn, failure_message, now_ms

_STOP_POLL_S = 0.1
_RECENT = 40  # entries loaded with a claim
_FIRST_RETRY_S, _MAX_RETRY_S = 0.2, 5.0  # back-off between attempts to write
_RELEASED = Ended("lost")  # stopped by a shutdown: the claim is released for the next start
_LEFT = Ended("lost")  # the gateway hung: the claim is left for whoever counts that as a crash
_APART_ALONE_S, _APART_S = 1.0, 0.05  # between turns that ran at a crash, when they are resumed
_LOOKED_AT, _ALL = 64, 2**31  # turns that wait
_ASK_EVERY_S = 0.1
_log = logging.getLogger(__name__)


Runtime = Callable[[RunningTurn], Awaitable[Ended]]


class Runner:
    """Runs turns as they are accepted, until `stop`."""

    def __init__(
        self,
        store: Store,
        config: Config,
        hub: Hub,
        runtime: Runtime,
        effects: Effects,
        cluster: Cluster | None = None,
    ) -> None:
        self.store = store
        self._cluster = cluster or Alone()
        self._effects = effects
        self.hub = hub
        self._config = config
        self._runtime = runtime
        boot = boot_id()
        self._boot_id = boot and f"{socket.gethostname()}/{boot}"
        self._home = config.settings.home_name if self._cluster.shared else None
        self.resuming = ResumeGate(_APART_S if self._cluster.shared else _APART_ALONE_S)
        self._transcripts = TranscriptCache()
        self._queued: dict[str, dict[str, Pool]] = {}  # session key: its waiting turns, in order
        self._session_tasks: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, asyncio.Task[Ended]] = {}
        self._abort_reasons: dict[str, str] = {}  # turns whose abort was requested
        self._given_up: set[str] = set()  # running turns that another gateway has, or whose session is gone
        self._hung: set[str] = set()  # those that ran while code blocked the event loop for too long
        self._more = False  # whether more turns wait in the store than are queued here
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._skip_grace = False
        self._asked_at = 0.0
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
            await self.recover(at_start=True)
            await self._stopping.wait()

    async def recover(self, *, at_start: bool = False) -> None:
        """Release the turns of gateways that are gone, then look for turns to run."""
        try:
            if at_start or len(await self.store.read(turns.left)):
                await self.persist(self._effects.recover_turns, self._boot_id)
        except Fenced:  # another gateway recovers the same ones
            _log.debug("turns are being recovered by another gateway")
        await self.look_for_work()

    async def look_for_work(self) -> None:
        """Queue turns that wait in the store. Other gateways may do the same: who claims one runs it."""
        if self._stopping.is_set() or self._cluster.draining:
            return
        limit = _LOOKED_AT if self._cluster.shared else _ALL
        found = await self.store.read(turns.to_run, limit=limit, home=self._home)
        self._more = len(found) == limit
        for turn in found:
            if turn.crashes and turn.session_key not in self._session_tasks:
                self.resuming.add(turn.turn_id)
            self._enqueue(turn.session_key, turn.turn_id, turn.pool)

    async def recheck(self) -> None:
        """Look in the store what became of the turns that run here: aborts, and messages behind them."""
        here = set(self._running)
        if not here:
            return
        known = await self.store.read(turns.open_of_any, list(self._session_tasks))
        self._on_changes([TurnChanged(turn) for turn in known])
        held = {turn.turn_id for turn in known if turn.claimed_by == self._cluster.gateway_id}
        for turn_id in here - held:
            self._give_up(turn_id)

    def fence(self) -> None:
        """End the turns that run here: other gateways may be running them already."""
        if self._cluster.hung:
            self._hung |= self._running.keys()
        for turn_id in [*self._running]:
            self._give_up(turn_id)

    def wants(self, session_key: str, _turn_id: str | None) -> bool:
        """Whether a turn of the session runs here."""
        return session_key in self._session_tasks

    def _give_up(self, turn_id: str) -> None:
        if task := self._running.get(turn_id):
            self._given_up.add(turn_id)
            task.cancel()

    async def stop(self, grace_s: float) -> None:
        """Start no more turns, let running ones end, then release the rest for the next start.

        If there are other gateways, running turns are released at once: they continue there, unless their
        files are here.
        """
        self._stopping.set()
        self.resuming.close()
        with contextlib.suppress(StoreError):
            await self.store.write(turns.stopping, self._cluster.gateway_id)
        if self.hands_over:
            grace_s = 0
        deadline = asyncio.get_running_loop().time() + grace_s
        while self._running and not self._skip_grace and asyncio.get_running_loop().time() < deadline:
            await asyncio.wait(set(self._running.values()), timeout=_STOP_POLL_S)
        for task in list(self._running.values()):
            task.cancel()
        if self._session_tasks:
            await asyncio.wait(set(self._session_tasks.values()))
        self._cluster.tell("work", None)

    @property
    def hands_over(self) -> bool:
        """Whether turns continue elsewhere when this one stops: a gateway starts turns, and has the files."""
        return self._cluster.can_take_over and self._home is None

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
                    self._given_up.add(turn.turn_id)
            elif turn.abort_reason is not None and turn.session_key in self._session_tasks:
                # Recorded also before its task exists: the claim may be about to return.
                self._abort_reasons[turn.turn_id] = turn.abort_reason
            else:
                continue
            if task := self._running.get(turn.turn_id):
                task.cancel()  # aborted, or its session was deleted

    def _enqueue(self, session_key: str, turn_id: str, pool: Pool) -> None:
        if self._cluster.others and (self._cluster.draining or self.slots[pool].locked()):
            self._ask_for_help()
        self._queued.setdefault(session_key, {})[turn_id] = pool
        if self._group is not None and not self._stopping.is_set() and session_key not in self._session_tasks:
            task = self._group.create_task(self._drain(session_key), name=f"drain {session_key}")
            self._session_tasks[session_key] = task

    def _ask_for_help(self) -> None:
        """Tell other gateways that turns wait here."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._asked_at:
            self._asked_at = loop.time() + _ASK_EVERY_S
            loop.call_at(self._asked_at, self._cluster.tell, "work", None)  # for those until then
            self._cluster.tell("work", None)

    async def _drain(self, session_key: str) -> None:
        """Run a session's turns one after the other until its queue is empty."""
        try:
            while (queued := self._queued.get(session_key)) and not self._stopping.is_set():
                slot = Slot(self.slots[next(iter(queued.values()))])
                async with slot:
                    await self.resuming.wait(next(iter(queued), ""))
                    await self._member_or_stopping()
                    if self._stopping.is_set():
                        return
                    if self._cluster.draining:
                        queued.clear()
                        self._ask_for_help()
                        return
                    if not queued:  # merged into another turn, or taken by another gateway, meanwhile
                        continue
                    known = set(queued)
                    position = self._transcripts.position(session_key)
                    gateway_id = self._cluster.gateway_id
                    turn, session, recent = await self.persist(
                        _claim, session_key, gateway_id, self._boot_id, position, self._home
                    )
                    if turn is None:
                        # Those we knew of were aborted or merged, or run on another gateway, which goes on
                        # with the next one. More may have been queued meanwhile.
                        for turn_id in known:
                            queued.pop(turn_id, None)
                        if session is not None and session.home not in (None, self._home):
                            self._cluster.tell("work", None)
                        continue
                    queued.pop(turn.turn_id, None)
                    holds = self._cluster.still_holds(gateway_id)
                    if self._stopping.is_set() or not holds:
                        with contextlib.suppress(Fenced):  # deleted, or another gateway has it
                            await self.store.write(turns.release, turn)
                        return
                    transcript = self._transcripts.update(session_key, turn.session_id, recent)
                    await self._run(turn, session, (recent, transcript), slot)
                    self._transcripts.shrink(session_key)
        except StoreError as error:  # stopping: the next start claims it
            _log.error("next turn of %s not claimed, left for the next start: %s", session_key, error)
        finally:
            self._session_tasks.pop(session_key, None)
            if not self._queued.get(session_key):
                self._queued.pop(session_key, None)
            if self._more and not self._queued and self._group is not None:
                self._more = False
                self._group.create_task(self._look_again(), name="look for turns")

    async def _member_or_stopping(self) -> None:
        """Wait until this gateway may claim turns, or has to stop."""
        if self._cluster.is_member:
            return
        waiting = [asyncio.ensure_future(each) for each in (self._cluster.joined(), self._stopping.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()

    async def _look_again(self) -> None:
        try:
            await self.look_for_work()
        except StoreError as error:  # the next poll looks again
            _log.warning("waiting turns not found: %s", error)

    async def _run(self, turn: Turn, session: Session | None, loaded: Loaded, slot: Slot) -> None:
        """One turn, from its claim to its outcome. A failure ends the turn and nothing else."""
        crashpoints.point("after-claim")
        if turn.claim > 1:  # what was streamed before is streamed again
            self.hub.publish_live(AnswerDelta(turn.session_key, turn.turn_id, "", restart=True))
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
            if ended is _LEFT:
                return
            if ended is _RELEASED:
                await self.store.write(turns.release, turn)
                return
            if (following := await self.persist(self._end, turn, ended)) is not None:
                self._enqueue(following.session_key, following.turn_id, following.pool)
        except Fenced:
            _log.warning("outcome of turn %s discarded: a newer claim holds it", turn.turn_id)
            return
        except StoreError as error:  # stopping: the next start resumes the turn as after a crash
            _log.error("outcome of turn %s not saved: %s", turn.turn_id, error)
            return
        finally:
            self.resuming.progressed(turn.turn_id)
        crashpoints.point("after-end")

    def _end(self, tx: Tx, turn: Turn, ended: Ended) -> Turn | None:
        """Commit the last answer or the reason of a failure, the outcome and its effects together.

        Returns the next turn of the session: another gateway may have accepted it, and left it to this one.
        """
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
        return turns.next_of(tx, turn.session_key) if tx.concurrent else None

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
            self._given_up.discard(turn_id)
            self._hung.discard(turn_id)

    def _cancelled(self, running: RunningTurn) -> Ended:
        """The outcome of a cancelled task: aborted on request, released, or failed by its own code."""
        turn_id = running.turn.turn_id
        if reason := self._abort_reasons.get(turn_id):
            return running.interrupted("cancelled", reason)
        if turn_id in self._hung:
            return _LEFT
        if self._stopping.is_set() or turn_id in self._given_up:
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


def _claim(
    tx: Tx, session_key: str, node: str, boot_id: str | None, known: Position | None, home: str | None
) -> tuple[Turn | None, Session | None, list[Entry]]:
    """The next turn with its session, and the entries after the known ones, else the latest.

    Among gateways with files of their own, also the session whose turn could not be claimed.
    """
    turn = turns.claim(tx, session_key, node, boot_id, home=home)
    if turn is None:
        return None, session_rows.find(tx, session_key) if home else None, []
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
