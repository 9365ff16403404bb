"""A gateway in a process of its own, and a bare server to hold it against."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOKEN = "bench-token-of-a-minute"  # noqa: S105 - of a gateway that lives for a minute

_BARE = """
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
    """The address and the process id of `hobnob serve` with these settings."""
    settings = {"gateway": {"port": 0, "auth": {"token": TOKEN}}, **settings}
    (home / "hobnob.json5").write_text(json.dumps(settings))
    with _process([sys.executable, "-u", "-m", "hobnob", "serve"], {"HOBNOB_HOME": str(home)}) as found:
        yield found


@contextmanager
def bare_server() -> Iterator[tuple[str, int]]:
    """A server that does nothing but answer frames: what the wire itself costs."""
    with _process([sys.executable, "-u", "-c", _BARE], {}) as found:
        yield found


@contextmanager
def _process(command: list[str], env: dict[str, str]) -> Iterator[tuple[str, int]]:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(  # noqa: S603 - ours
        command, env=own | env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
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
    """What a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
