"""A model server in its own process: OpenAI's chat completions over a plain socket.

The path selects the answer: `/bursts` and `/paced` send 400 chunks, `/summary` after 200 ms; `/short` sends
one at once, `/soon` after 50 ms, `/slow` after a minute.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import orjson

CHUNKS = 400
DELAY_S = {"soon": 0.05, "summary": 0.2, "slow": 60.0}  # before the first chunk
SHORT = {"short", "soon", "slow"}  # answers of one chunk


@contextmanager
def model_server() -> Iterator[str]:
    """Run the server. Yields its URL."""
    receiver, sender = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(sender,), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}"
    finally:
        server.terminate()
        server.join()


def _serve(port_sender: Connection) -> None:
    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        data = b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n"
        return b"%x\r\n%s\r\n" % (len(data), data)

    pieces = [chunk({"content": f" word{i}"}) for i in range(CHUNKS)] + [chunk({}, "stop")]
    pieces.append(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    short = [pieces[0], *pieces[-2:]]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _read_head(reader):
            await reader.readexactly(_content_length(head))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
            path = head.split(b"/", 2)[1].decode()
            await asyncio.sleep(DELAY_S.get(path, 0.0))
            for piece in short if path in SHORT else pieces:
                writer.write(piece)
                await asyncio.sleep(0.0003 if b"/paced/" in head else 0)
            await writer.drain()

    async def serve() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port_sender.send(server.sockets[0].getsockname()[1])
            await server.serve_forever()

    asyncio.run(serve())


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _content_length(head: bytes) -> int:
    return next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
