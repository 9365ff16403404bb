"""What the network surfaces use of nodes, in one place."""

from __future__ import annotations

from hobnob.api.nodes.sign_in import NodeSignIn
from hobnob.nodes.invocations import Invocations
from hobnob.nodes.node_events import NodeEvents
from hobnob.nodes.registry import Nodes
from hobnob.records import Struct


class NodeService(Struct, frozen=True):
    registry: Nodes
    invocations: Invocations
    events: NodeEvents
    sign_in: NodeSignIn
