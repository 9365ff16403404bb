"""A connection to WhatsApp Web through the library neonize (the extra `whatsapp-web`).

The library runs in threads of its own and calls us back on the event loop; here its events become a queue.
Its database, with the keys of the linked device, is in the folder of the account.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from hobnob import statedir
from hobnob.channels import Disconnected, LoginNeeded

DATABASE = "whatsapp.db"
EVENTS = (
    "ConnectedEv",
    "DisconnectedEv",
    "MessageEv",
    "LoggedOutEv",
    "StreamReplacedEv",
    "TemporaryBanEv",
    "ConnectFailureEv",
    "ClientOutdatedEv",
)
QR = "qr"
_WAITING = 1000
_STOP_S = 10.0
_log = logging.getLogger(__name__)
NOT_LINKED = "No phone is linked yet: hobnob channels login whatsapp"


def library(name: str) -> Any:
    """A module of neonize. Importing it loads a native library of 19 MB."""
    try:
        return importlib.import_module(f"neonize.{name}")
    except ImportError as error:
        missing = "libmagic is missing" if "magic" in str(error) else "pip install 'hobnob[whatsapp-web]'"
        raise LoginNeeded(f"WhatsApp Web needs more packages: {missing}.") from error


def new_client(database: Path) -> Any:
    """A client of the library, not yet connected."""
    # When an older client is garbage collected, the library ends the one that has its id.
    return library("aioze.client").NewAClient(str(database), uuid=uuid4().hex)


class Session:
    """A running client. `events` are pairs of the name of an event and what the library reported."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(_WAITING)
        self._connecting: asyncio.Task[None] | None = None
        self._is_overrun = False
        kinds = library("aioze.events")
        for name in EVENTS:
            client.event(getattr(kinds, name))(self._handler(name))
        client.qr(self._handler(QR))

    def _handler(self, name: str) -> Callable[[Any, Any], Any]:
        async def handle(_: Any, event: Any) -> None:
            try:
                self._events.put_nowait((name, event))
            except asyncio.QueueFull:
                self._is_overrun = True

        return handle

    async def start(self) -> None:
        # The library reports events to the first event loop that it was ever used in, if it knows one.
        library("aioze.events").event_global_loop = None
        self._connecting = await self.client.connect()

    async def next_event(self) -> tuple[str, Any]:
        """The next event. Raises Disconnected when the client has ended, or is faster than the store."""
        assert self._connecting is not None
        if self._is_overrun:
            raise Disconnected("WhatsApp sends messages faster than they can be stored.")
        getting = asyncio.ensure_future(self._events.get())
        try:
            await asyncio.wait({getting, self._connecting}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
        finally:
            getting.cancel()
        reason = None if self._connecting.cancelled() else self._connecting.exception()
        raise Disconnected(f"WhatsApp cannot be reached: {reason or 'the connection ended'}.")

    async def stop(self) -> None:
        """End the client and its thread."""
        await self.client.stop()
        if self._connecting is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await asyncio.wait({self._connecting})
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)


@asynccontextmanager
async def open_session(folder: Path) -> AsyncIterator[Session]:
    """Connect, and end the client afterwards. Raises LoginNeeded, Disconnected."""
    database = folder / DATABASE
    os.close(statedir.open_private(database, os.O_CREAT | os.O_RDWR))  # else the library makes it readable
    session = Session(new_client(database))
    try:
        await session.start()
        yield session
    finally:
        await session.stop()


def forget(folder: Path) -> None:
    """Remove the keys of the linked device."""
    for file in folder.glob(f"{DATABASE}*"):
        file.unlink(missing_ok=True)


def ended(name: str, event: Any) -> Exception | None:
    """What an event means for the connection; None if it goes on."""
    match name:
        case "LoggedOutEv":
            return LoginNeeded(f"The phone has removed this device. {NOT_LINKED}")
        case "TemporaryBanEv":
            return LoginNeeded(f"WhatsApp has banned this number for a while (code {event.Code}).")
        case "ClientOutdatedEv":
            return LoginNeeded("WhatsApp no longer accepts this version: pip install --upgrade neonize.")
        case "StreamReplacedEv":
            return Disconnected("Another program uses the same login.")
        case "ConnectFailureEv":
            return Disconnected(f"WhatsApp refused the connection: {event.Message or event.Reason}.")
        case "qr":
            return LoginNeeded(NOT_LINKED)
    return None
