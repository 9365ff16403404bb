"""Verbs on deliveries: messages on their way to chat channels."""

from __future__ import annotations

from dataclasses import replace

from hobnob.errors import Fenced
from hobnob.events import DeliveryChanged
from hobnob.store.engine.tx import Tx
from hobnob.types import Delivery, DeliveryState, now_ms


def create(tx: Tx, delivery: Delivery) -> Delivery:
    """Queue a message for its channel."""
    tx.put("delivery_insert", delivery)
    tx.changes.append(DeliveryChanged(delivery))
    return delivery


def find(tx: Tx, delivery_id: str) -> Delivery | None:
    return tx.get(Delivery, "delivery_get", delivery_id=delivery_id)


def of_exchange(tx: Tx, exchange_id: str) -> list[Delivery]:
    """The deliveries of an exchange, oldest first."""
    return tx.all(Delivery, "deliveries_of_exchange", exchange_id=exchange_id)


def of_session(tx: Tx, session_key: str, *, limit: int = 50) -> list[Delivery]:
    """The newest deliveries to a session's chat, oldest first."""
    return tx.all(Delivery, "deliveries_of_session", key=session_key, limit=limit)[::-1]


def count_open(tx: Tx) -> list[tuple[object, ...]]:
    """Rows (channel, state, number) of deliveries that are pending or being sent."""
    return tx.rows("deliveries_counted")


def next_due_at(tx: Tx, channel: str) -> int | None:
    """When the next pending delivery of a channel is due, in milliseconds."""
    at: int | None = tx.value("delivery_next_at", channel=channel)
    return at


def interrupted(tx: Tx) -> list[Delivery]:
    """Deliveries a dead process was sending: whether they went out is unknown."""
    return tx.all(Delivery, "deliveries_sending")


def claim(tx: Tx, channel: str) -> Delivery | None:
    """Claim the next due delivery of a channel."""
    due = tx.get(Delivery, "delivery_due", channel=channel, now_ms=now_ms())
    if due is None:
        return None
    tx.run("delivery_claim", delivery_id=due.delivery_id, now_ms=now_ms())
    return find(tx, due.delivery_id)


def settle(
    tx: Tx,
    claimed: Delivery,
    state: DeliveryState,
    *,
    external_id: str | None = None,
    error: str | None = None,
    next_attempt_at_ms: int | None = None,
) -> Delivery:
    """Record the result of an attempt; `pending` schedules the next one. Raises Fenced."""
    if not tx.run(
        "delivery_settle",
        delivery_id=claimed.delivery_id,
        claim=claimed.claim,
        state=state,
        external_id=external_id,
        error=error,
        next_attempt_at_ms=next_attempt_at_ms or claimed.next_attempt_at_ms,
        now_ms=now_ms(),
    ):
        raise Fenced(f"The delivery {claimed.delivery_id} is no longer claimed with number {claimed.claim}.")
    settled = replace(claimed, state=state, external_id=external_id, error=error)
    tx.changes.append(DeliveryChanged(settled))
    return settled


def fail(tx: Tx, delivery: Delivery, reason: str) -> None:
    """Fail a delivery, also while somebody is about to send it: the claim no longer holds."""
    tx.run("delivery_drop", delivery_id=delivery.delivery_id, error=reason, now_ms=now_ms())
