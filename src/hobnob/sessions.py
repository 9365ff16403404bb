"""What one can do to sessions: every surface comes through here.

Each verb resolves what was named, asks the policy once, and acts in one transaction.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson

from hobnob import crash, keys, policy
from hobnob.config import Settings
from hobnob.errors import BadInput, NotAllowed, NotFound, UnknownAgent
from hobnob.policy import Caller, Verb, Verdict
from hobnob.store import Change, Store, TurnChanged, Tx, ledger, turns
from hobnob.store import sessions as rows
from hobnob.types import Lane, QueueMode, Session, Turn, new_id, now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one turn differs from what is configured."""

    model: str | None = None
    thinking: str | None = None
    extra_system: str | None = None

    def json(self) -> str:
        return orjson.dumps({k: getattr(self, k) for k in self.__slots__ if getattr(self, k)}).decode()


class Sessions:
    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._waiting: dict[str, set[asyncio.Future[Turn]]] = {}
        self._open: set[str] = set()  # turns known not to have ended, so that waiting needs no read
        store.watch(self._changed)

    async def send(
        self,
        caller: Caller,
        reference: str,
        text: str,
        *,
        idempotency_key: str | None = None,
        turn_id: str | None = None,
        mode: QueueMode | None = None,
        timeout_s: int | None = None,
        lane: Lane = "main",
        options: Options | None = None,
    ) -> Turn:
        """Accept a message as a turn of a session. It is on disk when this returns.

        The same idempotency key gives the same turn, today and after a restart.
        """
        text = text.encode("utf-8", "replace").decode()  # half a character of another encoding is no text
        if not text.strip():
            raise BadInput("The message is empty.")
        key = keys.parse(reference, self._viewer(caller))
        scope = f"send:{caller.name if isinstance(caller, policy.Operator) else caller.key}"

        def accept(tx: Tx) -> Turn:
            earlier = ledger.recall(tx, scope, idempotency_key) if idempotency_key else None
            if earlier and (turn := turns.find(tx, earlier)):
                return turn
            known = rows.find(tx, str(key))
            session = known or Session.of(key)
            self._check(caller, "send", session)
            _refuse_unless(policy.send_policy(self._settings, session))
            self._check_agent(session.agent_id)
            if known is None:
                rows.create(tx, session)
            running = turns.running(tx, session.key) if self._mode(session, mode) == "interrupt" else None
            turn = turns.accept(
                tx,
                Turn(
                    turn_id=turn_id if turn_id and turns.find(tx, turn_id) is None else new_id(),
                    session_key=session.key,
                    session_id=session.session_id,
                    agent_id=session.agent_id,
                    input=orjson.dumps({"role": "user", "content": text, "timestamp": now_ms()}).decode(),
                    options=(options or Options()).json(),
                    queue_mode=self._mode(session, mode),
                    timeout_s=timeout_s,
                    lane=lane,
                ),
            )
            if running is not None:
                turns.abort(tx, running.turn_id, "newer input came in")
            if idempotency_key and not earlier:
                ledger.remember(tx, scope, idempotency_key, turn.turn_id)
            return turn

        turn = await self._store.write(accept)
        crash.point("after-accept")
        return turn

    async def wait(
        self, turn_id: str, timeout_s: float | None = None, *, caller: Caller | None = None
    ) -> Turn:
        """The turn once it has ended, or as it is when the time is up. Raises NotFound.

        With a `caller`, only of a session whose history that caller may read.
        """
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        if caller is not None:
            await self._store.read(self._check_turn, caller, turn_id)
        while True:
            turn = await self._told(turn_id, deadline)
            if turn.merged_into is None:
                return turn
            turn_id = turn.merged_into  # that turn's outcome counts for this one

    async def _told(self, turn_id: str, deadline: float | None) -> Turn:
        waiter: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(turn_id, set())
        waiting.add(waiter)  # before looking, so that an end in between is not missed
        try:
            if turn_id not in self._open:
                turn = await self._store.read(turns.get, turn_id)
                if turn.status == "ended":
                    return turn
            left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.wait([waiter], timeout=left)
            return waiter.result() if waiter.done() else await self._store.read(turns.get, turn_id)
        finally:
            waiting.discard(waiter)
            if not waiting:
                self._waiting.pop(turn_id, None)

    def _check_turn(self, tx: Tx, caller: Caller, turn_id: str) -> None:
        turn = turns.get(tx, turn_id)
        session = rows.find(tx, turn.session_key)
        if session is None or not policy.may(self._settings, caller, "history", session).allowed:
            raise NotFound(f"There is no run {turn_id}.")  # no hint that there is one elsewhere

    async def abort(
        self, caller: Caller, reference: str, *, turn_id: str | None = None, reason: str = "stopped"
    ) -> list[Turn]:
        """End the session's running turn and those that wait, or just the one named."""
        key = str(keys.parse(reference, self._viewer(caller)))

        def end(tx: Tx) -> list[Turn]:
            self._check(caller, "abort", rows.get(tx, key))
            if turn_id is not None:
                turn = turns.get(tx, turn_id)
                if turn.session_key != key:
                    raise NotFound(f"The run {turn_id} is not one of {key}.")
                return [turns.abort(tx, turn_id, reason)] if turn.status != "ended" else []
            return [turns.abort(tx, t.turn_id, reason) for t in turns.open_of(tx, key)]

        return await self._store.write(end)

    def _viewer(self, caller: Caller) -> keys.Viewer:
        if isinstance(caller, policy.Operator):
            return self._settings.viewer()
        return self._settings.viewer(caller.agent_id, keys.parse(caller.key))

    def _check(self, caller: Caller, verb: Verb, target: Session) -> None:
        _refuse_unless(policy.may(self._settings, caller, verb, target))

    def _check_agent(self, agent_id: str) -> None:
        if self._settings.agent(agent_id) is None:
            known = ", ".join(a.id for a in self._settings.agent_list())
            raise UnknownAgent(
                f"There is no agent {agent_id!r} (there are: {known}).", fix="Add it to agents.list."
            )

    def _mode(self, session: Session, asked: QueueMode | None) -> QueueMode:
        queue = self._settings.messages.queue
        return asked or queue.by_channel.get(session.channel or session.last_channel or "", queue.mode)

    def _changed(self, changes: list[Change]) -> None:
        for change in changes:
            if not isinstance(change, TurnChanged):
                continue
            turn = change.turn
            if turn.status != "ended":
                self._open.add(turn.turn_id)
                continue
            self._open.discard(turn.turn_id)
            for waiter in self._waiting.get(turn.turn_id, ()):
                if not waiter.done():
                    waiter.set_result(turn)


def _refuse_unless(verdict: Verdict) -> None:
    if not verdict.allowed:
        raise NotAllowed(verdict.why, rule=verdict.code, fix=_fix_text(verdict))


def _fix_text(verdict: Verdict) -> str | None:
    def shown(value: Any) -> str:
        return orjson.dumps(value).decode()

    return (
        "Set " + " and ".join(f"{f.path} = {shown(f.value)}" for f in verdict.fix) + "."
        if verdict.fix
        else None
    )
