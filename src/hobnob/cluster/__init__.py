"""Several gateways on one database: which of them are alive, which does what only one may do, and messages
between them.

With SQLite there is one gateway, `Alone`. On PostgreSQL each gateway is a member of a `PostgresCluster`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

Handler = Callable[[Any], object]
Interest = Callable[[str, str | None], bool]
"""Whether this gateway wants to know what changed, by session key and turn id."""


class Cluster(Protocol):
    """What the parts of a gateway see of the others."""

    gateway_id: str
    """The name under which this gateway claims turns. It changes when the gateway was taken for dead."""
    shared: bool
    """Whether other gateways may use the same database."""
    draining: bool
    """Whether an operator wants this gateway to start nothing new."""
    interests: list[Interest]
    """A change by another gateway is read and passed to the store's watchers if one of these wants it."""
    rechecks: list[Callable[[], Awaitable[None]]]
    """Called every two seconds, and after messages may have been lost: look in the store instead."""
    polls: list[Callable[[], Awaitable[None]]]
    """Called every five seconds, and when a gateway was found dead."""

    clients: Callable[[], list[Any]]
    """The clients that are connected here, for the others to show."""
    on_clients: Callable[[], None]
    """Called when clients of other gateways have come or gone."""

    def clients_elsewhere(self) -> list[Any]:
        """The clients that are connected to other gateways."""
        ...

    @property
    def others(self) -> int:
        """How many other gateways are alive."""
        ...

    async def joined(self) -> None:
        """Return when this gateway may claim turns: it is known to the others as alive."""
        ...

    async def lead(self, role: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do work that only one gateway may do at a time, whenever it is this one's turn.

        The work is cancelled when the role is lost, and started again when it is this one's again.
        """
        ...

    def leads(self, role: str) -> bool:
        """Whether this gateway does the work of a role at the moment."""
        ...

    def tell(self, kind: str, payload: Any) -> None:
        """Send a message to the other gateways. It may be lost: what matters is in the store."""
        ...

    def on(self, kind: str, handler: Handler) -> None:
        """Handle messages of one kind. If the handler returns an awaitable, later messages wait for it."""
        ...


class Alone:
    """The only gateway of its database: it has every role and nobody to talk to."""

    shared = False
    draining = False
    others = 0

    def __init__(self) -> None:
        self.gateway_id = f"{socket.gethostname()}:{os.getpid()}"
        self.interests: list[Interest] = []
        self.rechecks: list[Callable[[], Awaitable[None]]] = []
        self.polls: list[Callable[[], Awaitable[None]]] = []
        self.clients: Callable[[], list[Any]] = list
        self.on_clients: Callable[[], None] = lambda: None

    def clients_elsewhere(self) -> list[Any]:
        return []

    async def joined(self) -> None:
        return

    async def lead(self, role: str, work: Callable[[], Awaitable[None]]) -> None:
        await work()

    def leads(self, role: str) -> bool:
        return True

    def tell(self, kind: str, payload: Any) -> None:
        return

    def on(self, kind: str, handler: Handler) -> None:
        return
