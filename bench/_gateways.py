"""Servers in their own process: a gateway, and a bare echo server as the floor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOKEN = "bench-token-of-a-minute"  # noqa: S105 - of a temporary gateway

_BARE_SERVER = """
import asyncio, orjson, uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

async def echo(socket):
    await socket.accept()
    while True:
        frame = orjson.loads(await socket.receive_text())
        answer = {"type": "res", "id": frame["id"], "ok": True, "payload": {}}
        await socket.send_text(orjson.dumps(answer).decode())

app = Starlette(routes=[WebSocketRoute("/", echo)])
config = uvicorn.Config(app, port=0, ws="websockets-sansio", loop="uvloop", log_config=None,
                        ws_per_message_deflate=False)
server = uvicorn.Server(config)

async def main():
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print("ws://127.0.0.1:%d" % server.servers[0].sockets[0].getsockname()[1], flush=True)
    await task

import uvloop
uvloop.run(main())
"""


@contextmanager
def gateway(home: Path, settings: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Run `hobnob serve` with these settings. Yields its URL and process id."""
    settings = {"gateway": {"port": 0, "auth": {"token": TOKEN}}, **settings}
    (home / "hobnob.json5").write_text(json.dumps(settings))
    with _process([sys.executable, "-u", "-m", "hobnob", "serve"], {"HOBNOB_HOME": str(home)}) as started:
        yield started


@contextmanager
def bare_server() -> Iterator[tuple[str, int]]:
    """Run a server that only echoes frames, as the floor. Yields its URL and process id."""
    with _process([sys.executable, "-u", "-c", _BARE_SERVER], {}) as started:
        yield started


@contextmanager
def bare_process(*words: str) -> Iterator[tuple[str, int]]:
    """Run a Python program that prints its URL, as a floor. Yields its URL and process id."""
    with _process([sys.executable, "-u", *words], {}) as started:
        yield started


@contextmanager
def _process(command: list[str], env: dict[str, str]) -> Iterator[tuple[str, int]]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(  # noqa: S603 - a fixed command
        command, env=inherited | env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        url = next(word for word in process.stdout.readline().split() if word.startswith("ws://"))
        yield url.rstrip("."), process.pid
    finally:
        process.kill()
        process.wait()


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_s(pid: int) -> float:
    """The CPU time a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_ns(pid: int) -> int:
    """The CPU time of the threads a process has now, in nanoseconds."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
