"""uvicorn protocols with limits from the first byte and write coalescing."""

from __future__ import annotations

import asyncio
import struct
from importlib import metadata
from typing import Any, cast

import uvicorn
from starlette.websockets import WebSocketDisconnect
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.http11 import Request
from websockets.protocol import State
from websockets.uri import parse_uri

from hobnob.api.budgets import COUNTED_BYTES, Account, Budgets, Slot
from hobnob.errors import LimitReached, UnsupportedVersion

FIRST_FRAME_BYTES = 64 * 1024  # before authentication
COALESCED_BYTES = 64 * 1024
HEAD_BYTES = 64 * 1024
AHEAD_BYTES = 2 * 1024 * 1024  # sent before the request in front is answered; more arrive only by mistake
CLOSE_S = 5.0  # for the client to read the rest after the connection is closed
_END_OF_HEAD = b"\r\n\r\n"
_BODY_PIECE = 1024


class CoalescingTransport:
    """A transport that joins the writes of one event-loop iteration into one system call.

    A turn sends its subscribers five frames or more; a system call for each costs more than encoding it.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._pending: list[bytes] = []
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)
        self._bytes += len(data)
        if self._bytes > COALESCED_BYTES:  # flush now: only the transport can apply back-pressure
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        pending, self._pending, self._bytes = self._pending, [], 0
        if pending and not self._transport.is_closing():
            self._transport.write(b"".join(pending))


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket connection. Its scope holds it, so that the application can set the frame limit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.slot: Slot | None = None
        self._arrived = 0  # bytes of the message that is arriving
        self._counted = 0  # of these, how many are charged to the credential

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(
            cast(asyncio.Transport, CoalescingTransport(cast(asyncio.Transport, transport)))
        )

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):  # absent when the request was invalid
            cast(dict[str, Any], self.scope)["hobnob.wire"] = self

    def connection_lost(self, exc: Exception | None) -> None:
        self._count_bytes(0)
        if self.slot is not None:
            self.slot.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._arrived += len(data)
        super().data_received(data)
        if self._arrived > COUNTED_BYTES:
            try:
                self._count_bytes(self._arrived)
            except LimitReached as error:
                self._fail(1013, f"{error.reported_code}: {error.fix}")

    def _count_bytes(self, arrived: int) -> None:
        """Charge the bytes of an unfinished message to the credential. Raises LimitReached."""
        account = self.slot.account if self.slot is not None else None
        self._arrived = arrived
        if account is not None and arrived != self._counted:
            account.take("bytes_in_flight", arrived - self._counted)
            self._counted = arrived

    def sign_in(self, account: Account) -> None:
        """Charge the connection to a credential. Raises LimitReached."""
        if self.slot is not None:
            self.slot.sign_in(account)

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self.loop.call_later(CLOSE_S, self.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(CLOSE_S, self.abort)

    def send_receive_event_to_app(self) -> None:
        """Queue a message, as uvicorn does. Text that is not UTF-8 closes the connection, no traceback."""
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        self._count_bytes(0)
        if self.close_sent:
            return
        if self.curr_msg_data_type == "bytes":
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data, "text": None})
        else:
            try:
                self.queue.put_nowait({"type": "websocket.receive", "bytes": None, "text": data.decode()})
            except UnicodeDecodeError:
                self.conn.send_close(1007)
                self.handle_parser_exception()
                return
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def shutdown(self) -> None:
        if self.handshake_complete and self.conn.state is not State.OPEN:  # the client is closing as well
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:  # it pings and does not read: pongs would pile up
            self.abort()

    def set_max_frame(self, size: int) -> None:
        """Set the largest frame. A larger one closes the connection before it is read.

        `check_frame_limits` asserts at the start that this works.
        """
        self.conn.max_message_size = size

    async def send_text(self, text: bytes) -> None:
        """Send a frame of UTF-8 directly, not through the ASGI interface. Waits for a slow reader."""
        if not self.writable.is_set():
            await self.writable.wait()
        if not self.send_text_nowait(text):
            raise WebSocketDisconnect

    def send_text_nowait(self, text: bytes) -> bool:
        """Send a frame without waiting. False when the connection is closed or closing.

        The frame is made here: without extensions it is a head and the text, and `conn` takes ten times as
        long for it.
        """
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            return False
        self.transport.write(text_head(len(text)) + text)
        return True

    def abort(self) -> None:
        """Close the connection at once, without sending what is buffered."""
        self.transport.abort()


def text_head(size: int) -> bytes:
    """The head of an unfragmented text frame of a server (RFC 6455, section 5.2)."""
    final_text = 0x81
    if size < 126:
        return bytes((final_text, size))
    return (
        struct.pack("!BBH", final_text, 126, size)
        if size < 65536
        else struct.pack("!BBQ", final_text, 127, size)
    )


def check_frame_limits(config: uvicorn.Config, largest: int) -> None:
    """Assert that frames over the limit are refused by their header. Raises UnsupportedVersion.

    The limit of a connection before authentication is `ws_max_size`; `set_max_frame` raises it to `largest`.
    """
    expected = {
        (None, FIRST_FRAME_BYTES): False,
        (None, FIRST_FRAME_BYTES + 1): True,
        (largest, largest): False,
        (largest, largest + 1): True,
    }
    if {case: _is_refused(config, *case) for case in expected} != expected:
        installed = " and ".join(f"{name} {metadata.version(name)}" for name in ("uvicorn", "websockets"))
        raise UnsupportedVersion(
            f"The limits of WebSocket frames do not hold with {installed}.",
            fix="Install the versions in requirements.lock, or others that Hobnob supports.",
        )


def _is_refused(config: uvicorn.Config, limit: int | None, size: int) -> bool:
    """Whether a connection refuses a frame of this size, once it has the frame's header."""
    wire = WebSocketProtocol(config, ServerState(), {})
    client = ClientProtocol(parse_uri("ws://localhost/"))
    client.send_request(client.connect())
    wire.conn.receive_data(b"".join(client.data_to_send()))
    for request in wire.conn.events_received():
        wire.conn.send_response(wire.conn.accept(cast(Request, request)))
    if limit is not None:
        wire.set_max_frame(limit)
    text, masked_with_8_byte_length, mask = 0x81, 0xFF, bytes(4)
    wire.conn.receive_data(struct.pack("!BBQ", text, masked_with_8_byte_length, size) + mask)
    return wire.conn.state is not State.OPEN


class HttpProtocol(HttpToolsProtocol):
    """An HTTP connection. It reads the next request only when the one before is answered.

    One whose request head is late or too large is closed.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _abort_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _complete = True

    def __init__(self, *args: Any, budgets: Budgets, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._budgets = budgets
        self._unread = b""  # what follows a request that is not answered yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.slot = self._budgets.connect(self.client[0] if self.client else "", transport.abort)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unread = self._unread + data if self._unread else data
        self._read()
        if len(self._unread) > (HEAD_BYTES if self.slot.account is None else AHEAD_BYTES):
            self.transport.abort()

    def _read(self) -> None:
        """Parse what has arrived, up to the end of one request. A piece holds at most one end of a head."""
        while self._unread and not self._answering and not self.transport.is_closing():
            end = self._unread.find(_END_OF_HEAD)
            size = len(self._unread) if end < 0 else end + len(_END_OF_HEAD)
            if not self._complete and self._head_timer is None:  # in a body, which may contain such ends
                size = max(size, _BODY_PIECE)
            piece, self._unread = self._unread[:size], self._unread[size:]
            self._head_bytes += len(piece)
            super().data_received(piece)
            if self._head_timer is not None and self._head_bytes > HEAD_BYTES:
                self.transport.close()
        if self._unread:
            self.flow.pause_reading()

    @property
    def _answering(self) -> bool:
        """Whether a request has arrived as a whole and is not answered yet."""
        cycle = self.cycle
        return self._complete and cycle is not None and not cycle.response_complete

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._complete = False
        self._start_head_timer()

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self.slot.has_asked = True
        cast(dict[str, Any], self.scope)["hobnob.slot"] = self.slot
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._complete = True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._complete:  # answered before the body was read: nobody will read the rest
            self.transport.close()
        elif self._unread:
            self._unset_keepalive_if_required()
            self._read()
        if self.transport.is_closing():
            self._abort_soon()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_soon()

    def _abort_soon(self) -> None:
        """A connection that is closed stays open until the client has read everything: not for ever."""
        if self._abort_timer is None:
            self._abort_timer = self.loop.call_later(CLOSE_S, self.transport.abort)

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        self._unread = b""  # a client speaks only after the response
        if isinstance(upgraded := self.transport.get_protocol(), WebSocketProtocol):
            upgraded.slot = self.slot

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self.slot.close()
        super().connection_lost(exc)

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            wait_s = self._budgets.limits.sign_in_seconds
            self._head_timer = self.loop.call_later(wait_s, self.transport.close)
            self._head_bytes = 0

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
