"""The listener: a thread that receives the notifications of PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable

import psycopg

from hobnob.errors import HobnobError
from hobnob.store.engine import postgres_server as server

CHANNEL = "hobnob"
STEP_S = 0.5  # between looks whether it is to end
_SILENT_S = 5.0  # without a notification of one's own: the connection is dead
_RETRY_S = 0.25
_log = logging.getLogger(__name__)


def own_channel(instance: str) -> str:
    """The channel on which a gateway notifies itself, to see that it hears something."""
    return f"hobnob_{instance}"


class Listener(threading.Thread):
    """Calls `on_payload` in the event loop, and `on_gap` when notifications may have been lost."""

    def __init__(
        self,
        url: str,
        instance: str,
        application: str,
        loop: asyncio.AbstractEventLoop,
        on_payload: Callable[[str], None],
        on_gap: Callable[[], None],
    ) -> None:
        super().__init__(name="cluster-listener", daemon=True)
        self._url = url
        self._own = own_channel(instance)
        self._application = application
        self._loop = loop
        self._on_payload = on_payload
        self._on_gap = on_gap
        self.steps = 0  # that it has taken: it runs also while the event loop is blocked
        self._stopped = threading.Event()
        self._connection: server.Connection | None = None

    def stop(self) -> None:
        """End the thread and wait for it. Blocks."""
        self._stopped.set()
        self.cut()
        self.join()

    def cut(self) -> None:
        """End the connection: a new one is made."""
        if (connection := self._connection) is not None:
            server.cut(connection)

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except (psycopg.Error, HobnobError, OSError) as error:
                if not self._stopped.is_set():
                    _log.debug("not listening to other gateways, trying again: %s", error)
            self._stopped.wait(_RETRY_S)

    def _listen(self) -> None:
        with contextlib.closing(server.connect(self._url, name=self._application)) as connection:
            self._connection = connection
            connection.execute(f"listen {CHANNEL}")
            connection.execute(f'listen "{self._own}"'.encode())
            self._call(self._on_gap)
            heard_at = time.monotonic()
            while not self._stopped.is_set() and time.monotonic() - heard_at < _SILENT_S:
                self.steps += 1
                for note in connection.notifies(timeout=STEP_S):
                    heard_at = time.monotonic()
                    if note.channel == CHANNEL:
                        self._call(self._on_payload, note.payload)

    def _call(self, function: Callable[..., None], *args: str) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(function, *args)
