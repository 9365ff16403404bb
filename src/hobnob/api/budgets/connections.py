"""Open connections: strangers until they sign in, then charged to their credential."""

from __future__ import annotations

from collections.abc import Callable

from hobnob.api.budgets.accounts import Account, Ticket
from hobnob.config.gateway import GatewayLimits

SILENT_S = 1.0  # after which a connection without a request is dropped before the others


class Slot:
    """The place of one connection."""

    __slots__ = ("_abort", "_open", "_strangers", "account", "address", "has_asked", "since", "ticket")

    def __init__(
        self, strangers: Strangers, address: Account, since: float, abort: Callable[[], None]
    ) -> None:
        self._strangers = strangers
        self._abort = abort
        self._open = True
        self.address = address  # what is asked for without a credential is charged to it
        self.since = since
        self.has_asked = False  # whether a complete request head has arrived
        self.account: Account | None = None
        self.ticket: Ticket | None = None  # of the last request over HTTP

    def sign_in(self, account: Account) -> None:
        """Charge the connection to a credential; to another one, if a proxy uses it for several.

        Raises LimitReached: then the connection should be closed.
        """
        if account is self.account or not self._open:
            return
        account.take("connections")
        self._uncharge()
        self.account = account

    def close(self) -> None:
        """The connection is closed: a request that waits for its turn is cancelled. May be called twice."""
        self._leave()
        if self.ticket is not None:
            self.ticket.give_up()

    def drop(self) -> None:
        """Close the connection at once, and count it no more."""
        self._leave()
        self._abort()

    def _leave(self) -> None:
        if self._open:
            self._open = False
            self._uncharge()

    def _uncharge(self) -> None:
        if self.account is not None:
            self.account.give("connections")
        else:
            self._strangers.discard(self)


class Strangers:
    """The connections that have not signed in. A new one always gets in, as it may be the owner's.

    When they are too many, the address with the most of them loses one: the oldest that has asked for
    nothing, else the oldest.
    """

    def __init__(self, limits: Callable[[], GatewayLimits], clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._groups: dict[str, dict[Slot, None]] = {}  # by address, oldest first
        self._count = 0
        self.dropped = 0

    def __len__(self) -> int:
        return self._count

    def admit(self, group: str, abort: Callable[[], None]) -> Slot:
        slots = self._groups.setdefault(group, {})
        address = next(iter(slots)).address if slots else Account(group, self._limits)
        limits, slot = self._limits(), Slot(self, address, self._clock(), abort)
        slots[slot] = None
        self._count += 1
        if len(slots) > limits.unauthenticated_per_address:
            self._drop_one(slots)
        elif self._count > limits.unauthenticated:
            self._drop_one(max(self._groups.values(), key=len))
        return slot

    def discard(self, slot: Slot) -> None:
        slots = self._groups.get(slot.address.name, {})
        if slot in slots:
            del slots[slot]
            self._count -= 1
            if not slots:
                del self._groups[slot.address.name]

    def _drop_one(self, slots: dict[Slot, None]) -> None:
        self.dropped += 1
        self._idlest(slots).drop()

    def _idlest(self, slots: dict[Slot, None]) -> Slot:
        now = self._clock()
        for slot in slots:
            if now - slot.since < SILENT_S:  # so are the next ones: their request may be under way
                break
            if not slot.has_asked:
                return slot
        return next(iter(slots))
