"""Verbs on nodes: their requests for approval, and what owners approved."""

from __future__ import annotations

from hobnob.errors import NotFound
from hobnob.node_types import NO_SURFACE, Node
from hobnob.records import replace
from hobnob.store.engine.tx import Tx
from hobnob.types import new_id, now_ms

MAX_PENDING = 20  # open requests per credential; the oldest are deleted
MAX_LISTED = 500
_LIST_HINT = "`hobnob node list` shows the nodes."


def find(tx: Tx, node_id: str) -> Node | None:
    return tx.get(Node, "node_get", node_id=node_id)


def get(tx: Tx, node_id: str) -> Node:
    """Raises NotFound."""
    node = find(tx, node_id)
    if node is None:
        raise NotFound(f"There is no node {node_id[:64]}.", fix=_LIST_HINT)
    return node


def page(tx: Tx) -> list[Node]:
    """The nodes, oldest first."""
    return tx.all(Node, "nodes_list", limit=MAX_LISTED)


def declare(tx: Tx, node: Node) -> tuple[Node, bool]:
    """Save what a node says of itself. Returns it as stored, and whether it asks for an approval anew.

    It asks when it is not approved, and when its surface has grown; after a rejection only if the surface has
    changed since.
    """
    known = find(tx, node.node_id)
    if known is None:
        return _asking(tx, node), True
    changed = replace(
        known,
        name=node.name,
        facts=node.facts,
        address=node.address,
        credential=node.credential if known.state != "approved" else known.credential,
        declared=node.declared,
    )
    if known.state == "approved" and changed.approved_surface.covers(changed.declared_surface):
        changed = replace(changed, request_id=None)
    elif known.request_id is None and (known.state != "approved" or known.declared != node.declared):
        return _asking(tx, changed), True
    is_news = changed.request_id is not None and known.declared != node.declared
    tx.put("node_save", changed)
    return changed, is_news


def _asking(tx: Tx, node: Node) -> Node:
    asking = replace(node, request_id=new_id(), requested_at_ms=now_ms())
    tx.put("node_save", asking)
    tx.run("nodes_crowd", limit=MAX_PENDING, credential=node.credential)
    return asking


def of_request(tx: Tx, request_id: str) -> Node:
    """The node of an open request. Raises NotFound."""
    node = tx.get(Node, "node_by_request", request_id=request_id)
    if node is None:
        raise NotFound(f"There is no open request {request_id[:64]} of a node.", fix=_LIST_HINT)
    return node


def approve(tx: Tx, request_id: str, declared: str) -> Node:
    """Approve the surface of an open request, as it was shown. Raises NotFound.

    A node that declares another surface by now has to be looked at again.
    """
    node = of_request(tx, request_id)
    if node.declared != declared:
        raise NotFound("The node offers something else by now.", fix="Look at the request again.")
    approved = replace(
        node, state="approved", approved=node.declared, approved_at_ms=now_ms(), request_id=None
    )
    tx.put("node_save", approved)
    return approved


def reject(tx: Tx, request_id: str) -> Node:
    """Reject an open request. An approved node keeps the surface it had. Raises NotFound."""
    node = of_request(tx, request_id)
    rejected = replace(node, request_id=None, state="approved" if node.state == "approved" else "rejected")
    tx.put("node_save", rejected)
    return rejected


def remove(tx: Tx, node_id: str) -> Node:
    """Withdraw approval and token of a node. Raises NotFound."""
    node = get(tx, node_id)
    removed = replace(
        node, state="removed", approved=NO_SURFACE, request_id=None, generation=node.generation + 1
    )
    tx.put("node_save", removed)
    return removed


def rename(tx: Tx, node_id: str, name: str | None) -> Node:
    """Give a node a name; None takes it away. Raises NotFound."""
    renamed = replace(get(tx, node_id), given_name=name)
    tx.put("node_save", renamed)
    return renamed


def connected(tx: Tx, node_id: str) -> None:
    tx.run("node_connected", node_id=node_id, now_ms=now_ms())


def disconnected(tx: Tx, node_id: str) -> None:
    tx.run("node_disconnected", node_id=node_id, now_ms=now_ms())
