"""The channel socket, and the pump that brings messages to the channels.

A message on its way is a row. The pump claims it, has the channel send it, and records how that went; what
fails is tried again after a pause, each longer than the last. When a process dies amid sending, a channel
that can tell a repeated message from a new one is given it again; for any other it is marked as ambiguous,
and never sent twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Protocol

from hobnob import crashpoints
from hobnob.effects import Effects
from hobnob.errors import Fenced, StoreError
from hobnob.events import Change, DeliveryChanged
from hobnob.store import Store, Tx, deliveries
from hobnob.types import Delivery, DeliveryState, now_ms

TRIES = 12
SEND_S = 60.0  # longest attempt
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 1_000, 15 * 60_000
_TROUBLE_PAUSE_S = 1.0
_log = logging.getLogger(__name__)


class Undeliverable(Exception):
    """The channel did not take a message. `again`: it may take it later."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


class Channel(Protocol):
    """A way to people. `repeatable`: sending a delivery again, known by its id, has no second effect."""

    name: str
    repeatable: bool

    async def send(self, delivery: Delivery) -> str | None:
        """Send a message. Returns the channel's id for it. Raises Undeliverable."""
        ...


class Pump:
    def __init__(self, store: Store, effects: Effects, channels: Iterable[Channel]) -> None:
        self._store = store
        self._effects = effects
        self._channels = {channel.name: channel for channel in channels}
        effects.channels.update(self._channels)
        self._news: dict[str, asyncio.Event] = {name: asyncio.Event() for name in self._channels}

    async def run(self) -> None:
        """Take up what an earlier process left, then deliver until cancelled."""
        self._store.watch(self._changed)
        await self._store.write(self._recover)
        async with asyncio.TaskGroup() as group:
            for channel in self._channels.values():
                group.create_task(self._serve(channel), name=f"channel {channel.name}")

    async def _serve(self, channel: Channel) -> None:
        news = self._news[channel.name]
        while True:
            news.clear()
            try:
                while (claimed := await self._store.write(self._effects.claim, channel.name)) is not None:
                    await self._deliver(channel, claimed)
                due = await self._store.read(deliveries.next_due_at, channel.name)
            except StoreError as trouble:  # a full disk, say: the row is as a crash would leave it
                _log.error("deliveries to %s wait for the store: %s", channel.name, trouble)
                await asyncio.sleep(_TROUBLE_PAUSE_S)
                continue
            left = None if due is None else max(0, due - now_ms()) / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):  # not wait_for: that can swallow a cancellation
                    await news.wait()

    async def _deliver(self, channel: Channel, delivery: Delivery) -> None:
        crashpoints.point("before-delivery")
        state: DeliveryState = "delivered"
        external_id = error = next_at = None
        try:
            async with asyncio.timeout(SEND_S):
                external_id = await channel.send(delivery)
        except Undeliverable as trouble:
            error = str(trouble)
            state = "pending" if trouble.again and delivery.attempts < TRIES else "failed"
            next_at = now_ms() + min(_FIRST_PAUSE_MS * 2 ** (delivery.attempts - 1), _LONGEST_PAUSE_MS)
        except Exception as fault:  # the channel's own fault: nobody knows whether the message went out
            _log.exception("channel %s failed", channel.name)
            error = f"{type(fault).__name__}: {fault}"
            state = "pending" if channel.repeatable and delivery.attempts < TRIES else "ambiguous"
            next_at = now_ms() + _FIRST_PAUSE_MS
        crashpoints.point("after-delivery")
        try:
            await self._store.write(
                self._effects.settle,
                delivery,
                state=state,
                external_id=external_id,
                error=error,
                next_attempt_at_ms=next_at,
            )
        except Fenced:  # its session was deleted meanwhile, and the row with it
            _log.info("delivery %s is gone", delivery.delivery_id)

    def _recover(self, tx: Tx) -> None:
        """Decide what becomes of messages a dead process was sending."""
        for delivery in deliveries.interrupted(tx):
            channel = self._channels.get(delivery.channel)
            again = channel is not None and channel.repeatable
            why = "Hobnob was stopped while it was being sent"
            self._effects.settle(tx, delivery, state="pending" if again else "ambiguous", error=why)

    def _changed(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, DeliveryChanged) and change.delivery.state == "pending":
                if news := self._news.get(change.delivery.channel):
                    news.set()
