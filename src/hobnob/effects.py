"""Effects: carry out what the end of a turn or a delivery causes, in the same transaction.

Every turn ends through here, so that no exchange is left behind. `exchanges` decides what is next; this
module loads the sessions, asks the policy and writes the next turn, entry or delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import orjson

from hobnob import briefings, chat_replies, exchanges, joins, metering, policy, redact
from hobnob.config import Config, Settings
from hobnob.config.channels import account_of
from hobnob.delivery_routes import WEBCHAT, DeliveryRoute, ReplyAddress, delivery_route
from hobnob.exchanges import Announcement, NextStep, NextTurn, TurnResult
from hobnob.policy import Verdict, authority
from hobnob.records import Struct, replace
from hobnob.schedule import deliveries as job_deliveries
from hobnob.schedule import runs as job_runs
from hobnob.schedule.deliveries import WEBHOOK
from hobnob.store import Tx, approvals, deliveries, entries, turns
from hobnob.store import exchanges as exchange_rows
from hobnob.store import sessions as session_rows
from hobnob.store.chats import threads
from hobnob.store.deliveries import Lane
from hobnob.store.mirror import path_of
from hobnob.types import Delivery, Exchange, Outcome, Session, Turn, failure_message, now_ms

_OPEN_EXCHANGES = 10_000  # checked after a reload; turns of others are checked when they begin
WITHDRAWN = "The right to send there was withdrawn."
Divide = Callable[[Delivery], list[dict[str, Any]]]


class NextDelivery(Struct, frozen=True):
    """The delivery that was claimed, or when the next one is due. `tried_by` may have sent its next part."""

    delivery: Delivery | None = None
    tried_by: str | None = None
    due_at_ms: int | None = None


class Effects:
    """`channels` are those that have an account: a message to another channel has no route."""

    def __init__(self, config: Config, channels: Callable[[], Collection[str]] = frozenset) -> None:
        self._config = config
        self._configured = channels

    @property
    def channels(self) -> frozenset[str]:
        return frozenset({WEBCHAT, WEBHOOK, *self._configured()})

    @property
    def _settings(self) -> Settings:
        return self._config.settings

    def end_turn(
        self,
        tx: Tx,
        turn: Turn,
        outcome: Outcome,
        *,
        reply: str | None = None,
        error: str | None = None,
        structured: str | None = None,
        schema_error: str | None = None,
        transient: bool = False,
    ) -> Turn:
        """End a claimed turn. Secrets are removed from the error. Raises Fenced.

        `structured` is its typed result as JSON, `schema_error` why there is none. `transient`: it failed
        before it did anything, and another attempt may work.
        """
        error = redact.text(error)[0] if error else error
        typed = {"structured": structured, "schema_error": schema_error}
        ended = turns.end(tx, turn, outcome, reply=reply, error=error, **typed)
        return self._advance(tx, self.deliver_reply(tx, ended), transient)

    def abort_turn(self, tx: Tx, turn_id: str, reason: str) -> Turn:
        """Request the end of a turn; a queued turn ends at once. One that has ended stays as it is."""
        tx.lock("session", turns.get(tx, turn_id).session_key)
        turn = turns.get(tx, turn_id)
        if turn.status == "ended":  # by a transaction since the caller saw it
            return turn
        return self._advance(tx, turns.abort(tx, turn_id, reason))

    def deliver_reply(self, tx: Tx, turn: Turn) -> Turn:
        """Queue the answer of an ended turn for the chat its input came from, if it came from one."""
        raw = orjson.loads(turn.options).get("reply") if '"reply"' in turn.options else None
        session = session_rows.find(tx, turn.session_key) if raw else None
        if raw is None or session is None or turn.status != "ended" or turn.merged_into is not None:
            return turn
        address = ReplyAddress.from_json(raw)
        answer = chat_replies.answer(turn, address)
        at = replace(session, last_channel=address.route.channel)
        if answer is not None and policy.send_policy(self._settings, at).allowed:
            route = address.route
            if bound := threads.of_session(tx, session.key):
                route = replace(route, thread_id=bound.thread_id)
            ids = {"turn_id": turn.turn_id, "reply_to": self._quoted(address)}
            delivery = route.delivery(session.key, answer.text, kind=answer.kind, **ids)
            deliveries.create(tx, delivery)
        return turn

    def _quoted(self, address: ReplyAddress) -> str | None:
        """The message that an answer may quote; with `replyToMode: batched` only if it answers several."""
        root = self._settings.channels.configured.get(address.route.channel)
        account = account_of(root, address.route.account_id or "") if root else None
        batched = account is not None and account.reply_to_mode == "batched"
        return None if batched and not address.joined else address.message_id

    def withdrawn(self, tx: Tx, exchange: Exchange) -> Verdict | None:
        """The refusal of a send whose sender may no longer send there, by the settings of now."""
        if exchange.kind != "send" or exchange.requester_key is None:
            return None
        requester = session_rows.find(tx, exchange.requester_key)
        target = session_rows.find(tx, exchange.target_key)
        if requester is None or target is None:
            return None
        verdict = policy.may(self._settings, requester, "send", target)
        return None if verdict.allowed else verdict

    def why_withdrawn(self, tx: Tx, turn: Turn) -> str | None:
        """Why a turn of a send may not run any more; None if it may."""
        exchange = exchange_rows.find(tx, turn.exchange_id or "")
        refusal = self.withdrawn(tx, exchange) if exchange is not None else None
        return f"{WITHDRAWN} {refusal.why}" if refusal else None

    def end_withdrawn_sends(self, tx: Tx) -> int:
        """Abort the turns of sends whose sender may no longer send there. Returns how many there were."""
        ended = 0
        for exchange in exchange_rows.stale(tx, now_ms() + 1, limit=_OPEN_EXCHANGES):
            if exchange.turn_id and exchange.phase in ("primary", "reply"):
                if (refusal := self.withdrawn(tx, exchange)) is not None:
                    self.abort_turn(tx, exchange.turn_id, f"{WITHDRAWN} {refusal.why}")
                    ended += 1
        return ended

    def recover_turns(self, tx: Tx, boot_id: str | None = None) -> int:
        """Release the claims of gateways that are gone, and expire their questions. Returns how many."""
        lost = turns.left(tx)
        for turn in sorted(lost, key=lambda turn: turn.session_key):
            tx.lock("session", turn.session_key)
        metering.recover(tx)
        lost_ids = {turn.turn_id for turn in lost}
        for question in approvals.left(tx) if lost else ():
            if question.turn_id in lost_ids:
                approvals.decide(tx, question.approval_id, "expired", "the gateway was restarted")
        for turn in turns.recover(tx, boot_id):
            metering.close(tx, turn, "")
            entries.append(tx, turn.session_id, failure_message(turn.error or ""), turn_id=turn.turn_id)
            self._advance(tx, self.deliver_reply(tx, turn))
        return len(lost)

    def delete_session(self, tx: Tx, key: str) -> None:
        """Delete a session. Its open exchanges end, and its working children are aborted."""
        tx.lock("session", key)  # nothing is sent to it any more: all of it is seen below
        exchange_rows.forget_yields(tx, key)
        for exchange in exchange_rows.open_of(tx, key):
            working = [exchange.turn_id] if exchange.turn_id else []
            if exchange.kind == "spawn" and exchange.requester_key == key:
                working = [turn.turn_id for turn in turns.open_of(tx, exchange.target_key)]
            elif exchange.kind == "spawn":
                exchange = self._report_failure(tx, exchange, "cancelled", "Its session was deleted.")
            self._save(tx, None, exchanges.deleted(exchange))
            for turn_id in working:
                if (turn := turns.find(tx, turn_id)) and turn.status != "ended":
                    turns.abort(tx, turn_id, "the exchange it belongs to ended: a session was deleted")
        if bound := threads.of_session(tx, key):
            threads.close(tx, bound, "its session was deleted")
        job_runs.session_deleted(tx, self._settings, key)
        metering.session_deleted(tx, key)
        session_rows.delete(tx, key)

    def expire_exchange(self, tx: Tx, exchange_id: str, before_ms: int) -> None:
        """Expire an exchange without a change since `before_ms`, unless its turn is still open."""
        exchange = exchange_rows.get(tx, exchange_id)
        turn = turns.find(tx, exchange.turn_id) if exchange.turn_id else None
        if exchange.state != "open" or exchange.updated_at_ms >= before_ms:
            return
        if turn is not None and turn.status != "ended":
            exchange_rows.save(tx, exchange)  # counts as a change: check again after the same time
            return
        for delivery in deliveries.of_exchange(tx, exchange_id):
            if delivery.state in ("pending", "sending"):
                deliveries.fail(tx, delivery, "the exchange it belongs to has expired")
        if exchange.kind == "spawn":
            exchange = self._report_failure(tx, exchange, "lost", "It expired: nothing happened any more.")
        self._save(tx, None, exchanges.expired(exchange))

    def claim_delivery(self, tx: Tx, lane: Lane, divide: Divide, gateway_id: str) -> NextDelivery:
        """Claim the next delivery of a recipient. Those the send policy now denies are failed.

        `divide` makes its parts. While another gateway sends to the recipient, there is none: it would be
        overtaken.
        """
        while (head := deliveries.head(tx, lane, gateway_id)) is not None:
            if head.state == "sending" or (
                tx.concurrent and deliveries.is_sent_elsewhere(tx, lane, gateway_id)
            ):
                break
            session = session_rows.find(tx, head.session_key)
            at = replace(session, last_channel=head.channel) if session else None
            verdict = policy.send_policy(self._settings, at) if at else None
            if verdict is not None and not verdict.allowed and head.kind not in ("notice", "pairing"):
                claimed = deliveries.claim(tx, head)
                self.settle_delivery(tx, claimed, state="failed", error=verdict.why)
                continue
            if head.next_attempt_at_ms > now_ms():
                return NextDelivery(due_at_ms=head.next_attempt_at_ms)
            parts = divide(head) if head.parts is None else ()
            claimed = deliveries.claim(tx, head, parts, gateway_id=gateway_id)
            return NextDelivery(claimed, tried_by=head.claimed_by)
        return NextDelivery()

    def settle_delivery(self, tx: Tx, /, delivery: Delivery, **result: Any) -> Delivery:
        """Record the result of an attempt to deliver, and advance the exchange."""
        settled = deliveries.settle(tx, delivery, **result)
        if settled.kind == "thread":
            self._thread_settled(tx, settled)
        job_runs.delivered(tx, self._settings, self.channels, settled)
        exchange = exchange_rows.find(tx, delivery.exchange_id) if delivery.exchange_id else None
        if exchange is not None and exchange.state == "open" and exchange.phase == "delivery":
            after = exchanges.delivered(exchange, settled.state)
            if after is not exchange:
                exchange_rows.save(tx, after)
        return settled

    def _thread_settled(self, tx: Tx, delivery: Delivery) -> None:
        """A thread was opened for a sub-agent, or could not be: then it speaks in the chat itself."""
        thread = threads.of_session(tx, delivery.session_key)
        if thread is None or delivery.state == "pending":
            return
        if delivery.state == "delivered" and delivery.external_id:
            threads.opened(tx, thread, delivery.external_id)
            session_rows.patch(tx, delivery.session_key, last_thread_id=delivery.external_id)
        else:
            threads.close(tx, thread, delivery.error or "it could not be opened", state="failed")

    def _advance(self, tx: Tx, turn: Turn, transient: bool = False) -> Turn:
        """Advance the exchange or end the job that waited for this turn, if the turn has ended."""
        if turn.status == "ended" and turn.step == job_runs.STEP:
            job_runs.finish(tx, self._settings, self.channels, turn, transient=transient)
        if turn.status == "ended" and turn.merged_into is None and '"deliver"' in turn.options:
            job_deliveries.answer_hook(tx, self._settings, self.channels, turn)
        if turn.status != "ended" or turn.exchange_id is None:
            return turn
        exchange = exchange_rows.find(tx, turn.exchange_id)
        if exchange is not None and exchange.state == "open" and exchange.turn_id == turn.turn_id:
            assert turn.outcome is not None
            result = TurnResult(turn.outcome, turn.reply or "", turn.error)
            self._carry_out(tx, turn, *exchanges.after(exchange, result))
        return turn

    def _carry_out(self, tx: Tx, cause: Turn, exchange: Exchange, step: NextStep) -> None:
        while isinstance(step, NextTurn):
            turn = self._queue_turn(tx, cause, exchange, step)
            if turn is not None:
                exchange_rows.save(tx, replace(exchange, turn_id=turn.turn_id))
                return
            exchange, step = exchanges.refused(exchange)
        if isinstance(step, Announcement):
            announce = self._announce_send if exchange.kind == "send" else self._announce_spawn
            exchange = announce(tx, cause, exchange, step.text)
        self._save(tx, cause, exchange)

    def _save(self, tx: Tx, cause: Turn | None, exchange: Exchange) -> None:
        """Save an exchange. If it ends a batch that its requester yielded for, wake the requester."""
        exchange_rows.save(tx, exchange)
        if exchange.kind != "spawn" or (exchange.state == "open" and exchange.phase != "delivery"):
            return
        batch = self._finished_batch(tx, exchange)
        requester = session_rows.find(tx, exchange.requester_key or "") if batch else None
        if batch and requester and policy.send_policy(self._settings, requester).allowed:
            text = briefings.batch(*batch)
            child = session_rows.find(tx, exchange.target_key)
            provenance = briefings.provenance(child, _tool(exchange), exchange)
            more = {"provenance": provenance, "options": _limited(tx, exchange)}
            turns.accept(tx, _turn(requester, exchange, cause, "wake", text, **more))

    def _finished_batch(
        self, tx: Tx, exchange: Exchange
    ) -> tuple[list[tuple[Exchange, Turn | None]], int] | None:
        """End the wait of a session that yielded, if this exchange was the last one of it.

        Returns the spawns of the batch that are collected, each with its first turn, and the number of all.
        """
        for wait in exchange_rows.yielded(tx, exchange.requester_key or ""):
            if exchange.exchange_id not in wait.members:
                continue
            known = exchange_rows.settled(tx, wait.members) | {exchange.exchange_id}
            ended = joins.after(wait, known, now_ms())
            if ended is wait:
                continue
            exchange_rows.end_wait(tx, ended)
            runs = exchange_rows.turns_of_any(tx, ended.ended)
            collected = [e for e in exchange_rows.of_any(tx, ended.ended) if e.reports == "collect"]
            firsts = [(e, next(iter(runs.get(e.exchange_id, ())), None)) for e in collected]
            return firsts, len(ended.ended)
        return None

    def _queue_turn(self, tx: Tx, cause: Turn, exchange: Exchange, step: NextTurn) -> Turn | None:
        """Queue the next turn of an exchange; None when the session is gone or the send policy denies it."""
        requester = session_rows.find(tx, exchange.requester_key) if exchange.requester_key else None
        target = session_rows.find(tx, exchange.target_key)
        session, other = (target, requester) if step.side == "target" else (requester, target)
        if session is None or target is None or not policy.send_policy(self._settings, session).allowed:
            return None
        if step.step == "reply" and self.withdrawn(tx, exchange) is not None:
            return None
        provenance = briefings.provenance(other, _tool(exchange), exchange)
        if step.step == "reply":
            assert requester is not None
            number = exchange.turns_done + 1
            system = briefings.reply(exchange, requester, target, side=step.side, number=number)
            options = {"extra_system": system} | self._reply_authority(tx, exchange, session, other)
            more: dict[str, Any] = {"provenance": provenance | {"replyTurn": number}}
            more["options"] = orjson.dumps(options).decode()
            return turns.accept(tx, _turn(session, exchange, cause, "reply", step.text, **more))
        if exchange.kind == "spawn":
            system, text = briefings.child_announce(exchange), briefings.CHILD_ANNOUNCE_INPUT
        else:
            system, text = briefings.announce(exchange, requester, target), briefings.ANNOUNCE_INPUT
        more = {
            "provenance": provenance | {"step": "announce"},  # the text is the server's own
            "extra_system": system,
            "timeout_s": self._settings.agents.defaults.subagents.announce_timeout_ms // 1000,
        }
        return turns.accept(tx, _turn(session, exchange, cause, "announce", text, **more))

    def _reply_authority(
        self, tx: Tx, exchange: Exchange, session: Session, other: Session | None
    ) -> dict[str, Any]:
        """The limit of a reply turn: the tools that both had when the exchange began."""
        first = _authority_of(exchange_rows.turns(tx, exchange.exchange_id))
        if first is None or other is None:
            return {}
        found = authority.stored(self._settings, other, session, first["tools"], first["tools"])
        if found is not None and session.key == exchange.target_key:
            found["withheld"] = first["withheld"]
        return {authority.OPTION: found} if found else {}

    def _announce_send(self, tx: Tx, cause: Turn, exchange: Exchange, text: str) -> Exchange:
        """Deliver the announcement of a send to the target's chat."""
        target = session_rows.find(tx, exchange.target_key)
        if target is None:
            return exchanges.deleted(exchange)
        return self._deliver(tx, cause, exchange, target, delivery_route(target), text)

    def _announce_spawn(self, tx: Tx, cause: Turn, exchange: Exchange, text: str) -> Exchange:
        """Report a child's result to the requester's transcript and deliver it to the requester's chat."""
        requester = session_rows.find(tx, exchange.requester_key or "")
        child = session_rows.find(tx, exchange.target_key)
        if requester is None or child is None:
            return exchanges.deleted(exchange)
        report = self._queue_report(tx, cause, exchange, requester, child, text)
        if (bound := threads.of_session(tx, child.key)) is not None:  # people read it in the child's thread
            thread = DeliveryRoute(bound.channel, bound.recipient, bound.account_id or None, bound.thread_id)
            return self._deliver(tx, cause, exchange, child, thread, report)
        route = DeliveryRoute.from_json(exchange.route) if exchange.route else None
        return self._deliver(tx, cause, exchange, requester, route, report)

    def _report_failure(self, tx: Tx, exchange: Exchange, outcome: Outcome, why: str) -> Exchange:
        """Report to the requester that a child will not finish, unless its result was already reported."""
        requester = session_rows.find(tx, exchange.requester_key or "")
        child = session_rows.find(tx, exchange.target_key)
        if exchange.phase == "delivery" or requester is None or child is None:
            return exchange
        exchange = replace(exchange, outcome=outcome, error=why)
        if exchange.reports != "announce":
            return exchange
        self._queue_report(tx, None, exchange, requester, child, "")
        return exchange

    def _queue_report(
        self, tx: Tx, cause: Turn | None, exchange: Exchange, requester: Session, child: Session, text: str
    ) -> str:
        """Queue a child's report for the requester: as a note, or as a turn that wakes it."""
        folder = self._config.transcripts
        path = str(path_of(folder, child.agent_id, child.session_id)) if folder else None
        stats = briefings.stats(child, exchange_rows.turns(tx, exchange.exchange_id), path)
        report = briefings.report(exchange, text, stats)
        batch = self._finished_batch(tx, exchange)
        wake = exchange.on_complete == "wake" or batch is not None
        step = "wake" if wake and policy.send_policy(self._settings, requester).allowed else "note"
        provenance = briefings.provenance(child, _tool(exchange), exchange)
        several = batch is not None and (batch[0] or batch[1] > 1)
        told = f"{report}\n\n{briefings.batch(*batch)}" if batch and several else report
        more = {"provenance": provenance, "options": _limited(tx, exchange)}
        turns.accept(tx, _turn(requester, exchange, cause, step, told, **more))
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
        deliveries.create(tx, route.delivery(session.key, text, kind="announcement", **ids))
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


def _limited(tx: Tx, exchange: Exchange) -> str:
    """The options of a turn that a spawn reports into: what a limited turn spawned has the same limit."""
    limit = _authority_of(exchange_rows.turns(tx, exchange.exchange_id))
    return orjson.dumps({authority.OPTION: limit} if limit else {}).decode()


def _authority_of(own: Sequence[Turn]) -> dict[str, Any] | None:
    """The limit that was stored with the first turn of an exchange."""
    first = own[0] if own else None
    if first is None or authority.OPTION not in first.options:
        return None
    found: dict[str, Any] | None = orjson.loads(first.options).get(authority.OPTION)
    return found


def _tool(exchange: Exchange) -> str:
    return "sessions_send" if exchange.kind == "send" else "sessions_spawn"
