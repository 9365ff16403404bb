"""What the network surfaces use of nodes, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from hobnob.api.nodes.sign_in import NodeSignIn
from hobnob.nodes.invocations import Invocations
from hobnob.nodes.node_events import NodeEvents
from hobnob.nodes.registry import Nodes


@dataclass(frozen=True, slots=True)
class NodeService:
    registry: Nodes
    invocations: Invocations
    events: NodeEvents
    sign_in: NodeSignIn
