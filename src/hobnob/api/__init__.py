"""The gateway's outside: RPC over WebSocket, and HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from hobnob.api.auth import Authenticator
from hobnob.api.devices import Devices
from hobnob.api.metrics import Metrics
from hobnob.api.presence import ConnectedClients
from hobnob.approvals import Approvals
from hobnob.config import Config
from hobnob.hub import Hub
from hobnob.models.catalog import Catalog
from hobnob.sandbox import Sandbox
from hobnob.sessions import Sessions
from hobnob.store import Store
from hobnob.tools import Toolbox
from hobnob.tools.registry import ToolRegistry
from hobnob.types import Session, new_id, now_ms


@dataclass(frozen=True, slots=True)
class Services:
    """What the outside may use of the inside, and what all of the outside shares."""

    config: Config
    sessions: Sessions
    models: Catalog
    hub: Hub
    store: Store
    auth: Authenticator
    devices: Devices
    running_turns: Callable[[], int]
    approvals: Approvals
    tools: ToolRegistry
    sandbox: Sandbox
    toolbox: Callable[[Session], Awaitable[Toolbox]]
    metrics: Metrics
    clients: ConnectedClients = field(default_factory=ConnectedClients)
    boot_id: str = field(default_factory=new_id)
    started_at_ms: int = field(default_factory=now_ms)
