"""The network surfaces: RPC over WebSocket, and HTTP."""

from __future__ import annotations

from collections.abc import Callable

from hobnob.api.auth import Authenticator
from hobnob.api.budgets import Budgets
from hobnob.api.devices import Devices
from hobnob.api.mcp.service import McpService
from hobnob.api.metrics import Metrics
from hobnob.api.nodes.service import NodeService
from hobnob.api.presence import ConnectedClients
from hobnob.api.tool_invocation import ToolInvoker
from hobnob.approvals import Approvals
from hobnob.chats.service import Chats
from hobnob.cluster import Cluster
from hobnob.config import Config
from hobnob.hub import Hub
from hobnob.jobs.scheduler import Scheduler
from hobnob.jobs.service import Jobs
from hobnob.models.catalog import Catalog
from hobnob.records import Struct, field
from hobnob.retention import Retention
from hobnob.sandbox import Sandbox
from hobnob.sessions import Sessions
from hobnob.tools.registry import ToolRegistry
from hobnob.types import new_id, now_ms


class Services(Struct, frozen=True):
    """What methods and routes may use. There is no store: they go through these."""

    config: Config
    sessions: Sessions
    models: Catalog
    hub: Hub
    auth: Authenticator
    devices: Devices
    mcp: McpService
    nodes: NodeService
    approvals: Approvals
    retention: Retention
    jobs: Jobs
    scheduler: Scheduler
    tools: ToolRegistry
    tool_calls: ToolInvoker
    sandbox: Sandbox
    metrics: Metrics
    budgets: Budgets
    chats: Chats
    running_turns: Callable[[], int]
    stopping: Callable[[], bool]
    cluster: Cluster
    channels: Callable[[], list[str]]
    """The names of the connected chat channels."""
    clients: ConnectedClients = field(default_factory=ConnectedClients)
    boot_id: str = field(default_factory=new_id)
    started_at_ms: int = field(default_factory=now_ms)
