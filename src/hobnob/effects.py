"""What follows the end of a turn, done in the transaction that ends it.

Every turn ends through here, so that no exchange can be forgotten. What is next is decided by `exchanges`;
this looks up the sessions, asks the policy, and writes it down.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hobnob import briefings, exchanges, policy, redact
from hobnob.config import Settings
from hobnob.delivery_routes import DeliveryRoute, delivery_route
from hobnob.exchanges import Next, Post, Ran, Run
from hobnob.store import Tx, deliveries, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.store.mirror import path_of
from hobnob.types import Delivery, Exchange, Outcome, Session, Turn


class Effects:
    """`channels` are those that somebody serves: what would go elsewhere has no route."""

    def __init__(self, settings: Settings, home: Path) -> None:
        self._settings = settings
        self._home = home
        self.channels: set[str] = set()

    def end(
        self, tx: Tx, turn: Turn, outcome: Outcome, *, reply: str | None = None, error: str | None = None
    ) -> Turn:
        """End a turn, as whoever claimed it. Raises Fenced. An error is kept without the secrets in it."""
        error = redact.text(error)[0] if error else error
        return self._follow(tx, turns.end(tx, turn, outcome, reply=reply, error=error))

    def abort(self, tx: Tx, turn_id: str, reason: str) -> Turn:
        """Ask for the end of a turn; one that only waits ends at once."""
        return self._follow(tx, turns.abort(tx, turn_id, reason))

    def recover(self, tx: Tx) -> list[Turn]:
        """Take back what a dead process had claimed. Returns the turns there are to run."""
        for turn in turns.recover(tx):
            self._follow(tx, turn)
        return turns.open_turns(tx)

    def delete(self, tx: Tx, key: str) -> None:
        """Delete a session. Exchanges it has a part in end with it, and so do the children it has at work."""
        for exchange in exchange_rows.open_of(tx, key):
            at_work = [exchange.turn_id] if exchange.turn_id else []
            if exchange.kind == "spawn" and exchange.requester_key == key:
                at_work = [turn.turn_id for turn in turns.open_of(tx, exchange.target_key)]
            elif exchange.kind == "spawn":
                exchange = self._give_up(tx, exchange, "cancelled", "Its session was deleted.")
            exchange_rows.save(tx, exchanges.deleted(exchange))
            for turn_id in at_work:
                if (turn := turns.find(tx, turn_id)) and turn.status != "ended":
                    turns.abort(tx, turn_id, "the exchange it belongs to ended: a session was deleted")
        session_rows.delete(tx, key)

    def expire(self, tx: Tx, exchange_id: str, before_ms: int) -> None:
        """Give up on an exchange in which nothing happens any more, unless its turn is at work."""
        exchange = exchange_rows.get(tx, exchange_id)
        turn = turns.find(tx, exchange.turn_id) if exchange.turn_id else None
        if exchange.state != "open" or exchange.updated_at_ms >= before_ms:
            return
        if turn is not None and turn.status != "ended":
            exchange_rows.save(tx, exchange)  # looked at; again when its time has come
            return
        for delivery in deliveries.of_exchange(tx, exchange_id):
            if delivery.state in ("pending", "sending"):
                deliveries.fail(tx, delivery, "the exchange it belongs to has expired")
        if exchange.kind == "spawn":
            exchange = self._give_up(tx, exchange, "lost", "It was given up: nothing happened any more.")
        exchange_rows.save(tx, exchanges.expired(exchange))

    def _give_up(self, tx: Tx, exchange: Exchange, outcome: Outcome, why: str) -> Exchange:
        """Tell whoever asked for a child that nothing more will come of it, unless it was told already."""
        requester, child = (
            session_rows.find(tx, exchange.requester_key or ""),
            session_rows.find(tx, exchange.target_key),
        )
        if exchange.phase == "delivery" or requester is None or child is None:
            return exchange
        exchange = replace(exchange, outcome=outcome, error=why)
        self._note(tx, None, exchange, requester, child, "")
        return exchange

    def claim(self, tx: Tx, channel: str) -> Delivery | None:
        """The next message to send on a channel. What may no longer be sent is not."""
        while (delivery := deliveries.claim(tx, channel)) is not None:
            session = session_rows.find(tx, delivery.session_key)
            verdict = policy.send_policy(self._settings, session) if session else None
            if verdict is None or verdict.allowed:
                return delivery
            self.settle(tx, delivery, state="failed", error=verdict.why)
        return None

    def settle(self, tx: Tx, /, delivery: Delivery, **how: Any) -> Delivery:
        """Record how an attempt to deliver went."""
        settled = deliveries.settle(tx, delivery, **how)
        exchange = exchange_rows.find(tx, delivery.exchange_id) if delivery.exchange_id else None
        if exchange is not None and exchange.state == "open" and exchange.phase == "delivery":
            after = exchanges.delivered(exchange, settled.state)
            if after is not exchange:
                exchange_rows.save(tx, after)
        return settled

    def _follow(self, tx: Tx, turn: Turn) -> Turn:
        if turn.status != "ended" or turn.exchange_id is None:
            return turn
        exchange = exchange_rows.find(tx, turn.exchange_id)
        if exchange is not None and exchange.state == "open" and exchange.turn_id == turn.turn_id:
            assert turn.outcome is not None
            self._do(tx, turn, *exchanges.after(exchange, Ran(turn.outcome, turn.reply or "", turn.error)))
        return turn

    def _do(self, tx: Tx, cause: Turn, exchange: Exchange, next_: Next) -> None:
        while isinstance(next_, Run):
            turn = self._run(tx, cause, exchange, next_)
            if turn is not None:
                exchange_rows.save(tx, replace(exchange, turn_id=turn.turn_id))
                return
            exchange, next_ = exchanges.refused(exchange)
        if isinstance(next_, Post):
            announce = self._announce if exchange.kind == "send" else self._report
            exchange = announce(tx, cause, exchange, next_.text)
        exchange_rows.save(tx, exchange)

    def _run(self, tx: Tx, cause: Turn, exchange: Exchange, run: Run) -> Turn | None:
        """Put the next turn of an exchange into its session's queue; None when that takes none."""
        requester = session_rows.find(tx, exchange.requester_key) if exchange.requester_key else None
        target = session_rows.find(tx, exchange.target_key)
        session, other = (target, requester) if run.side == "target" else (requester, target)
        if session is None or target is None or not policy.send_policy(self._settings, session).allowed:
            return None
        timeout_s = None
        if run.step == "reply":
            assert requester is not None
            number = exchange.turns_done + 1
            system = briefings.reply(exchange, requester, target, side=run.side, number=number)
            text = run.text
        else:
            timeout_s = self._settings.agents.defaults.subagents.announce_timeout_ms // 1000
            spawned = exchange.kind == "spawn"
            system = (
                briefings.child_announce(exchange)
                if spawned
                else briefings.announce(exchange, requester, target)
            )
            text = briefings.CHILD_ANNOUNCE_INPUT if spawned else briefings.ANNOUNCE_INPUT
        source = briefings.provenance(other, _tool(exchange), exchange)
        if run.step == "announce":
            source["step"] = "announce"  # the words are the server's own
        else:
            source["replyTurn"] = exchange.turns_done + 1
        turn = _turn(
            session, exchange, cause, run.step, text, provenance=source, told=system, timeout_s=timeout_s
        )
        return turns.accept(tx, turn)

    def _announce(self, tx: Tx, cause: Turn, exchange: Exchange, text: str) -> Exchange:
        """What the target has to say about a send, on its way to the target's chat."""
        target = session_rows.find(tx, exchange.target_key)
        if target is None:
            return exchanges.deleted(exchange)
        return self._deliver(tx, cause, exchange, target, delivery_route(target), text)

    def _report(self, tx: Tx, cause: Turn, exchange: Exchange, text: str) -> Exchange:
        """A child's result: into the transcript of whoever asked, and on its way to their chat."""
        requester = session_rows.find(tx, exchange.requester_key or "")
        child = session_rows.find(tx, exchange.target_key)
        if requester is None or child is None:
            return exchanges.deleted(exchange)
        report = self._note(tx, cause, exchange, requester, child, text)
        route = DeliveryRoute.from_json(exchange.route) if exchange.route else None
        return self._deliver(tx, cause, exchange, requester, route, report)

    def _note(
        self, tx: Tx, cause: Turn | None, exchange: Exchange, requester: Session, child: Session, text: str
    ) -> str:
        """Put a child's report into the queue of whoever asked for it: to be read, or to be acted on."""
        path = str(path_of(self._home, child.agent_id, child.session_id))
        stats = briefings.stats(child, exchange_rows.turns(tx, exchange.exchange_id), path)
        report = briefings.report(exchange, text, stats)
        wake = exchange.on_complete == "wake" and policy.send_policy(self._settings, requester).allowed
        source = briefings.provenance(child, _tool(exchange), exchange)
        step = "wake" if wake else "note"
        turns.accept(tx, _turn(requester, exchange, cause, step, report, provenance=source))
        return report

    def _deliver(
        self,
        tx: Tx,
        cause: Turn,
        exchange: Exchange,
        session: Session,
        route: DeliveryRoute | None,
        text: str,
    ) -> Exchange:
        if not policy.send_policy(self._settings, session).allowed:
            return exchanges.refused(exchange)[0]
        if route is None or route.channel not in self.channels:
            return exchanges.unroutable(exchange)
        ids = {"exchange_id": exchange.exchange_id, "turn_id": cause.turn_id}
        deliveries.create(tx, route.message(session.key, text, **ids))
        return replace(exchange, turn_id=None)


def _turn(
    session: Session, exchange: Exchange, cause: Turn | None, step: str, text: str, **more: Any
) -> Turn:
    return Turn.of(
        session,
        text,
        step=step,
        exchange_id=exchange.exchange_id,
        caused_by=cause.turn_id if cause else None,
        hop=exchange.hop,
        **more,
    )


def _tool(exchange: Exchange) -> str:
    return "sessions_send" if exchange.kind == "send" else "sessions_spawn"
