"""Several gateways on one database: which of them are alive, which does what only one may do, and messages
between them.

With SQLite there is one gateway, `Alone`. On PostgreSQL each gateway is a member of a `PostgresCluster`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from hobnob import __version__
from hobnob.errors import Conflict
from hobnob.records import Struct
from hobnob.types import now_ms

SILENT_AFTER_S = 3.0  # without a beat, of which there are two a second
Handler = Callable[[Any], object]
Interest = Callable[[str, str | None], bool]
"""Whether this gateway wants to know what changed, by session key and turn id."""


class GatewayInfo(Struct, frozen=True):
    """A gateway of the database as its last beat told. Of its clients, at most 50 are counted."""

    gateway_id: str
    name: str
    host: str
    pid: int
    url: str | None
    version: str
    started_at_ms: int
    beat_at_ms: int
    age_s: float
    """The time since the last beat, by the clock of the database."""
    locked: bool
    """Whether its connection to the database lives."""
    draining: bool
    turns: int
    clients: int
    roles: list[str]

    @property
    def silent(self) -> bool:
        return self.age_s > SILENT_AFTER_S or not self.locked


class Cluster(Protocol):
    """What the parts of a gateway see of the others."""

    gateway_id: str
    """The name under which this gateway claims turns. It changes when the gateway was taken for dead."""
    shared: bool
    """Whether other gateways may use the same database."""
    url: str | None
    """Where this gateway listens."""
    hung: bool
    """Whether code that runs here blocked the event loop so long that this gateway had to end its turns."""
    draining: bool
    """Whether an operator wants this gateway to start nothing new."""
    messages: dict[str, int]
    """How many messages were sent to and received from other gateways."""
    interests: list[Interest]
    """A change by another gateway is read and passed to the store's watchers if one of these wants it."""
    rechecks: list[Callable[[], Awaitable[None]]]
    """Called every two seconds, and after messages may have been lost: look in the store instead."""
    polls: list[Callable[[], Awaitable[None]]]
    """Called every five seconds, and when a gateway was found dead."""
    announcements: list[Callable[[], None]]
    """Each tells the others something of this gateway: called when one is new or may have missed messages."""

    clients: Callable[[], list[Any]]
    """The clients that are connected here, for the others to show."""
    on_clients: Callable[[], None]
    """Called when clients of other gateways have come or gone."""
    reloads: int
    """How often the settings were loaded again here, for the others to do the same."""
    on_reload: Callable[[], None]
    """Called when another gateway has loaded its settings again."""

    def clients_elsewhere(self) -> list[Any]:
        """The clients that are connected to other gateways."""
        ...

    @property
    def others(self) -> int:
        """How many other gateways are alive."""
        ...

    @property
    def can_take_over(self) -> bool:
        """Whether another gateway is alive that starts turns."""
        ...

    @property
    def gateway_ids(self) -> set[str]:
        """The gateways that are alive."""
        ...

    @property
    def is_member(self) -> bool:
        """Whether the others know this gateway as alive, so that it may claim turns."""
        ...

    def still_holds(self, gateway_id: str | None) -> bool:
        """Whether what this gateway claimed under an id is still its own: nobody else does it yet."""
        ...

    @property
    def roles(self) -> list[str]:
        """What this gateway does at the moment that only one may do."""
        ...

    @property
    def roles_elsewhere(self) -> set[str]:
        """What other gateways do, as their last beats told."""
        ...

    async def gateways(self) -> list[GatewayInfo]:
        """All gateways of the database, oldest first."""
        ...

    async def refresh(self) -> None:
        """See who is alive now, instead of at the last beat."""
        ...

    async def drain(self, gateway_id: str, *, on: bool) -> None:
        """Ask a gateway to start nothing new, or to do so again. It hears of it with its next beat."""
        ...

    async def remove(self, gateway_id: str) -> bool:
        """Take a gateway for dead. False if it is gone already."""
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
    hung = False
    draining = False
    others = 0
    can_take_over = False
    is_member = True

    def __init__(self) -> None:
        self.gateway_id = f"{socket.gethostname()}:{os.getpid()}"
        self.url: str | None = None
        self.roles: list[str] = []
        self.messages = {"sent": 0, "received": 0}
        self._started_at_ms = now_ms()
        self.interests: list[Interest] = []
        self.rechecks: list[Callable[[], Awaitable[None]]] = []
        self.polls: list[Callable[[], Awaitable[None]]] = []
        self.announcements: list[Callable[[], None]] = []
        self.clients: Callable[[], list[Any]] = list
        self.on_clients: Callable[[], None] = lambda: None
        self.reloads = 0
        self.on_reload: Callable[[], None] = lambda: None
        self.roles_elsewhere: set[str] = set()

    @property
    def gateway_ids(self) -> set[str]:
        return {self.gateway_id}

    def clients_elsewhere(self) -> list[Any]:
        return []

    async def gateways(self) -> list[GatewayInfo]:
        own = GatewayInfo(
            gateway_id=self.gateway_id,
            name=socket.gethostname(),
            host=socket.gethostname(),
            pid=os.getpid(),
            url=self.url,
            version=__version__,
            started_at_ms=self._started_at_ms,
            beat_at_ms=now_ms(),
            age_s=0.0,
            locked=True,
            draining=False,
            turns=0,
            clients=0,
            roles=self.roles,
        )
        return [own]

    async def refresh(self) -> None:
        return

    async def drain(self, gateway_id: str, *, on: bool) -> None:
        raise Conflict("This gateway is the only one: no other could take over.")

    async def remove(self, gateway_id: str) -> bool:
        raise Conflict("This gateway is the only one: no other could take over.")

    def still_holds(self, gateway_id: str | None) -> bool:
        return True

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
