"""CPU of streaming a reply of 400 chunks through the OpenAI adapter, against a bare client on the same.

The floor reads what the network delivers with aiohttp, splits it and parses each chunk, nothing else. The
server runs in a process of its own, so that only the client is measured; the two take turns, so that the
load of the machine hits both. Chunks come in bursts, as from a proxy, and one by one, as from a model.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import aiohttp
import orjson

from bench import Figure
from hobnob.config import Settings
from hobnob.models import Finished, Model, Request
from hobnob.models.catalog import open_models

CHUNKS = 400
MANNERS = {"in bursts": (60, "/bursts"), "one by one": (12, "/paced")}  # rounds, and where the server does so
WARM_UP = 3  # rounds that pay for connecting and importing
BUDGET = 2.0


def run() -> list[Figure]:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{ours.recv()}"
        return [_figure(manner, url + path, rounds) for manner, (rounds, path) in MANNERS.items()]
    finally:
        server.terminate()
        server.join()


def _figure(manner: str, url: str, rounds: int) -> Figure:
    value, floor, ratio = asyncio.run(_measure(url, rounds))
    name = f"CPU of a streamed reply of 400 chunks, {manner}"
    return Figure(name, f"{value:.1f} ms", f"{floor:.1f} ms", ratio, f"< {BUDGET:.2f}", ratio < BUDGET)


async def _measure(url: str, rounds: int) -> tuple[float, float, float]:
    settings = Settings.model_validate({"models": {"providers": {"bench": {"baseUrl": url}}}})
    async with open_models(settings, {}) as models, aiohttp.ClientSession() as session:
        model = models.model("bench/m")
        values, floors = [], []
        for _ in range(rounds):
            floors.append(await _timed(lambda: _bare(session, f"{url}/chat/completions")))
            values.append(await _timed(lambda: _through(model)))
    value, floor = statistics.median(values[WARM_UP:]), statistics.median(floors[WARM_UP:])
    return value, floor, value / floor


async def _timed(step: Callable[[], Awaitable[None]]) -> float:
    start = time.process_time()
    await step()
    return (time.process_time() - start) * 1000


async def _through(model: Model) -> None:
    request = Request(model="m", system="", messages=[{"role": "user", "content": "Hi"}])
    events = [event async for event in model.stream(request)]
    assert isinstance(events[-1], Finished) and len(events) == CHUNKS + 1, events[-1]


async def _bare(session: aiohttp.ClientSession, url: str) -> None:
    chunks, rest = [], b""
    async with session.post(url, json={"messages": [{"role": "user", "content": "Hi"}]}) as response:
        async for read in response.content.iter_any():
            *lines, rest = (rest + read).split(b"\n")
            chunks += [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    assert len(chunks) == CHUNKS + 1


def _serve(port: Connection) -> None:
    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        data = b"data: " + orjson.dumps({**head, "choices": [choice]}) + b"\n\n"
        return b"%x\r\n%s\r\n" % (len(data), data)

    pieces = [chunk({"content": f" word{i}"}) for i in range(CHUNKS)] + [chunk({}, "stop")]
    pieces.append(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            await reader.readexactly(_length(head))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
            for piece in pieces:
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
