"""A model server in a process of its own: OpenAI's chat completions, as fast as a plain socket can be.

The path says how it answers: `/bursts` and `/paced` with 400 chunks, `/short` with one, `/soon` with one a
moment later, `/slow` with one after a long while.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import orjson

CHUNKS = 400
AFTER_S = {"short": 0.0, "soon": 0.05, "slow": 60.0}  # with one chunk


@contextmanager
def model_server() -> Iterator[str]:
    """Run it. Yields its address."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        server.terminate()
        server.join()


def _serve(port: Connection) -> None:
    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        data = b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n"
        return b"%x\r\n%s\r\n" % (len(data), data)

    pieces = [chunk({"content": f" word{i}"}) for i in range(CHUNKS)] + [chunk({}, "stop")]
    pieces.append(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    short = [pieces[0], *pieces[-2:]]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            await reader.readexactly(_length(head))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
            after_s = AFTER_S.get(head.split(b"/", 2)[1].decode())
            if after_s:
                await asyncio.sleep(after_s)
            for piece in pieces if after_s is None else short:
                writer.write(piece)
                await asyncio.sleep(0.0003 if b"/paced/" in head else 0)
            await writer.drain()

    async def serve() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port.send(server.sockets[0].getsockname()[1])
            await server.serve_forever()

    asyncio.run(serve())


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _length(head: bytes) -> int:
    return next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
