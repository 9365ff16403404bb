"""A machine that accepts, claims, crashes, steers, aborts and ends, in any order, on the real store."""

import asyncio
import json
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from hobnob.errors import Fenced
from hobnob.keys import parse
from hobnob.store import Store, entries, open_store, sessions, turns
from hobnob.types import Session, Turn

pytestmark = pytest.mark.promise("send.waits_its_turn", "transcript.numbered_from_one")

KEYS = ["agent:a:main", "agent:a:hook:1", "agent:b:main"]


@dataclass
class Known:
    """What the machine knows of a turn it had accepted."""

    turn_id: str
    key: str
    mode: str
    outcome: str | None = None


class Lanes(RuleBasedStateMachine):
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.accepted: list[Known] = []
        self.open()
        for key in KEYS:
            self.write(sessions.create, Session.of(parse(key)))

    def open(self) -> None:
        self.stack = AsyncExitStack()
        url = f"sqlite:///{self.folder.name}/hobnob.db"
        self.store: Store = self.loop.run_until_complete(self.stack.enter_async_context(open_store(url)))

    def write(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
        return self.loop.run_until_complete(self.store.write(verb, *args, **kwargs))

    def read(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
        return self.loop.run_until_complete(self.store.read(verb, *args, **kwargs))

    def teardown(self) -> None:
        self.loop.run_until_complete(self.stack.aclose())
        self.loop.close()
        self.folder.cleanup()

    def turn(self, known: Known) -> Turn:
        found: Turn = self.read(turns.get, known.turn_id)
        return found

    @rule(key=st.sampled_from(KEYS), mode=st.sampled_from(["followup", "collect", "steer"]))
    def accept(self, key: str, mode: Any) -> None:
        session = self.read(sessions.get, key)
        text = f"input {len(self.accepted)}"
        turn = Turn(
            session_key=key,
            session_id=session.session_id,
            agent_id=session.agent_id,
            input=json.dumps({"role": "user", "content": text}),
            queue_mode=mode,
        )
        self.write(turns.accept, turn)
        self.accepted.append(Known(turn.turn_id, key, mode))

    @rule(target=claims, key=st.sampled_from(KEYS))
    def claim(self, key: str) -> Turn | None:
        before = [t for t in self.read(turns.open_turns) if t.session_key == key]
        turn: Turn | None = self.write(turns.claim, key, "node")
        ready = bool(before) and all(t.status == "queued" for t in before)
        assert (turn is not None) == ready
        if turn is not None:
            first = min(before, key=lambda t: t.position)
            assert (turn.turn_id, turn.claim) == (first.turn_id, first.claim + 1)
        return turn

    @rule(turn=claims, text=st.sampled_from(["working", "still working"]))
    def step(self, turn: Turn | None, text: str) -> None:
        if turn is None:
            return

        def keep(tx: Any) -> None:
            turns.check_claim(tx, turn)
            entries.append(tx, turn.session_id, {"role": "assistant", "content": text}, turn_id=turn.turn_id)

        self.only_if_held(turn, keep)

    @rule(turn=claims)
    def steer(self, turn: Turn | None) -> None:
        if turn is not None:
            self.only_if_held(turn, lambda tx: turns.absorb(tx, turn, {"steer"}))

    @rule(turn=claims, outcome=st.sampled_from(["ok", "failed", "timed_out", "no_output"]))
    def end(self, turn: Turn | None, outcome: Any) -> None:
        if turn is not None and self.only_if_held(turn, lambda tx: turns.end(tx, turn, outcome)):
            self.known(turn).outcome = outcome

    @rule(turn=claims)
    def give_back(self, turn: Turn | None) -> None:
        if turn is not None:
            self.only_if_held(turn, lambda tx: turns.release(tx, turn))

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if not self.accepted:
            return
        known = data.draw(st.sampled_from(self.accepted))
        before = self.turn(known)
        after = self.write(turns.abort, known.turn_id, "enough")
        if before.status == "queued":
            assert after.outcome == "cancelled"
            known.outcome = "cancelled"
        else:
            assert after.status == before.status

    @rule()
    def crash_and_recover(self) -> None:
        running = [t for t in self.read(turns.open_turns) if t.status == "running"]
        self.loop.run_until_complete(self.stack.aclose())
        self.open()
        self.write(turns.recover)
        for turn in running:
            after = self.read(turns.get, turn.turn_id)
            if turn.crashes + 1 >= turns.MAX_CRASHES:
                assert after.outcome == "failed"
                self.known(turn).outcome = "failed"
            else:
                assert (after.status, after.crashes) == ("queued", turn.crashes + 1)

    def known(self, turn: Turn) -> Known:
        return next(k for k in self.accepted if k.turn_id == turn.turn_id)

    def only_if_held(self, turn: Turn, verb: Any) -> bool:
        """Do it; it must be refused exactly when the claim no longer holds the turn."""
        now = self.read(turns.get, turn.turn_id)
        held = now.status == "running" and now.claim == turn.claim
        if held:
            self.write(verb)
        else:
            with pytest.raises(Fenced):
                self.write(verb)
        return held

    @invariant()
    def turns_of_a_session_never_overlap(self) -> None:
        running = [t.session_key for t in self.read(turns.open_turns) if t.status == "running"]
        assert len(running) == len(set(running))

    @invariant()
    def outcomes_never_change(self) -> None:
        for known in self.accepted:
            turn = self.turn(known)
            if turn.merged_into is None:
                assert turn.outcome == known.outcome
            else:
                assert (turn.status, turn.outcome) == ("ended", None)

    @invariant()
    def input_is_there_once_in_the_order_accepted_and_without_a_gap(self) -> None:
        for key in KEYS:
            session = self.read(sessions.get, key)
            kept = self.read(entries.history, session.session_id, limit=10_000)
            assert [e.seq for e in kept] == list(range(1, len(kept) + 1))
            said = [e.message["content"] for e in kept if e.role == "user"]
            mine = [(i, k) for i, k in enumerate(self.accepted) if k.key == key]
            begun = [f"input {i}" for i, k in mine if self.turn(k).input_seq is not None]
            assert said == begun


TestLanes = Lanes.TestCase
TestLanes.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
