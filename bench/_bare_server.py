"""The floor of an operation: the least that a server with the same network, model and disk has to do.

One WebSocket frame is one operation. `turn` calls the model and commits what a turn commits; `append` commits
one row; `list` reads rows and encodes them; `publish` commits one row and sends it to every connection;
anything else is an echo.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys

import aiohttp
import orjson
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

ROWS = 10_000
TURN_COMMITS = 3  # accept, claim with the input, end with the answer

_ROW = orjson.dumps({"key": "agent:main:hook:1", "kind": "hook", "label": "x" * 60, "updatedAt": 1}).decode()


class Server:
    def __init__(self, folder: str, model: str) -> None:
        self._model = model
        self._http: aiohttp.ClientSession | None = None
        self._sockets: set[WebSocket] = set()
        self._db = sqlite3.connect(f"{folder}/bare.db", isolation_level=None)
        self._db.executescript("pragma journal_mode = wal; pragma synchronous = full;")
        self._db.execute("create table rows (id integer primary key, body text not null)")
        with self._db:
            self._db.executemany("insert into rows (body) values (?)", [(_ROW,)] * ROWS)

    async def serve(self, socket: WebSocket) -> None:
        await socket.accept()
        self._sockets.add(socket)
        self._http = self._http or aiohttp.ClientSession()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    frame = orjson.loads(await socket.receive_text())
                    group.create_task(self._answer(socket, frame))
        except* WebSocketDisconnect:
            self._sockets.discard(socket)

    async def _answer(self, socket: WebSocket, frame: dict[str, object]) -> None:
        payload: object = {}
        match frame["method"]:
            case "turn":
                for _ in range(TURN_COMMITS - 1):
                    self._commit()
                payload = await self._call_model()
                self._commit()
            case "append":
                self._commit()
            case "publish":
                self._commit()
                for each in self._sockets - {socket}:
                    await each.send_text(_ROW)
            case "list":
                limit = frame["params"]
                found = self._db.execute("select body from rows order by id limit ?", (limit,))
                payload = [orjson.loads(body) for (body,) in found]
        answer = {"type": "res", "id": frame["id"], "ok": True, "payload": payload}
        await socket.send_text(orjson.dumps(answer).decode())

    def _commit(self) -> None:
        self._db.execute("begin immediate")
        self._db.execute("insert into rows (body) values (?)", (_ROW,))
        self._db.execute("commit")

    async def _call_model(self) -> int:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        assert self._http is not None
        async with self._http.post(f"{self._model}/short/chat/completions", json=body) as response:
            return len(await response.read())


async def main(folder: str, model: str) -> None:
    app = Starlette(routes=[WebSocketRoute("/", Server(folder, model).serve)])
    config = uvicorn.Config(
        app, port=0, ws="websockets-sansio", loop="uvloop", log_config=None, ws_per_message_deflate=False
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    print(f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", flush=True)
    await task


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
