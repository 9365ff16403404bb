"""What uvicorn runs connections with: bounded from the first byte, written to in few strokes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

FIRST_FRAME_BYTES = 64 * 1024  # of whoever has not said yet who they are
FRAME_BYTES = 25 * 1024 * 1024
JOINED_BYTES = 64 * 1024
REQUEST_S = 15.0  # for the head of a request
HEAD_BYTES = 64 * 1024
HTTP_CONNECTIONS = 2_000  # open at a time; one that becomes a WebSocket does not count any more
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


class CoalescingTransport:
    """A transport whose writes of one round of the loop leave together.

    A turn tells its listeners five things or more, and a system call for each costs more than making them.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self._leave)
        self._waiting.append(data)
        self._bytes += len(data)
        if self._bytes > JOINED_BYTES:  # now: only the transport can tell the sender to wait
            self._leave()

    def close(self) -> None:
        self._leave()
        self._transport.close()

    def _leave(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting and not self._transport.is_closing():
            self._transport.write(b"".join(waiting))


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection. The application finds it in its scope, to allow larger frames or to cut it off."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accept_frames(FIRST_FRAME_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(
            cast(asyncio.Transport, CoalescingTransport(cast(asyncio.Transport, transport)))
        )

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):  # not when the request was no proper one
            cast(dict[str, Any], self.scope)["hobnob.wire"] = self

    def shutdown(self) -> None:
        if self.handshake_complete and self.conn.state is not State.OPEN:  # the client is leaving as well
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:  # it asks and does not read: the answers would pile up
            self.abort()

    def accept_frames(self, most: int) -> None:
        """How large a frame may be. A larger one ends the connection before it is read."""
        self.conn.max_message_size = most

    async def tell(self, text: str) -> None:
        """Send a frame, without the detour through the application's interface. Waits for a slow reader."""
        if not self.writable.is_set():
            await self.writable.wait()
        if not self.tell_now(text):
            raise WebSocketDisconnect

    def tell_now(self, text: str) -> bool:
        """Send a frame whether there is room or not. False when the connection is over, or about to be."""
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            return False
        self.conn.send_text(text.encode())
        self.transport.write(b"".join(self.conn.data_to_send()))
        return True

    def abort(self) -> None:
        """End the connection now, whatever has not been sent."""
        self.transport.abort()


class HttpProtocol(HttpToolsProtocol):
    """A connection over HTTP. Whoever does not get the head of a request together in time is let go."""

    _patience: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _whole = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > HTTP_CONNECTIONS and self._is_full():
            transport.write(_FULL)
            transport.close()

    def _is_full(self) -> bool:
        return sum(isinstance(each, HttpProtocol) for each in self.connections) > HTTP_CONNECTIONS

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._patience is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._whole = False
        self._wait()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._whole = True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._whole:  # it was answered before all of it was read, and nobody will read the rest
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(REQUEST_S, self.transport.close)
            self._head_bytes = 0

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
