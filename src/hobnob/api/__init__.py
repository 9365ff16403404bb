"""The gateway's outside: RPC over WebSocket, and HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from hobnob.api.auth import Door
from hobnob.api.devices import Devices
from hobnob.api.metrics import Metrics
from hobnob.api.presence import Clients
from hobnob.approvals import Approvals
from hobnob.config import Config
from hobnob.hub import Hub
from hobnob.models.catalog import Catalog
from hobnob.sandbox import Sandbox
from hobnob.sessions import Sessions
from hobnob.store import Store
from hobnob.tools import Toolbox
from hobnob.tools.registry import Offer
from hobnob.types import Session, new_id, now_ms


@dataclass(frozen=True, slots=True)
class Parts:
    """What the outside may use of the inside, and what all of the outside shares."""

    config: Config
    sessions: Sessions
    models: Catalog
    hub: Hub
    store: Store
    door: Door
    devices: Devices
    running_turns: Callable[[], int]
    approvals: Approvals
    tools: Offer
    sandbox: Sandbox
    toolbox: Callable[[Session], Awaitable[Toolbox]]
    metrics: Metrics
    clients: Clients = field(default_factory=Clients)
    boot_id: str = field(default_factory=new_id)
    started_at_ms: int = field(default_factory=now_ms)
