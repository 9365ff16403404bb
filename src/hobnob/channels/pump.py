"""The pump: sends deliveries to their channels.

It claims a delivery, has the channel send it, and records the result; a failed attempt is retried with
back-off. A delivery that was being sent when the process died is sent again on a channel that recognises
repeats, and marked ambiguous on any other: it is never sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from hobnob import crashpoints
from hobnob.channels import Channel, Undeliverable
from hobnob.effects import Effects
from hobnob.errors import Fenced, StoreError
from hobnob.events import Change, DeliveryChanged
from hobnob.store import Store, Tx, deliveries
from hobnob.types import Delivery, DeliveryState, now_ms

MAX_ATTEMPTS = 12
SEND_TIMEOUT_S = 60.0
_FIRST_RETRY_MS, _MAX_RETRY_MS = 1_000, 15 * 60_000
_STORE_RETRY_S = 1.0
_log = logging.getLogger(__name__)


class Pump:
    def __init__(self, store: Store, effects: Effects, channels: Iterable[Channel]) -> None:
        self._store = store
        self._effects = effects
        self._channels = {channel.name: channel for channel in channels}
        effects.channels.update(self._channels)
        self._wakeups: dict[str, asyncio.Event] = {name: asyncio.Event() for name in self._channels}

    async def run(self) -> None:
        """Recover the deliveries of an earlier process, then deliver until cancelled."""
        self._store.watch(self._on_changes)
        await self._store.write(self._recover)
        async with asyncio.TaskGroup() as group:
            for channel in self._channels.values():
                group.create_task(self._serve(channel), name=f"channel {channel.name}")

    async def _serve(self, channel: Channel) -> None:
        wakeup, claim = self._wakeups[channel.name], self._effects.claim_delivery
        while True:
            wakeup.clear()
            try:
                while (claimed := await self._store.write(claim, channel.name)) is not None:
                    await self._deliver(channel, claimed)
                due_at = await self._store.read(deliveries.next_due_at, channel.name)
            except StoreError as error:  # for example a full disk: the row is as after a crash
                _log.error("store unavailable, deliveries to %s wait: %s", channel.name, error)
                await asyncio.sleep(_STORE_RETRY_S)
                continue
            left_s = None if due_at is None else max(0, due_at - now_ms()) / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):  # not wait_for: that can swallow a cancellation
                    await wakeup.wait()

    async def _deliver(self, channel: Channel, delivery: Delivery) -> None:
        crashpoints.point("before-delivery")
        state: DeliveryState = "delivered"
        external_id = error = next_at = None
        retry = delivery.attempts < MAX_ATTEMPTS
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                external_id = await channel.send(delivery)
        except Undeliverable as refused:
            error = str(refused)
            state = "pending" if refused.again and retry else "failed"
            next_at = now_ms() + min(_FIRST_RETRY_MS * 2 ** (delivery.attempts - 1), _MAX_RETRY_MS)
        except Exception as fault:  # a bug in the channel: whether the message went out is unknown
            _log.exception("channel %s failed", channel.name)
            error = f"{type(fault).__name__}: {fault}"
            state = "pending" if channel.repeatable and retry else "ambiguous"
            next_at = now_ms() + _FIRST_RETRY_MS
        crashpoints.point("after-delivery")
        try:
            await self._store.write(
                self._effects.settle_delivery,
                delivery,
                state=state,
                external_id=external_id,
                error=error,
                next_attempt_at_ms=next_at,
            )
        except Fenced:
            _log.info("result of delivery %s not recorded: its session was deleted", delivery.delivery_id)

    def _recover(self, tx: Tx) -> None:
        """Requeue deliveries a dead process was sending, or mark them ambiguous."""
        for delivery in deliveries.interrupted(tx):
            channel = self._channels.get(delivery.channel)
            again = channel is not None and channel.repeatable
            why = "Hobnob was stopped while it was being sent"
            self._effects.settle_delivery(tx, delivery, state="pending" if again else "ambiguous", error=why)

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, DeliveryChanged) and change.delivery.state == "pending":
                if wakeup := self._wakeups.get(change.delivery.channel):
                    wakeup.set()
