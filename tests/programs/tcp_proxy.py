"""A TCP proxy in front of the socket of PostgreSQL: `tcp_proxy.py PORT SOCKET`. It ends with its stdin.

Stopped with SIGSTOP it is a cut link: connections stay open, new ones are accepted by the kernel, and nothing
passes any more. What is under way arrives when it continues.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

CHUNK = 65_536


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


async def serve(port: int, socket: Path) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(socket)
        except OSError:
            writer.close()
            return
        await asyncio.gather(relay(reader, server_writer), relay(server_reader, writer))

    async with await asyncio.start_server(connected, "127.0.0.1", port):
        print("ready", flush=True)  # noqa: T201 - the test reads it
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
