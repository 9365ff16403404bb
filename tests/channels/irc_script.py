"""An IRC server that follows a script: for what no real server does on demand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Script = Callable[["Client"], Awaitable[None]]


class Client:
    """The connection of the bot, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, *lines: str) -> None:
        for line in lines:
            self.write_raw(f"{line}\r\n".encode())

    def write_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def expect(self, beginning: str) -> str:
        """The next line that begins like this."""
        while line := (await self._reader.readline()).decode():
            if line.startswith(beginning):
                return line.rstrip("\r\n")
        raise ConnectionError(f"the bot left; {beginning!r} was expected")

    async def welcome(self, nick: str = "hobbot") -> None:
        """Register the bot and let it into its room."""
        self.write(":irc.example.net CAP * LS :")
        await self.expect("CAP END")
        self.write(
            f":irc.example.net 001 {nick} :Welcome", ":irc.example.net 005 hobbot CASEMAPPING=ascii :are"
        )
        await self.expect("JOIN")
        self.write(f":{nick}!u@h JOIN #hobnob")


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[int]:
    """A server that runs the script for each connection. Yields its port."""
    failures: list[Exception] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(Client(reader, writer))
        except (ConnectionError, asyncio.IncompleteReadError) as gone:
            failures.append(gone)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
