"""Nodes: devices and hosts that connect to the gateway and offer commands."""

from __future__ import annotations

from typing import Literal

import orjson

from hobnob.records import Struct, field
from hobnob.types import now_ms

NodeState = Literal["pending", "approved", "rejected", "removed"]
PROVENANCE = "node"  # the kind of a message that a node sent


class Surface(Struct, frozen=True):
    """What a node offers: capabilities, which are only words, and commands that can be invoked."""

    caps: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    def json(self) -> str:
        return orjson.dumps({"caps": self.caps, "commands": self.commands}).decode()

    @classmethod
    def from_json(cls, text: str) -> Surface:
        raw = orjson.loads(text)
        return cls(tuple(raw["caps"]), tuple(raw["commands"]))

    def covers(self, other: Surface) -> bool:
        return set(other.caps) <= set(self.caps) and set(other.commands) <= set(self.commands)


NO_SURFACE = Surface().json()


class Node(Struct, frozen=True):
    """A node, known by its device key. `node_id` is the hash of that key.

    `declared` is the surface it last connected with, as far as the settings permit it; `approved` is what an
    owner approved. While `request_id` is set, it waits for an approval. `facts` is how it describes itself.
    """

    node_id: str
    public_key: str
    credential: str
    name: str = ""
    given_name: str | None = None
    facts: str = "{}"
    address: str = ""
    generation: int = 1
    state: NodeState = "pending"
    request_id: str | None = None
    declared: str = NO_SURFACE
    approved: str = NO_SURFACE
    created_at_ms: int = field(default_factory=now_ms)
    requested_at_ms: int | None = None
    approved_at_ms: int | None = None
    connected_at_ms: int | None = None
    disconnected_at_ms: int | None = None

    @property
    def shown_name(self) -> str:
        """The name an owner gave it, else its own, else the beginning of its id."""
        return self.given_name or self.name or self.node_id[:12]

    @property
    def declared_surface(self) -> Surface:
        return Surface.from_json(self.declared)

    @property
    def approved_surface(self) -> Surface:
        return Surface.from_json(self.approved)
