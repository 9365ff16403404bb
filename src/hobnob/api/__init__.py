"""The gateway's outside: RPC over WebSocket, and HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hobnob.approvals import Approvals
from hobnob.config import Config
from hobnob.events import Hub
from hobnob.models.catalog import Catalog
from hobnob.sandbox import Sandbox
from hobnob.sessions import Sessions
from hobnob.tools.offer import Offer
from hobnob.types import now_ms


@dataclass(frozen=True, slots=True)
class Parts:
    """What the outside may use of the inside."""

    config: Config
    sessions: Sessions
    models: Catalog
    hub: Hub
    running_turns: Callable[[], int]
    approvals: Approvals
    tools: Offer
    sandbox: Sandbox
    started_at_ms: int = field(default_factory=now_ms)
