"""Messages to and from other gateways: sent in batches, handled one after the other."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from hobnob.cluster import Handler
from hobnob.cluster.messages import Message, Packer, Unpacker
from hobnob.errors import HobnobError

_MAX_OUTBOX = 20_000  # messages that wait to be sent; more are dropped
_IGNORED_LOGGED_S = 60.0  # between two log lines about notifications that are ignored
_log = logging.getLogger(__name__)


class Mailbox:
    """The messages of one gateway, the `instance`. `notify` sends payloads; it raises HobnobError."""

    def __init__(self, instance: str, notify: Callable[[list[str]], Awaitable[None]]) -> None:
        self.counts = {"sent": 0, "received": 0}
        self._instance = instance
        self._notify = notify
        self._handlers: dict[str, Handler] = {}
        self._outbox: list[Message] = []
        self._sending: asyncio.Task[None] | None = None
        self._packer: Packer | None = None  # until it is open
        self._unpacker: Unpacker | None = None
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._ignored_logged_at = -math.inf  # that a notification was ignored
        self._reached = True  # the database, when messages were sent last

    def open(self, key: bytes, clock: Callable[[], float]) -> None:
        """Begin, with the key that the gateways share and the time of the database."""
        self._packer = Packer(self._instance, key, clock)
        self._unpacker = Unpacker(key, clock)

    def on(self, kind: str, handler: Handler) -> None:
        self._handlers[kind] = handler

    def tell(self, kind: str, payload: Any) -> None:
        if len(self._outbox) >= _MAX_OUTBOX:
            return
        self._outbox.append((kind, payload))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send(), name="messages to gateways")

    async def sent(self, timeout_s: float) -> None:
        """Wait until what was told is sent."""
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=timeout_s)

    async def _send(self) -> None:
        assert self._packer is not None
        while self._outbox:
            batch, self._outbox = self._outbox, []
            try:
                await self._notify(list(self._packer.pack(batch)))
                self.counts["sent"] += len(batch)
                self._reached = True
            except HobnobError as error:  # logged once per outage
                level = logging.WARNING if self._reached else logging.DEBUG
                _log.log(level, "other gateways not told of changes, they will look themselves: %s", error)
                self._reached = False

    def take(self, payload: str) -> None:
        """Take a notification, of whoever sent it."""
        assert self._unpacker is not None
        try:
            sender, found = self._unpacker.unpack(payload)
        except (ValueError, KeyError, TypeError) as error:
            if time.monotonic() - self._ignored_logged_at > _IGNORED_LOGGED_S:  # anybody may send them
                self._ignored_logged_at = time.monotonic()
                _log.warning("notification ignored, as more may be: %s", error)
            return
        if sender != self._instance:
            self.counts["received"] += len(found)
            for message in found:
                self._inbox.put_nowait(message)

    async def handle(self) -> None:
        """Handle messages until cancelled."""
        while True:
            kind, payload = await self._inbox.get()
            if (handler := self._handlers.get(kind)) is None:
                continue
            try:
                if isinstance(waiting := handler(payload), Awaitable):
                    await waiting
            except HobnobError as error:
                _log.warning("message %s of another gateway not handled: %s", kind, error)
            except Exception:  # a fault of one handler must not keep later messages from the others
                _log.exception("message %s of another gateway not handled", kind)
