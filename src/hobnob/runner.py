"""The runner: claim a turn, run it, commit what comes of it.

A session has one task that drains its queue, so its turns never overlap and keep their order. Turns of
different sessions run side by side, as many as their pool has slots. Nothing is locked while a model thinks:
the claim's fencing number decides who may write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from hobnob import crashpoints
from hobnob.config import Settings
from hobnob.effects import Effects
from hobnob.errors import Fenced, HobnobError, StoreClosed, StoreError
from hobnob.events import AnswerDelta as Spoken
from hobnob.events import Change, TurnChanged
from hobnob.events import ToolStarted as ToolBegun
from hobnob.hub import Hub
from hobnob.runtimes import Delta, Ended, Message, ModelAnswered, Step, ToolCalled, ToolReturned
from hobnob.store import Store, Tx, entries, turns
from hobnob.store import sessions as session_rows
from hobnob.store import usage as usage_rows
from hobnob.store.engine.tx import P, T, Verb
from hobnob.types import Entry, Outcome, Pool, Session, Turn, Usage, now_ms

_LOOK_EVERY_S = 0.1
_RECENT = 40  # entries that come along with a claim
_BREATHE_EVERY = 50  # pieces of text, after which listeners get a turn of the loop
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0  # between two tries to write
_PUT_OFF = Ended("lost")  # stopped by a shutdown: not over, and given back for the next start
_log = logging.getLogger(__name__)


class Slot:
    """The right of a turn to run, among as many as its pool allows."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots = slots
        self._returning = asyncio.Lock()
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
        """Give it to another turn while this one waits. Several tools of a turn may wait at a time."""
        self._lent += 1
        if self._held:
            self._held = False
            self._slots.release()
        try:
            yield
        except asyncio.CancelledError:
            self._lent -= 1  # the turn is at its end, and ending needs no slot
            raise
        except BaseException:
            await self._take_back()
            raise
        await self._take_back()

    async def _take_back(self) -> None:
        """Get it again, once, when the last of those who wait has waited."""
        self._lent -= 1
        async with self._returning:
            if self._lent or self._held:
                return
            await self._slots.acquire()
            if self._lent:  # another tool began to wait meanwhile, and will take it back
                self._slots.release()
            else:
                self._held = True


class Running:
    """One claimed turn while it runs."""

    def __init__(self, runner: Runner, turn: Turn, session: Session, recent: list[Entry], slot: Slot) -> None:
        self._runner = runner
        self.turn = turn
        self.session = session
        self.recent = recent
        self.waiting = slot.lent
        self.said: list[str] = []
        self._pieces = 0

    async def emit(self, step: Step) -> None:
        """Tell what happened. Returns once it is committed, where it is to be kept."""
        hub, turn = self._runner.hub, self.turn
        match step:
            case Delta(text, thinking, restart):
                if restart:
                    self.said.clear()
                elif not thinking:
                    self.said.append(text)
                hub.publish(Spoken(turn.session_key, turn.turn_id, text, thinking, restart))
                self._pieces += 1
                if self._pieces % _BREATHE_EVERY == 0:
                    await asyncio.sleep(0)
            case ToolCalled(call_id, name, arguments):
                hub.publish(ToolBegun(turn.session_key, turn.turn_id, call_id, name, arguments))
            case ModelAnswered(message):
                self.said.clear()
                await self._keep(message)
                crashpoints.point("after-step")
            case ToolReturned(message):
                await self._keep(message)
                crashpoints.point("after-tool-result")

    async def steer(self) -> list[Message]:
        """Input that came while the turn ran and is meant for it."""
        # A turn of an exchange answers another agent: what a person says meanwhile gets a turn of its own.
        if self.turn.exchange_id is not None or not self._runner.is_steered(self.turn.session_key):
            return []
        taken = await self._runner.store.write(turns.absorb, self.turn, {"steer"})
        return [entry.message for entry in taken]

    def cut_short(self, outcome: Outcome, why: str) -> Ended:
        """The end of a turn that did not end by itself. What it had said by then is kept."""
        text = "".join(self.said)
        message: Message = {
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "stopReason": "aborted" if outcome != "failed" else "error",
            "errorMessage": why,
            "timestamp": now_ms(),
        }
        return Ended(outcome, reply=text or None, error=why, message=message if text else None)

    async def _keep(self, message: Message) -> None:
        await self._runner.persist(_keep, self.turn, message)


Runtime = Callable[[Running], Awaitable[Ended]]


class Runner:
    """`run` lives until `stop`. Turns are started as they are accepted."""

    def __init__(
        self, store: Store, settings: Settings, hub: Hub, runtime: Runtime, effects: Effects
    ) -> None:
        self.store = store
        self._effects = effects
        self.hub = hub
        self._settings = settings
        self._runtime = runtime
        self._node = f"{socket.gethostname()}:{os.getpid()}"
        self._queued: dict[str, dict[str, Pool]] = {}  # session key: its waiting turns, in order
        self._draining: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, asyncio.Task[Ended]] = {}
        self._unwanted: dict[str, str] = {}  # turns that somebody wants to end, and why
        self._gone: set[str] = set()  # turns that ended under us, with their session
        self._group: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()
        self._hurried = False
        defaults = settings.agents.defaults
        self.slots: dict[Pool, asyncio.Semaphore] = {
            "main": asyncio.Semaphore(defaults.max_concurrent),
            "subagent": asyncio.Semaphore(defaults.subagents.max_concurrent),
            "acp": asyncio.Semaphore(settings.acp.max_concurrent_sessions),
            "cron": asyncio.Semaphore(settings.cron.max_concurrent_runs),
        }

    async def run(self) -> None:
        """Take up what an earlier process left, then run turns until stopped."""
        self.store.watch(self._changed)
        async with asyncio.TaskGroup() as group:
            self._group = group
            for turn in await self.store.write(self._effects.recover):
                self._enqueue(turn.session_key, turn.turn_id, turn.pool)
            await self._stopping.wait()

    async def stop(self, grace_s: float) -> None:
        """Take nothing new, let running turns end, then give the rest back for the next start."""
        self._stopping.set()
        deadline = asyncio.get_running_loop().time() + grace_s
        while self._running and not self._hurried and asyncio.get_running_loop().time() < deadline:
            await asyncio.wait(set(self._running.values()), timeout=_LOOK_EVERY_S)
        for task in list(self._running.values()):
            task.cancel()
        if self._draining:
            await asyncio.wait(set(self._draining.values()))

    def hurry(self) -> None:
        """Do not wait any longer for turns to end: give them back now."""
        self._hurried = True

    async def persist(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Write what must not be lost. While the store cannot, as with a full disk, the turn waits for it."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await self.store.write(verb, *args, **kwargs)
            except StoreClosed:
                raise
            except StoreError as trouble:
                if self._stopping.is_set():
                    raise
                _log.error("a turn waits for the store: %s", trouble)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def is_steered(self, session_key: str) -> bool:
        return bool(self._queued.get(session_key))

    @property
    def busy(self) -> int:
        return len(self._running)

    def _changed(self, changes: list[Change]) -> None:
        for change in changes:
            if not isinstance(change, TurnChanged):
                continue
            turn = change.turn
            if turn.status == "queued":
                self._enqueue(turn.session_key, turn.turn_id, turn.pool)
                continue
            self._queued.get(turn.session_key, {}).pop(turn.turn_id, None)
            if turn.status == "ended":
                self._unwanted.pop(turn.turn_id, None)
                if turn.turn_id in self._running:
                    self._gone.add(turn.turn_id)
            elif turn.abort_reason is not None:
                # Noted also when its task is not there yet: the claim may just be on its way to us.
                self._unwanted[turn.turn_id] = turn.abort_reason
            else:
                continue
            if task := self._running.get(turn.turn_id):
                task.cancel()  # unwanted, or ended while we run it: its session was deleted

    def _enqueue(self, session_key: str, turn_id: str, pool: Pool) -> None:
        self._queued.setdefault(session_key, {})[turn_id] = pool
        if self._group is not None and not self._stopping.is_set() and session_key not in self._draining:
            task = self._group.create_task(self._drain(session_key), name=f"drain {session_key}")
            self._draining[session_key] = task

    async def _drain(self, session_key: str) -> None:
        """Run a session's turns one after the other until none is waiting."""
        try:
            while (queued := self._queued.get(session_key)) and not self._stopping.is_set():
                slot = Slot(self.slots[next(iter(queued.values()))])
                async with slot:
                    if self._stopping.is_set():
                        return
                    seen = set(queued)
                    turn, session, recent = await self.persist(_claim, session_key, self._node)
                    if turn is None:  # what we had seen is gone; more may have come while we asked
                        for turn_id in seen:
                            queued.pop(turn_id, None)
                        continue
                    queued.pop(turn.turn_id, None)
                    if self._stopping.is_set():
                        with contextlib.suppress(Fenced):  # it was deleted just now
                            await self.store.write(turns.release, turn)
                        return
                    await self._run(turn, session, recent, slot)
        except StoreError as trouble:  # stopping; the next start takes it up
            _log.error("the next turn of %s could not be claimed: %s", session_key, trouble)
        finally:
            self._draining.pop(session_key, None)
            if not self._queued.get(session_key):
                self._queued.pop(session_key, None)

    async def _run(self, turn: Turn, session: Session | None, recent: list[Entry], slot: Slot) -> None:
        """One turn, from its claim to its outcome. What goes wrong in it ends the turn and nothing else."""
        crashpoints.point("after-claim")
        if session is None:
            ended = Ended("cancelled", error="The session was deleted.")
        elif turn.step == "note":  # only to be read: it is in the transcript now, and nobody is asked
            ended = Ended("ok")
        elif turn.step == "command":
            ended = _obeyed(turn)
        else:
            ended = await self._in_task(Running(self, turn, session, recent, slot))
        crashpoints.point("before-end")
        try:
            if ended is _PUT_OFF:
                await self.store.write(turns.release, turn)
                return
            await self.persist(self._end, turn, ended)
        except Fenced:
            _log.warning("turn %s is no longer ours: a newer claim holds it", turn.turn_id)
            return
        except StoreError as trouble:  # stopping: the next start finds the turn as a crash would leave it
            _log.error("turn %s could not be put away: %s", turn.turn_id, trouble)
            return
        crashpoints.point("after-end")

    def _end(self, tx: Tx, turn: Turn, ended: Ended) -> None:
        """The last answer, the outcome and what follows from it, together or not at all."""
        if ended.message is not None:
            _append(tx, turn, ended.message)
        # This also checks the claim: when it no longer holds, the answer is not kept either.
        self._effects.end(tx, turn, ended.outcome, reply=ended.reply, error=ended.error)

    async def _in_task(self, running: Running) -> Ended:
        """In a task of its own, so that ending the turn does not end the draining of its session."""
        turn_id = running.turn.turn_id
        assert self._group is not None
        task = self._group.create_task(self._outcome(running), name=f"turn {turn_id}")
        self._running[turn_id] = task
        try:
            await asyncio.wait([task])
            # A task that is cancelled before its first step never gets to say how it ended.
            return self._broken_off(running) if task.cancelled() else task.result()
        finally:
            self._running.pop(turn_id, None)
            self._gone.discard(turn_id)

    def _broken_off(self, running: Running) -> Ended:
        """How a turn ended that was cancelled: as somebody wanted, not at all yet, or by its own fault."""
        turn_id = running.turn.turn_id
        if reason := self._unwanted.get(turn_id):
            return running.cut_short("cancelled", reason)
        if self._stopping.is_set() or turn_id in self._gone:
            return _PUT_OFF
        return running.cut_short("failed", "The turn was broken off from within.")

    async def _outcome(self, running: Running) -> Ended:
        """How the turn ended, whatever happened in it. The one place that catches everything."""
        turn = running.turn
        if reason := turn.abort_reason or self._unwanted.get(turn.turn_id):
            return running.cut_short("cancelled", reason)
        limit = turn.timeout_s or self._settings.agents.defaults.timeout_seconds
        try:
            async with asyncio.timeout(limit) as clock:
                return await self._runtime(running)
        except TimeoutError as fault:
            if clock.expired():
                return running.cut_short("timed_out", f"The turn was stopped after {limit} seconds.")
            return running.cut_short("failed", f"TimeoutError: {fault}")
        except asyncio.CancelledError:
            return self._broken_off(running)
        except Fenced:
            return _PUT_OFF
        except HobnobError as problem:
            return running.cut_short("failed", " ".join(filter(None, (problem.message, problem.fix))))
        except Exception as fault:  # the turn boundary: a fault in a turn ends that turn
            _log.exception("turn %s failed", turn.turn_id)
            return running.cut_short("failed", f"{type(fault).__name__}: {fault}")


def _claim(tx: Tx, session_key: str, node: str) -> tuple[Turn | None, Session | None, list[Entry]]:
    """The next turn with its session and the end of its transcript."""
    turn = turns.claim(tx, session_key, node)
    if turn is None:
        return None, None, []
    return turn, session_rows.find(tx, session_key), entries.history(tx, turn.session_id, limit=_RECENT)


def _obeyed(turn: Turn) -> Ended:
    """The answer to an owner's command, which was carried out when it was accepted."""
    answer = str(orjson.loads(turn.options)["answer"])
    content = [{"type": "text", "text": answer}]
    message: Message = {"role": "assistant", "content": content, "stopReason": "stop", "timestamp": now_ms()}
    return Ended("ok", reply=answer, message=message)


def _keep(tx: Tx, turn: Turn, message: Message) -> None:
    turns.check_claim(tx, turn)
    _append(tx, turn, message)


def _append(tx: Tx, turn: Turn, message: Message) -> None:
    entries.append(tx, turn.session_id, message, turn_id=turn.turn_id)
    usage = message.get("usage")
    if usage:
        _book(tx, turn, message, usage)


def _book(tx: Tx, turn: Turn, message: Message, usage: dict[str, Any]) -> None:
    spent = Usage(
        day=usage_rows.today(),
        agent_id=turn.agent_id,
        session_key=turn.session_key,
        model=f"{message.get('provider')}/{message.get('model')}",
        calls=1,
        input_tokens=usage.get("input", 0),
        output_tokens=usage.get("output", 0),
        cache_read_tokens=usage.get("cacheRead", 0),
        cache_write_tokens=usage.get("cacheWrite", 0),
        cost_usd=(usage.get("cost") or {}).get("total", 0.0),
    )
    usage_rows.add(tx, spent, context_tokens=usage.get("totalTokens"))
    turns.spend(
        tx,
        turn.turn_id,
        input_tokens=spent.input_tokens + spent.cache_read_tokens + spent.cache_write_tokens,
        output_tokens=spent.output_tokens,
        cost_usd=spent.cost_usd,
    )
