"""A proxy between the bot and a real server, so that a test can lose a receipt or cut the connection."""

import asyncio
from collections.abc import Callable


class Proxy:
    """Passes bytes between the bot and the server, and can end a connection after a message went through."""

    def __init__(
        self, port: int, *, is_message: Callable[[bytes], bool], is_receipt: Callable[[bytes], bool]
    ) -> None:
        self._port = port
        self._is_message = is_message
        self._is_receipt = is_receipt
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._ended = asyncio.Event()
        self._lose = False
        self.seen = b""
        """What the bot wrote."""
        self.port = 0

    async def start(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End all connections and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        while self._open:
            self._ended.clear()
            for writer in self._open:
                writer.transport.abort()
            await self._ended.wait()

    def lose_receipt_once(self) -> None:
        self._lose = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            upstream, up = await asyncio.open_connection("127.0.0.1", self._port)
            cut = asyncio.Event()
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._from_bot(reader, up, cut))
                    group.create_task(self._to_bot(upstream, writer, cut))
            except* (ConnectionError, EOFError):
                pass
            finally:
                up.close()
        except OSError:  # the server is gone
            pass
        finally:
            writer.close()
            self._open.discard(writer)
            self._ended.set()

    async def _from_bot(
        self, reader: asyncio.StreamReader, up: asyncio.StreamWriter, cut: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            self.seen += data
            if self._lose and self._is_message(data):
                self._lose = False
                cut.set()
            up.write(data)
        raise EOFError

    async def _to_bot(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: asyncio.Event
    ) -> None:
        while data := await upstream.read(65536):
            if cut.is_set():
                if self._is_receipt(data):  # the server has the message
                    break
                continue
            writer.write(data)
        raise EOFError
