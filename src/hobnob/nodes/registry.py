"""The registry of nodes: who has asked, who is approved, and who is connected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hobnob.config import Config
from hobnob.errors import BadInput, NodeFailed, NotFound
from hobnob.node_types import Node
from hobnob.nodes import presentation, surface
from hobnob.requests import check_label
from hobnob.store import Store
from hobnob.store.access import nodes
from hobnob.types import now_ms

Row = dict[str, Any]
_MIN_PREFIX = 6  # characters of an id that name a node


class NodeConnection(Protocol):
    """The connection of a node."""

    def send_named(self, event: str, payload: Row) -> None:
        """Queue an event."""
        ...

    def close(self, code: int, reason: str) -> None: ...


@dataclass(slots=True)
class Live:
    connection: NodeConnection
    connected_at_ms: int = field(default_factory=now_ms)


class Nodes:
    """The nodes, with the connections of those that are connected to this gateway or another one.

    `on_news` hears of requests and their ends, `on_lost` of lost nodes, wherever they were connected.
    `on_connections` hears when a node connected to this gateway, or, with None, when one has left.
    """

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._live: dict[str, Live] = {}
        self._elsewhere: dict[str, Live] = {}
        self.on_news: Callable[[str, Row], None] = lambda event, payload: None
        self.tell_others: Callable[[str, Row], None] = lambda event, payload: None
        self.on_connections: Callable[[str | None], None] = lambda node_id: None
        self.on_lost: list[Callable[[str], None]] = []

    # -- connections

    async def declare(self, node: Node) -> Node:
        """Save what a node says of itself when it connects. Owners are told when it asks for approval."""
        saved, is_news = await self._store.write(nodes.declare, node)
        if is_news:
            self._announce("node.pair.requested", presentation.request_row(saved))
        return saved

    async def find(self, node_id: str) -> Node | None:
        return await self._store.read_small(nodes.find, node_id)

    async def connected(self, node_id: str, connection: NodeConnection) -> None:
        """Note the connection of a node. It replaces an older one: only the holder of the key has it."""
        earlier = self._live.pop(node_id, None)
        if earlier is not None:
            earlier.connection.close(1008, "the node connected again")
            self._lost(node_id)
        self._live[node_id] = Live(connection)
        self.on_connections(node_id)
        await self._store.write(nodes.connected, node_id)

    async def disconnected(self, node_id: str, connection: NodeConnection) -> None:
        """Note the end of a connection, unless a newer one has replaced it."""
        live = self._live.get(node_id)
        if live is None or live.connection is not connection:
            return
        del self._live[node_id]
        self._lost(node_id)
        self.on_connections(None)
        await self._store.write(nodes.disconnected, node_id)

    def connection(self, node_id: str) -> NodeConnection | None:
        """The connection of a node, to this gateway or another one."""
        live = self._find(node_id)
        return live.connection if live else None

    def connection_here(self, node_id: str) -> NodeConnection | None:
        live = self._live.get(node_id)
        return live.connection if live else None

    def is_connected(self, node_id: str) -> bool:
        return self._find(node_id) is not None

    def _find(self, node_id: str) -> Live | None:
        return self._live.get(node_id) or self._elsewhere.get(node_id)

    def here(self) -> dict[str, int]:
        """The nodes that are connected to this gateway, with the times since when."""
        return {node_id: live.connected_at_ms for node_id, live in self._live.items()}

    def set_elsewhere(self, nodes: dict[str, Live]) -> None:
        """Note which nodes are connected to other gateways. One that connected again was lost in between."""
        before, self._elsewhere = self._elsewhere, nodes
        for node_id, live in before.items():
            now = nodes.get(node_id)
            if node_id not in self._live and (now is None or now.connected_at_ms != live.connected_at_ms):
                self._lost(node_id)

    def _lost(self, node_id: str) -> None:
        for hear in self.on_lost:
            hear(node_id)

    # -- listing

    async def all(self) -> list[Node]:
        """All nodes except those that were removed or rejected, oldest first."""
        return [
            node
            for node in await self._store.read(nodes.page)
            if node.state in ("pending", "approved") or node.request_id
        ]

    async def named(self, reference: str) -> Node:
        """The node of an id, a name, or the beginning of an id. Raises NotFound or BadInput."""
        wanted = reference.strip()
        if (exact := await self.find(wanted.lower())) is not None:
            return exact
        usable = await self.all()
        found = [node for node in usable if node.shown_name.casefold() == wanted.casefold()]
        if not found and len(wanted) >= _MIN_PREFIX:
            found = [node for node in usable if node.node_id.startswith(wanted.lower())]
        if not found:
            names = ", ".join(sorted(node.shown_name for node in usable)[:10]) or "none"
            raise NotFound(
                f"There is no node {wanted[:80]!r} (nodes: {names}).",
                fix="`hobnob node list` shows the nodes.",
            )
        if len(found) > 1:
            ids = ", ".join(node.node_id[:12] for node in found[:10])
            raise BadInput(
                f"{len(found)} nodes are called {wanted[:80]!r}: {ids}.", fix="Name one by its id."
            )
        return found[0]

    def row(self, node: Node) -> Row:
        """A node as clients see it."""
        live = self._find(node.node_id)
        return presentation.node_row(self._config.settings, node, live.connected_at_ms if live else None)

    async def pairing(self) -> Row:
        """Open requests, and approved nodes."""
        found = await self._store.read(nodes.page)
        live = {node_id: each.connected_at_ms for node_id, each in (self._elsewhere | self._live).items()}
        return {
            "pending": [presentation.request_row(node) for node in found if node.request_id],
            "paired": [
                presentation.paired_row(node, live.get(node.node_id))
                for node in found
                if node.state == "approved"
            ],
        }

    # -- decisions of people

    async def request(self, request_id: str) -> Node:
        """The node of an open request. Raises NotFound."""
        return await self._store.read_small(nodes.of_request, request_id)

    async def approve(self, node: Node) -> Node:
        """Approve what a request asked for when it was read. Raises NotFound."""
        approved = await self._store.write(nodes.approve, node.request_id or "", node.declared)
        self._resolved(node.request_id, approved, "approved")
        return approved

    async def reject(self, request_id: str) -> Node:
        """Reject a request. A node that was never approved is disconnected. Raises NotFound."""
        rejected = await self._store.write(nodes.reject, request_id)
        self._resolved(request_id, rejected, "rejected")
        if rejected.state != "approved":
            self._send_away(rejected.node_id, "the node was rejected")
        return rejected

    async def remove(self, node_id: str) -> Node:
        """Withdraw the approval of a node, void its token, and disconnect it. Raises NotFound."""
        removed = await self._store.write(nodes.remove, node_id)
        self._send_away(node_id, "the node was removed")
        return removed

    async def rename(self, node_id: str, name: str) -> Node:
        """Give a node a name, or none. Raises NotFound or BadInput."""
        return await self._store.write(nodes.rename, node_id, check_label(name))

    def _resolved(self, request_id: str | None, node: Node, decision: str) -> None:
        news = {"requestId": request_id, "nodeId": node.node_id, "decision": decision, "ts": now_ms()}
        self._announce("node.pair.resolved", news)
        if connection := self.connection(node.node_id):
            connection.send_named("node.pair.resolved", news)

    def _announce(self, event: str, payload: Row) -> None:
        self.on_news(event, payload)
        self.tell_others(event, payload)

    def _send_away(self, node_id: str, reason: str) -> None:
        """Close the connection of a node, to whatever gateway."""
        if not self.send_away_here(node_id, reason) and (live := self._elsewhere.pop(node_id, None)):
            live.connection.close(1008, reason)
            self._lost(node_id)

    def send_away_here(self, node_id: str, reason: str) -> bool:
        """Close the connection of a node to this gateway. False if there is none."""
        if not (live := self._live.pop(node_id, None)):
            return False
        live.connection.close(1008, reason)
        self._lost(node_id)
        self.on_connections(None)
        return True

    # -- what a node may do

    async def approved(self, node_id: str) -> Node:
        """The node, if an owner has approved it. Raises NodeFailed."""
        node = await self.find(node_id)
        if node is None or node.state != "approved":
            raise NodeFailed(
                "This node has not been approved yet.",
                reason="PAIRING_CHANGED",
                dispatched=False,
                fix="On the gateway's machine: hobnob node list",
            )
        return node

    def commands(self, node: Node) -> tuple[str, ...]:
        """The commands of a node that can be invoked now."""
        return surface.effective(self._config.settings, node).commands
