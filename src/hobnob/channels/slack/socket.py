"""A connection of Socket Mode: frames in, answers to envelopes out."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from hobnob import json_input
from hobnob.channels import Disconnected, LoginNeeded
from hobnob.channels.http import proxy_for

if TYPE_CHECKING:
    import aiohttp

MAX_FRAME_BYTES = 4 * 1024 * 1024
_HELLO_S = 15.0
_PING_EVERY_S = 20.0
_CLOSE_S = 2.0
_log = logging.getLogger(__name__)


class ReconnectRequested(Exception):
    """Slack asks for a new connection. The old one ends in some seconds."""


class Connection:
    """`others`: how many other connections this app had when Slack said hello."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.others = 0

    @classmethod
    async def open(cls, http: aiohttp.ClientSession, url: str) -> Connection:
        """Connect, and wait until Slack says hello. Raises Disconnected."""
        import aiohttp

        try:
            socket = await http.ws_connect(
                url,
                proxy=proxy_for(url),
                heartbeat=_PING_EVERY_S,
                max_msg_size=MAX_FRAME_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
            )
        except aiohttp.WSServerHandshakeError as error:  # its text has the address, and that has a ticket
            raise Disconnected(f"Slack refused the connection: status {error.status}.") from None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise Disconnected(f"Slack cannot be reached: {type(error).__name__}.") from None
        connection = cls(socket)
        try:
            hello = await connection._receive(_HELLO_S)
            if hello is None or hello.get("type") != "hello":
                raise Disconnected("Slack did not say hello.")
        except BaseException:
            await connection.close()
            raise
        connection.others = _other_connections(hello)
        return connection

    async def envelopes(self) -> AsyncGenerator[dict[str, Any]]:
        """What Slack wants answered. Raises ReconnectRequested, Disconnected, LoginNeeded."""
        while (frame := await self._receive()) is not None:
            if frame.get("type") == "disconnect":
                reason = str(frame.get("reason"))[:100]
                if reason == "link_disabled":
                    raise LoginNeeded(
                        "Socket Mode is switched off for this app: switch it on in the app's settings."
                    )
                if reason in ("warning", "refresh_requested"):
                    raise ReconnectRequested
                raise Disconnected(f"Slack ended the connection: {reason}.")
            if isinstance(frame.get("envelope_id"), str):
                yield frame
        raise Disconnected(f"The connection to Slack was lost (code {self._socket.close_code}).")

    async def acknowledge(self, envelope_id: str) -> None:
        """Tell Slack that an envelope is stored. If the connection is gone, Slack sends it again."""
        try:
            await self._socket.send_json({"envelope_id": envelope_id})
        except (OSError, RuntimeError):
            _log.info("envelope stored, but not acknowledged: Slack will send it again")

    async def close(self) -> None:
        await self._socket.close()

    async def _receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next frame that is a JSON object; None when the connection has ended."""
        import aiohttp

        while True:
            try:
                message = await self._socket.receive(timeout_s)
            except TimeoutError:
                return None
            if message.type is aiohttp.WSMsgType.TEXT:
                try:
                    frame = json_input.loads(message.data)
                except ValueError as error:
                    _log.warning("frame from Slack skipped: %s", error)
                    continue
                if isinstance(frame, dict):
                    return frame
            elif message.type is not aiohttp.WSMsgType.BINARY:
                return None


def _other_connections(hello: dict[str, Any]) -> int:
    number = hello.get("num_connections")
    return number - 1 if isinstance(number, int) else 0
