"""Nodes that are connected to other gateways. They are known here, and used through their gateway.

Each gateway tells the others which nodes it has. A command goes out as a message, which the gateway of the
node passes on; so does the answer. A message may be lost: the command then fails at its time limit, as with
a node that does not answer.
"""

from __future__ import annotations

from typing import Any

from hobnob.cluster import Cluster
from hobnob.nodes.invocations import Failure, Invocations
from hobnob.nodes.registry import Live, Nodes, Row

PRESENCE, KIND = "nodes", "node"


class _Connection:
    """The connection of a node to another gateway."""

    def __init__(self, cluster: Cluster, node_id: str) -> None:
        self._cluster = cluster
        self._node_id = node_id

    def send_named(self, event: str, payload: Row) -> None:
        self._cluster.tell(KIND, ["send", self._node_id, self._cluster.gateway_id, event, payload])

    def close(self, code: int, reason: str) -> None:
        self._cluster.tell(KIND, ["close", self._node_id, reason])


class NodesElsewhere:
    """Connects the nodes of this gateway with the other gateways."""

    def __init__(self, registry: Nodes, invocations: Invocations, cluster: Cluster) -> None:
        self._registry = registry
        self._invocations = invocations
        self._cluster = cluster
        self._by_gateway: dict[str, dict[str, int]] = {}  # when which nodes connected
        self._asked: dict[str, tuple[str, str]] = {}  # invoke id: the gateway that asked, and the node
        invocations.others = self
        registry.tell_others = lambda event, payload: self.tell("news", event, payload)
        registry.on_connections = self._on_connections
        cluster.on(PRESENCE, self._on_presence)
        cluster.on(KIND, self._on_message)
        cluster.announcements.append(self._tell_nodes)
        cluster.polls.append(self._poll)

    def tell(self, *message: Any) -> None:
        self._cluster.tell(KIND, message)

    def has_asked(self, node_id: str, invoke_id: str) -> bool:
        return invoke_id in self._asked and self._asked[invoke_id][1] == node_id

    def answer(self, node_id: str, invoke_id: str, payload: Any, failure: Failure | None) -> None:
        del self._asked[invoke_id]
        self.tell("answer", node_id, invoke_id, payload, failure)

    # -- which nodes are where

    def _on_connections(self, node_id: str | None) -> None:
        here = self._registry.here()
        self._asked = {invoke_id: asked for invoke_id, asked in self._asked.items() if asked[1] in here}
        self._tell_nodes(node_id)

    def _tell_nodes(self, connected: str | None = None) -> None:
        """Tell which nodes are here. Others may have an older connection of the one that just connected."""
        self._cluster.tell(PRESENCE, [self._cluster.gateway_id, self._registry.here(), connected])

    def _on_presence(self, payload: Any) -> None:
        gateway_id, nodes, connected = payload
        self._by_gateway[gateway_id] = nodes
        if connected is not None:
            self._registry.send_away_here(connected, "the node connected again")
        self._update()

    async def _poll(self) -> None:
        """Forget gateways that are gone, and stop what they asked nodes for."""
        alive = self._cluster.gateway_ids
        for invoke_id, (gateway_id, node_id) in [*self._asked.items()]:
            if gateway_id not in alive:
                del self._asked[invoke_id]
                self._pass_on(node_id, "node.invoke.cancel", {"invokeId": invoke_id, "nodeId": node_id})
        self._by_gateway = {key: nodes for key, nodes in self._by_gateway.items() if key in alive}
        self._update()
        self._tell_nodes()

    def _update(self) -> None:
        found = [item for nodes in self._by_gateway.values() for item in nodes.items()]
        found.sort(key=lambda item: item[1])  # the newest connection of each counts
        self._registry.set_elsewhere(
            {node_id: Live(_Connection(self._cluster, node_id), at) for node_id, at in found}
        )

    # -- what they are asked, and what they answer

    def _on_message(self, message: list[Any]) -> None:
        match message:
            case ["send", node_id, gateway_id, event, payload]:
                if self._registry.connection_here(node_id) is None:
                    return
                if event == "node.invoke.request":
                    self._asked[payload["id"]] = (gateway_id, node_id)
                elif event == "node.invoke.cancel":
                    self._asked.pop(payload["invokeId"], None)
                self._pass_on(node_id, event, payload)
            case ["close", node_id, reason]:
                self._registry.send_away_here(node_id, reason)
            case ["news", event, payload]:
                self._registry.on_news(event, payload)
            case ["answer", node_id, invoke_id, payload, failure]:
                self._invocations.settle(node_id, invoke_id, payload, failure)
            case ["progress", node_id, invoke_id, seq, chunk]:
                self._invocations.progress(node_id, invoke_id, seq, chunk)
            case ["cancel", caller, idempotency_key]:
                self._invocations.cancel_here(caller, idempotency_key)

    def _pass_on(self, node_id: str, event: str, payload: Row) -> None:
        if (connection := self._registry.connection_here(node_id)) is not None:
            connection.send_named(event, payload)
