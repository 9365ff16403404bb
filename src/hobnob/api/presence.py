"""Presence: the connected clients and open event streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hobnob.api.auth import Principal
from hobnob.config.fields import Scope
from hobnob.types import Device, now_ms

MAX_SHOWN = 200
_TEXT_CHARS = 100
_CLIENT_FIELDS = ("id", "displayName", "version", "platform", "deviceFamily", "mode")


class Closable(Protocol):
    """Something a credential opened, and which closes with it: a WebSocket or an event stream."""

    principal: Principal

    def close(self, code: int, reason: str) -> None: ...


class ClientConnection(Closable, Protocol):
    """A WebSocket connection as methods see it."""

    device: Device | None
    node_id: str | None
    gets_session_changes: bool

    def follow_runs(self, session_key: str) -> None: ...

    def subscribe_messages(self, session_key: str, session_id: str, after: int) -> None: ...

    def unsubscribe_messages(self, session_key: str) -> None: ...

    def subscribe_sessions(self, *, on: bool = True) -> None: ...

    def send_event(self, text: bytes) -> None: ...

    def send_named(self, event: str, payload: dict[str, Any]) -> None: ...


class ConnectedClients:
    """The open connections and streams, and how clients present themselves."""

    def __init__(self) -> None:
        self._connections: dict[ClientConnection, dict[str, Any]] = {}
        self.streams: set[Closable] = set()  # and HTTP requests that are being worked on
        self.on_change: Callable[[], None] = lambda: None
        self.elsewhere: Callable[[], list[dict[str, Any]]] = list  # clients of other gateways
        self.version = 0

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: ClientConnection, client: dict[str, Any], address: str, instance: str) -> None:
        shown = {name: str(client[name])[:_TEXT_CHARS] for name in _CLIENT_FIELDS if client.get(name)}
        self._connections[connection] = shown | {
            "ip": address,
            "instanceId": instance,
            "reason": "connect",
            "ts": now_ms(),
        }
        self.changed()

    def remove(self, connection: ClientConnection) -> None:
        if self._connections.pop(connection, None) is not None:
            self.changed()

    def presence(self) -> list[dict[str, Any]]:
        """The clients of all gateways; of each those that connected last, newest first."""
        return [*self.here(), *self.elsewhere()][:MAX_SHOWN]

    def devices(self) -> list[Device]:
        """The devices that are connected."""
        return [connection.device for connection in self._connections if connection.device is not None]

    def here(self) -> list[dict[str, Any]]:
        """The clients that connected last to this gateway, newest first."""
        newest = list(self._connections.values())[: -MAX_SHOWN - 1 : -1]
        return [row | {"text": _summary(row)} for row in newest]

    def broadcast(self, text: bytes, *, subscribers_only: bool = False) -> None:
        """Send an event to every client, or only to those subscribed to the sessions of all agents."""
        for connection in list(self._connections):
            if not subscribers_only or (
                connection.gets_session_changes and connection.principal.operator.agents is None
            ):
                connection.send_event(text)

    def tell_holders(self, scope: Scope, event: str, payload: dict[str, Any]) -> None:
        """Send an event to the clients that hold a scope for all agents."""
        for connection in list(self._connections):
            operator = connection.principal.operator
            if operator.agents is None and operator.holds(scope):
                connection.send_named(event, payload)

    def close_device(self, device_id: str, reason: str) -> int:
        """Close the connections of a device. Returns how many."""
        of_device = [c for c in self._connections if c.device is not None and c.device.device_id == device_id]
        for connection in of_device:
            connection.close(1008, reason)
        return len(of_device)

    def close_unless(self, is_current: Callable[[Principal], bool], reason: str) -> int:
        """Close the connections and streams whose credential is no longer valid. Returns how many."""
        stale = [each for each in (*self._connections, *self.streams) if not is_current(each.principal)]
        for each in stale:
            each.close(1008, reason)
        return len(stale)

    def changed(self) -> None:
        self.version += 1
        self.on_change()


def _summary(row: dict[str, Any]) -> str:
    return " · ".join(str(row[name]) for name in ("displayName", "id", "mode", "ip") if row.get(name))
