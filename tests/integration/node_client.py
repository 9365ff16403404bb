"""A node for tests: it speaks the protocol over a real WebSocket, and answers what the test says."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.waiting import LIMIT_S
from websockets.asyncio.client import ClientConnection, connect

CLIENT = {
    "id": "node-host",
    "displayName": "Build Node",
    "version": "1",
    "platform": "linux",
    "deviceFamily": "Linux",
    "mode": "node",
}
COMMANDS = ["system.notify", "system.run", "system.run.prepare", "system.which"]
AWAY = {"X-Forwarded-For": "192.0.2.7"}  # as a proxy adds it that nobody told the gateway of


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class NodeKey:
    """The device key of a node."""

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.public = self.key.public_key().public_bytes_raw()
        self.id = hashlib.sha256(self.public).hexdigest()

    def params(self, challenge: Any, token: str, **changes: Any) -> dict[str, Any]:
        """The parameters of connect. `device` in changes makes the identity wrong after it was signed."""
        role, client = changes.pop("role", "node"), CLIENT | changes.pop("client", {})
        signed = ["v3", self.id, client["id"], client["mode"], role, "", challenge["ts"], token]
        text = "|".join(map(str, [*signed, challenge["nonce"], "linux", "linux"]))
        device = {
            "id": self.id,
            "publicKey": b64(self.public),
            "signature": b64(self.key.sign(text.encode())),
            "signedAt": challenge["ts"],
            "nonce": challenge["nonce"],
        }
        params = {"minProtocol": 4, "maxProtocol": 4, "client": client, "role": role, "scopes": []}
        params |= {"caps": ["system"], "commands": COMMANDS, "auth": {"token": token}}
        return params | {"device": device | changes.pop("device", {})} | changes


class FakeNode:
    """A connected node. `requests` are the commands it was asked to run; `events` is everything else."""

    def __init__(self, socket: ClientConnection, key: NodeKey, hello: Any) -> None:
        self.socket = socket
        self.key = key
        self.hello = hello
        self.requests: asyncio.Queue[Any] = asyncio.Queue()
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._count = 0

    async def call(self, method: str, **params: Any) -> Any:
        """The answer to a request, as a frame."""
        self._count += 1
        name = f"n{self._count}"
        answer = self._answers[name] = asyncio.get_running_loop().create_future()
        await self.socket.send(json.dumps({"type": "req", "id": name, "method": method, "params": params}))
        async with asyncio.timeout(LIMIT_S):
            return await answer

    async def event(self, event: str, **payload: Any) -> Any:
        return await self.call("node.event", event=event, payloadJSON=json.dumps(payload))

    async def asked(self) -> Any:
        """The next command it is asked to run."""
        async with asyncio.timeout(LIMIT_S):
            return await self.requests.get()

    async def heard(self, event: str) -> Any:
        """The payload of the next event of this name."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = await self.events.get()
                if found["event"] == event:
                    return found["payload"]

    async def answer(self, request: Any, payload: Any, **more: Any) -> Any:
        names = {"id": request["id"], "nodeId": self.key.id}
        return await self.call("node.invoke.result", **(names | {"ok": True, "payload": payload} | more))

    async def read(self) -> None:
        async for text in self.socket:
            frame = json.loads(text)
            if frame["type"] == "res":
                if (waiting := self._answers.pop(frame["id"], None)) and not waiting.done():
                    waiting.set_result(frame)
            elif frame["event"] == "node.invoke.request":
                self.requests.put_nowait(frame["payload"])
            else:
                self.events.put_nowait(frame)


async def sign_in(socket: ClientConnection, key: NodeKey, token: str, **changes: Any) -> Any:
    """The answer to connect."""
    async with asyncio.timeout(LIMIT_S):
        challenge = json.loads(await socket.recv())["payload"]
        params = key.params(challenge, token, **changes)
        await socket.send(json.dumps({"type": "req", "id": "1", "method": "connect", "params": params}))
        return json.loads(await socket.recv())


@asynccontextmanager
async def node_of(
    url: str, token: str, key: NodeKey | None = None, headers: Any = None, **changes: Any
) -> AsyncIterator[FakeNode]:
    """A node that is connected, approved or not."""
    key = key or NodeKey()
    async with connect(url, additional_headers=headers, compression=None, max_size=None) as socket:
        hello = await sign_in(socket, key, token, **changes)
        assert hello["ok"], hello
        node = FakeNode(socket, key, hello["payload"])
        reading = asyncio.create_task(_reading(node))
        try:
            yield node
        finally:
            reading.cancel()


async def _reading(node: FakeNode) -> None:
    try:
        await node.read()
    except Exception:  # noqa: S110 - the connection was closed; the test looks at what it got
        pass


async def refused(url: str, token: str, key: NodeKey, headers: Any = None, **changes: Any) -> Any:
    """The error of a sign-in that is refused."""
    async with connect(url, additional_headers=headers, compression=None) as socket:
        answer = await sign_in(socket, key, token, **changes)
        assert not answer["ok"], answer
        return answer["error"]


async def approve(owner: Any, node: FakeNode | NodeKey) -> Any:
    """Approve what a node asks for."""
    key = node.key if isinstance(node, FakeNode) else node
    pending = (await owner.call("node.pair.list"))["pending"]
    request = next(row["requestId"] for row in pending if row["nodeId"] == key.id)
    return await owner.call("node.pair.approve", requestId=request)
