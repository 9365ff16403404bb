"""Kills a gateway while a node sends it a request, at every crash point of the turn, and starts it again.

The gateway runs in its own process; the node stays in this one, reconnects, and repeats what was not
acknowledged under the same key. Prints the name of each crash point when its case is done; the file `result`
in the folder of the point has the case.
"""

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from hobnob import crashpoints
from hobnob.api.auth import owner_token
from hobnob.api.server import open_server
from hobnob.client import open_client
from hobnob.gateway import api_services
from hobnob.store import entries, sessions, turns
from hobnob.testing import calls, rehearse

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tests.integration.node_client import NodeKey, approve, node_of

SCRIPT = [calls("session_status"), "All is well.", "Again?"]


def settings(key: NodeKey) -> dict[str, Any]:
    scripts = {f"agent:main:node-{key.id}": SCRIPT}
    return {
        "gateway": {"port": 0, "nodes": {"tools": ["session_status"]}},
        "models": {"rehearsal": {"scripts": scripts}},
    }


async def serve(home: Path, key: NodeKey) -> None:
    """Serve until the file `stop` appears; then report what is in the store."""
    async with rehearse(home, settings(key)) as gateway, open_server(api_services(gateway)) as url:
        (home / "address.new").write_text(json.dumps([url, owner_token(gateway.config)]))
        (home / "address.new").rename(home / "address")
        while not (home / "stop").exists():
            await asyncio.sleep(0.01)
        read, name = gateway.store.read, f"agent:main:node-{key.id}"
        for turn in await read(turns.open_of, name):
            await gateway.sessions.wait(turn.turn_id, 60)
        session = await read(sessions.get, name)
        kept = [entry.message for entry in await read(entries.history, session.session_id)]
        (home / "report").write_text(json.dumps(kept))


def start(home: Path, key: NodeKey, at: str | None) -> int:
    (home / "address").unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        crashpoints.armed = at
        asyncio.run(serve(home, key))
        os._exit(0)
    return pid


async def address(home: Path, pid: int) -> tuple[str, str]:
    while not (home / "address").exists():
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the gateway ended before it served"
        await asyncio.sleep(0.01)
    url, token = json.loads((home / "address").read_text())
    return url, token


async def send(home: Path, pid: int, key: NodeKey) -> Any:
    """Send the request as a node; the answer, or None when the gateway died first."""
    url, token = await address(home, pid)
    with suppress(Exception):
        async with node_of(url, token, key) as node, asyncio.timeout(20):
            sending = asyncio.ensure_future(
                node.event("agent.request", message="Report.", idempotencyKey="report")
            )
            closed = asyncio.ensure_future(node.socket.wait_closed())
            await asyncio.wait({sending, closed}, return_when=asyncio.FIRST_COMPLETED)
            closed.cancel()
            if sending.done():
                return sending.result()["payload"]["runId"]
            sending.cancel()
    return None


async def prepare(home: Path, pid: int, key: NodeKey) -> None:
    url, token = await address(home, pid)
    async with open_client(url, token) as owner, node_of(url, token, key) as node:
        await approve(owner, node)


def end(home: Path, pid: int) -> bool:
    """Let the gateway stop by itself, unless it was killed. True when it was killed."""
    (home / "stop").touch()
    _, status = os.waitpid(pid, 0)
    (home / "stop").unlink()
    return os.WIFSIGNALED(status)


def run_case(home: Path, point: str) -> dict[str, Any]:
    home.mkdir(parents=True)
    key = NodeKey()
    pid = start(home, key, None)
    asyncio.run(prepare(home, pid, key))
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pid = start(home, key, point)
    first = asyncio.run(send(home, pid, key))
    killed = end(home, pid)
    pid = start(home, key, None)
    again = asyncio.run(send(home, pid, key)) if first is None or killed else first
    assert not end(home, pid)
    kept = json.loads((home / "report").read_text())
    return {"killed": killed, "acknowledged": first, "again": again, "transcript": kept}


def main(base: Path) -> None:
    for point in crashpoints.TURN_POINTS:
        case = run_case(base / point / "home", point)
        (base / point / "result").write_text(json.dumps(case))
        print(point, flush=True)  # noqa: T201 - the test reads it


main(Path(sys.argv[1]))
