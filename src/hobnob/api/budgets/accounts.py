"""Accounts: what one credential uses at a time, and how much it may."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal, get_args

from pydantic.alias_generators import to_camel

from hobnob.config.gateway import GatewayLimits
from hobnob.errors import LimitReached

Resource = Literal["connections", "streams", "subscriptions", "requests", "bytes_in_flight"]
RESOURCES: tuple[Resource, ...] = get_args(Resource)
COUNTED_BYTES = 64 * 1024  # smaller requests are limited by their number
_NOUNS: dict[Resource, str] = {
    "connections": "connections",
    "streams": "event streams",
    "subscriptions": "subscriptions",
    "requests": "requests in flight",
    "bytes_in_flight": "bytes in flight",
}
_LIMITS: dict[Resource, Callable[[GatewayLimits], int]] = {
    "connections": lambda limits: limits.connections,
    "streams": lambda limits: limits.streams,
    "subscriptions": lambda limits: limits.subscriptions,
    "requests": lambda limits: limits.requests,
    "bytes_in_flight": lambda limits: limits.bytes_in_flight,
}


class Account:
    """What one credential, or one address before sign-in, uses of each resource.

    Owners are limited in bytes only.
    """

    def __init__(self, name: str, limits: Callable[[], GatewayLimits], *, owner: bool = False) -> None:
        self.name = name
        self.owner = owner
        self.used: dict[Resource, int] = dict.fromkeys(RESOURCES, 0)
        self.on_refusal: Callable[[str], None] = lambda _: None
        self._limits = limits
        self._working = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def take(self, resource: Resource, amount: int = 1) -> None:
        """Use more of a resource. Raises LimitReached."""
        if not self.owner or resource == "bytes_in_flight":
            limit = _LIMITS[resource](self._limits())
            if self.used[resource] + amount > limit:
                self.on_refusal(resource)
                raise self._reached(resource, limit)
        self.used[resource] += amount

    def give(self, resource: Resource, amount: int = 1) -> None:
        """Give back what was taken."""
        self.used[resource] -= amount

    def _reached(self, resource: Resource, limit: int) -> LimitReached:
        return LimitReached(
            f"{self.name!r} may have {limit:,} {_NOUNS[resource]} at a time.",
            limit=resource,
            fix=f"Use fewer, or raise gateway.limits.{to_camel(resource)}.",
        )

    # -- requests

    def open_ticket(self, size: int | None = None) -> Ticket:
        """Count a request of so many bytes; None when it has not been read. Raises LimitReached."""
        if self.owner and size is not None and size <= COUNTED_BYTES:
            return NO_TICKET  # nothing to limit: saves some microseconds
        self.take("requests")
        ticket = Ticket(self)
        try:
            ticket.hold(size or 0)
        except LimitReached:
            ticket.close()
            raise
        return ticket

    def start_work(self) -> asyncio.Future[None] | None:
        """Begin to work on a request, or wait for this future first. First come, first served."""
        if self._working < self._limits().concurrent_requests and not self._queue:
            self._working += 1
            return None
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        return place

    def end_work(self) -> None:
        while self._queue and self._working <= self._limits().concurrent_requests:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)  # it takes over this place
                return
        self._working -= 1


class Ticket:
    """One request. Close it when it is answered."""

    __slots__ = ("_account", "_counted", "_place", "_size", "_works")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._works = False
        self._place: asyncio.Future[None] | None = None
        self._size = 0
        self._counted = 0

    def hold(self, size: int) -> None:
        """Count more bytes of the request, if it is large. Raises LimitReached."""
        self._size += size
        if self._size > COUNTED_BYTES:
            self._account.take("bytes_in_flight", self._size - self._counted)
            self._counted = self._size

    async def start(self) -> None:
        """Wait for the turn of this request. Requests of owners do not wait."""
        if self._account.owner:
            return
        if (place := self._account.start_work()) is not None:
            self._place = place
            try:
                await place
            except asyncio.CancelledError:
                if not place.cancelled():  # it was its turn at the same moment
                    self._account.end_work()
                raise
        self._works = True

    def give_up(self) -> None:
        """Cancel the request, if it has not been started."""
        if self._place is not None:
            self._place.cancel()

    def pause(self) -> None:
        """Let another request be worked on: from now on, this one only waits for a turn to end."""
        if self._works:
            self._works = False
            # Not now: most requests never wait, so they would all be worked on in one turn of the event loop.
            asyncio.get_running_loop().call_soon(self._account.end_work)

    def close(self, _task: object = None) -> None:
        """The request is answered. Also a callback for the end of its task."""
        self.pause()
        self._account.give("requests")
        if self._counted:
            self._account.give("bytes_in_flight", self._counted)


class _NoTicket(Ticket):
    """The ticket of requests that are not counted."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def hold(self, size: int) -> None:
        pass

    async def start(self) -> None:
        pass

    def give_up(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def close(self, _task: object = None) -> None:
        pass


NO_TICKET = _NoTicket()
