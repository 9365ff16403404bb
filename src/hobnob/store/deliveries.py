"""Verbs on deliveries: messages on their way to chat channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from hobnob.errors import Fenced
from hobnob.events import DeliveryChanged
from hobnob.records import Struct, replace
from hobnob.store.engine.tx import Tx
from hobnob.types import Delivery, DeliveryState, now_ms


class Lane(Struct, frozen=True):
    """A recipient. Its deliveries are sent one at a time, in the order created."""

    channel: str
    account_id: str | None
    recipient: str

    @classmethod
    def of(cls, delivery: Delivery) -> Lane:
        return cls(delivery.channel, delivery.account_id, delivery.recipient)


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


def lanes(tx: Tx) -> list[Lane]:
    """The recipients that deliveries wait for."""
    return [Lane(*row) for row in tx.rows("delivery_lanes")]


def interrupted(tx: Tx, gateway_id: str) -> list[Delivery]:
    """What no other gateway is sending any more: whether it went out is unknown.

    A gateway that was found dead sends nothing from the moment on at which it must have noticed.
    """
    return tx.all(Delivery, "deliveries_interrupted", gateway_id=gateway_id)


def head(tx: Tx, lane: Lane, gateway_id: str = "") -> Delivery | None:
    """The first delivery for a recipient that waits, due or not, or that another gateway is sending."""
    return tx.get(Delivery, "delivery_head", **_where(lane), gateway_id=gateway_id)


def is_sent_elsewhere(tx: Tx, lane: Lane, gateway_id: str) -> bool:
    """Whether another gateway is sending to a recipient, or died while it did."""
    return bool(tx.value("delivery_sent_elsewhere", **_where(lane), gateway_id=gateway_id))


def _where(lane: Lane) -> dict[str, str]:
    return {"channel": lane.channel, "account_id": lane.account_id or "", "recipient": lane.recipient}


def claim(
    tx: Tx, delivery: Delivery, parts: Sequence[dict[str, Any]] = (), *, gateway_id: str | None = None
) -> Delivery:
    """Claim a pending delivery. The first claim divides it into parts. Raises Fenced."""
    claimed = replace(
        delivery,
        state="sending",
        claim=delivery.claim + 1,
        claimed_by=gateway_id,
        attempts=delivery.attempts + 1,
        parts=delivery.parts or (orjson.dumps(list(parts)).decode() if parts else None),
        part_started_at_ms=delivery.part_started_at_ms or now_ms(),
    )
    if not tx.run(
        "delivery_claim",
        delivery_id=claimed.delivery_id,
        claim=claimed.claim,
        claimed_by=gateway_id,
        attempts=claimed.attempts,
        parts=claimed.parts,
        part_started_at_ms=claimed.part_started_at_ms,
        now_ms=now_ms(),
    ):
        raise _fenced(claimed)
    return claimed


def with_part(claimed: Delivery, part_id: str | None) -> Delivery:
    """The delivery after its current part was sent, or after its receipt was lost (None). Not stored yet."""
    ids = [*orjson.loads(claimed.part_ids), part_id]
    first = next((i for i in ids if i), None)
    return replace(
        claimed, part_ids=orjson.dumps(ids).decode(), external_id=first, part_started_at_ms=now_ms()
    )


def progress(tx: Tx, claimed: Delivery, part_id: str | None) -> Delivery:
    """Record that the current part was sent, or that its receipt was lost (None). Raises Fenced."""
    after = with_part(claimed, part_id)
    if not tx.run(
        "delivery_progress",
        part_ids=after.part_ids,
        external_id=after.external_id,
        now_ms=now_ms(),
        delivery_id=claimed.delivery_id,
        claim=claimed.claim,
    ):
        raise _fenced(claimed)
    return after


def note_draft(tx: Tx, claimed: Delivery, draft_id: str | None) -> Delivery:
    """Record which message that is shown already is to become the first part, before it does. Raises Fenced.

    Every attempt changes that message: one that is repeated has no second effect.
    """
    row = {"delivery_id": claimed.delivery_id, "claim": claimed.claim, "now_ms": now_ms()}
    if not tx.run("delivery_draft", draft_id=draft_id, **row):
        raise _fenced(claimed)
    return replace(claimed, external_id=draft_id)


def settle(
    tx: Tx,
    claimed: Delivery,
    state: DeliveryState,
    *,
    external_id: str | None = None,
    error: str | None = None,
    next_attempt_at_ms: int | None = None,
    counted: bool = True,
    tried_by: str | None = None,
) -> Delivery:
    """Record the result of an attempt; `pending` schedules the next one. Raises Fenced.

    An attempt that is not `counted` was refused because of a rate limit. If the current part may have gone
    out, `tried_by` is the gateway that made that attempt.
    """
    settled = replace(
        claimed,
        state=state,
        claimed_by=tried_by if state == "pending" else claimed.claimed_by,
        external_id=external_id or claimed.external_id,
        error=error,
        attempts=claimed.attempts if counted else claimed.attempts - 1,
        next_attempt_at_ms=next_attempt_at_ms or claimed.next_attempt_at_ms,
    )
    if not tx.run(
        "delivery_settle",
        delivery_id=settled.delivery_id,
        claim=settled.claim,
        state=state,
        claimed_by=settled.claimed_by,
        external_id=settled.external_id,
        part_ids=settled.part_ids,
        error=error,
        attempts=settled.attempts,
        next_attempt_at_ms=settled.next_attempt_at_ms,
        now_ms=now_ms(),
    ):
        raise _fenced(claimed)
    tx.changes.append(DeliveryChanged(settled))
    return settled


def confirm(tx: Tx, delivery: Delivery, part: int, external_id: str) -> Delivery:
    """Record proof that a part of an ambiguous delivery was sent."""
    ids = orjson.loads(delivery.part_ids)
    if delivery.state != "ambiguous" or part >= len(ids) or ids[part] is not None:
        return delivery
    ids[part] = external_id
    state: DeliveryState = "ambiguous" if None in ids else "delivered"
    confirmed = replace(
        delivery,
        part_ids=orjson.dumps(ids).decode(),
        external_id=next(i for i in ids if i),
        state=state,
        error=None if state == "delivered" else delivery.error,
    )
    tx.run(
        "delivery_confirm",
        delivery_id=delivery.delivery_id,
        state=state,
        part_ids=confirmed.part_ids,
        external_id=confirmed.external_id,
        now_ms=now_ms(),
    )
    tx.changes.append(DeliveryChanged(confirmed))
    return confirmed


def refute(tx: Tx, delivery: Delivery, reason: str) -> Delivery:
    """Fail a delivery that was accepted by the platform, which reports now that it could not deliver it."""
    if delivery.state not in ("delivered", "ambiguous"):
        return delivery
    tx.run("delivery_refute", delivery_id=delivery.delivery_id, error=reason, now_ms=now_ms())
    refuted = replace(delivery, state="failed", error=reason)
    tx.changes.append(DeliveryChanged(refuted))
    return refuted


def into_thread(tx: Tx, session_key: str, thread_id: str | None) -> None:
    """Send what waits for a session into a thread."""
    tx.run("deliveries_into_thread", session_key=session_key, thread_id=thread_id)


def fail(tx: Tx, delivery: Delivery, reason: str) -> None:
    """Fail a delivery, also while somebody is about to send it: the claim no longer holds."""
    tx.run("delivery_drop", delivery_id=delivery.delivery_id, error=reason, now_ms=now_ms())


def _fenced(claimed: Delivery) -> Fenced:
    return Fenced(f"The delivery {claimed.delivery_id} is no longer claimed with number {claimed.claim}.")
