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


class Account:
    """What one credential uses of each resource. Owners are limited in bytes only."""

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
            limit = int(getattr(self._limits(), resource))
            if self.used[resource] + amount > limit:
                self.on_refusal(resource)
                raise self._reached(resource, limit)
        self.used[resource] += amount

    def give(self, resource: Resource, amount: int = 1) -> None:
        """Give back what was taken."""
        self.used[resource] -= amount

    def _reached(self, resource: Resource, limit: int) -> LimitReached:
        return LimitReached(
            f"The credential {self.name!r} may have {limit:,} {_NOUNS[resource]} at a time.",
            limit=resource,
            fix=f"Use fewer, or raise gateway.limits.{to_camel(resource)}.",
        )

    # -- requests

    def open_ticket(self, size: int = 0) -> Ticket:
        """Count a request of so many bytes. Raises LimitReached."""
        self.take("requests")
        ticket = Ticket(self)
        try:
            ticket.hold(size)
        except LimitReached:
            ticket.close()
            raise
        return ticket

    async def start_work(self) -> None:
        """Wait until fewer requests than the limit are worked on, first come, first served."""
        if self._working < self._limits().concurrent_requests and not self._queue:
            self._working += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was its turn at the same moment
                self.end_work()
            raise

    def end_work(self) -> None:
        while self._queue and self._working <= self._limits().concurrent_requests:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)  # it takes over this place
                return
        self._working -= 1


class Ticket:
    """One request. Close it when it is answered."""

    __slots__ = ("_account", "_counted", "_size", "_works")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._works = False
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
        if not self._account.owner:
            await self._account.start_work()
            self._works = True

    def pause(self) -> None:
        """Let another request be worked on: from now on, this one only waits for a turn to end."""
        if self._works:
            self._works = False
            self._account.end_work()

    def close(self, _task: object = None) -> None:
        """The request is answered. Also a callback for the end of its task."""
        self.pause()
        self._account.give("requests")
        if self._counted:
            self._account.give("bytes_in_flight", self._counted)
