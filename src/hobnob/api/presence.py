"""Who is connected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from hobnob.api.auth import Principal
from hobnob.policy import Operator
from hobnob.types import Device, now_ms

SHOWN = 200  # of those connected, in a list of them
_TEXT_CHARS = 100


class ClientConnection(Protocol):
    """A connection, as a method sees it: what it follows from now on."""

    operator: Operator
    admitted: Principal
    device: Device | None
    watches: bool

    def follow(self, session_key: str) -> None: ...

    def read(self, session_key: str, session_id: str, after: int) -> None: ...

    def unfollow(self, session_key: str) -> None: ...

    def watch(self, *, on: bool = True) -> None: ...

    def tell(self, text: str) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class ConnectedClients:
    """The connections there are, and how they present themselves."""

    def __init__(self) -> None:
        self._here: dict[ClientConnection, dict[str, Any]] = {}
        self.changed: Callable[[], None] = lambda: None
        self.version = 0

    def __len__(self) -> int:
        return len(self._here)

    def enter(self, listener: ClientConnection, client: dict[str, Any], address: str, instance: str) -> None:
        said = {name: str(client[name])[:_TEXT_CHARS] for name in _SAID if client.get(name)}
        self._here[listener] = said | {
            "ip": address,
            "instanceId": instance,
            "reason": "connect",
            "ts": now_ms(),
        }
        self._news()

    def leave(self, listener: ClientConnection) -> None:
        if self._here.pop(listener, None) is not None:
            self._news()

    def presence(self) -> list[dict[str, Any]]:
        """Those who came last, newest first."""
        newest = list(self._here.values())[: -SHOWN - 1 : -1]
        return [row | {"text": _line(row)} for row in newest]

    def tell(self, text: str, *, watching: bool = False) -> None:
        """Send an event to everybody, or to those who watch the sessions of all agents."""
        for listener in list(self._here):
            if not watching or (listener.watches and listener.operator.agents is None):
                listener.tell(text)

    def close_device(self, device_id: str, reason: str) -> int:
        """Send a device away. Returns how many connections it had."""
        theirs = [
            each for each in self._here if each.device is not None and each.device.device_id == device_id
        ]
        for listener in theirs:
            listener.close(1008, reason)
        return len(theirs)

    def close_unless(self, still: Callable[[Principal], bool], reason: str) -> int:
        """Send away those whose secret is no longer good. Returns how many."""
        theirs = [each for each in self._here if not still(each.admitted)]
        for listener in theirs:
            listener.close(1008, reason)
        return len(theirs)

    def _news(self) -> None:
        self.version += 1
        self.changed()


_SAID = ("id", "displayName", "version", "platform", "deviceFamily", "mode")


def _line(row: dict[str, Any]) -> str:
    return " · ".join(str(row[name]) for name in ("displayName", "id", "mode", "ip") if row.get(name))
