"""Verbs on exchanges and the deliveries they lead to."""

from __future__ import annotations

from hobnob.errors import Fenced, NotFound
from hobnob.store.tx import Tx
from hobnob.types import Delivery, DeliveryState, Exchange, Turn, now_ms


def begin(tx: Tx, exchange: Exchange) -> Exchange:
    tx.put("exchange_insert", exchange)
    return exchange


def get(tx: Tx, exchange_id: str) -> Exchange | None:
    return tx.get(Exchange, "exchange_get", exchange_id=exchange_id)


def save(tx: Tx, exchange: Exchange) -> None:
    if not tx.put("exchange_update", exchange):
        raise NotFound(f"There is no exchange {exchange.exchange_id}.")


def turns(tx: Tx, exchange_id: str) -> list[Turn]:
    """The turns of an exchange, in the order they were accepted."""
    return tx.all(Turn, "exchange_turns", exchange_id=exchange_id)


def page(tx: Tx, *, after: tuple[int, str] | None = None, limit: int = 50) -> list[Exchange]:
    """Exchanges, newest first."""
    before_ms, after_id = after or (2**62, "")
    return tx.all(Exchange, "exchanges_recent", before_ms=before_ms, after_id=after_id, limit=limit)


def deliver(tx: Tx, delivery: Delivery) -> Delivery:
    """Put a message on its way."""
    tx.put("delivery_insert", delivery)
    return delivery


def delivery(tx: Tx, delivery_id: str) -> Delivery | None:
    return tx.get(Delivery, "delivery_get", delivery_id=delivery_id)


def claim_delivery(tx: Tx, channel: str) -> Delivery | None:
    """Take the next message that is due on a channel."""
    due = tx.get(Delivery, "delivery_due", channel=channel, now_ms=now_ms())
    if due is None:
        return None
    tx.run("delivery_claim", delivery_id=due.delivery_id, now_ms=now_ms())
    return delivery(tx, due.delivery_id)


def settle_delivery(
    tx: Tx,
    claimed: Delivery,
    state: DeliveryState,
    *,
    external_id: str | None = None,
    error: str | None = None,
    next_attempt_at_ms: int | None = None,
) -> None:
    """Record how an attempt went. `pending` means: again later."""
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
