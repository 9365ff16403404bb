"""A random load on the gateways of a cluster, by clients that keep a record of what was acknowledged.

A client that gets no answer asks another gateway, with the same idempotency key, as one behind a load
balancer does.
"""

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.cluster.harness import FULL, TOKEN, Cluster, GatewayProcess
from tests.waiting import LIMIT_S

from hobnob.client import Client
from hobnob.errors import GatewayLost, GatewayUnreachable, RpcFailed

_ANSWER_S = 4.0  # a gateway that takes longer to answer is taken for dead, and another one is asked
_AVOIDED_S = 1.0
_PAUSE_S = 0.5  # between two messages of a chat
_TALK_PAUSE_S = 10.0 if FULL else 0.5  # of somebody who writes: few cores run 200 sessions
_PATIENCE_S = 10 * LIMIT_S if FULL else LIMIT_S
_AGAIN = {"store.failed", "store.closed", "store.in_use", "stopping"}  # refusals that another may not give


@dataclass(frozen=True)
class Accepted:
    """A message that a gateway has acknowledged. Its text begins with the marker."""

    session_key: str
    marker: str


def _as_text(calls: list[tuple[str, dict[str, Any]]]) -> str:
    return json.dumps([{"tool": tool, "arguments": arguments} for tool, arguments in calls])


class Load:
    def __init__(self, cluster: Cluster, *, sessions: int = 30, seed: int | None = None) -> None:
        self.cluster = cluster
        self.seed = random.randrange(1_000_000) if seed is None else seed
        self._random = random.Random(self.seed)
        self.session_keys = [f"agent:main:hook:s{number}" for number in range(sessions)]
        self.accepted: dict[str, Accepted] = {}  # by turn id
        self.outcomes: dict[str, set[tuple[str, str]]] = defaultdict(set)  # outcome and reply, as clients saw
        self.posts: dict[str, str] = {}  # delivery id: text
        self._clients: dict[int, Client] = {}
        self._avoided_until: dict[int, float] = {}
        self._count = 0

    # -- calls

    async def call(self, method: str, *, at: GatewayProcess | None = None, **params: Any) -> dict[str, Any]:
        """Call a method on any gateway, or on this one, until one answers."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                gateway = at or self._any_gateway()
                client = self.client(gateway)
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        await client.connect()
                        return await client.call(method, **params)
                except (GatewayLost, GatewayUnreachable, TimeoutError):
                    self._avoided_until[gateway.number] = asyncio.get_running_loop().time() + _AVOIDED_S
                except RpcFailed as refusal:
                    if refusal.reason not in _AGAIN:
                        raise
                await asyncio.sleep(0.05)

    def _any_gateway(self) -> GatewayProcess:
        now = asyncio.get_running_loop().time()
        gateways = self.cluster.gateways
        good = [g for g in gateways if self._avoided_until.get(g.number, 0.0) <= now]
        return self._random.choice(good or gateways)

    def client(self, gateway: GatewayProcess) -> Client:
        if gateway.number not in self._clients:
            self._clients[gateway.number] = Client(gateway.url, TOKEN)
        return self._clients[gateway.number]

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    # -- messages

    def marker(self) -> str:
        self._count += 1
        return f"m-{self._count}"

    async def send(
        self, session_key: str, text: str = "", *, marker: str | None = None, at: GatewayProcess | None = None
    ) -> str:
        """Send a message; returns the id of its turn, which is its marker, when it is acknowledged."""
        marker = marker or self.marker()
        text = f"{marker} {text}".strip()
        sent = await self.call(
            "chat.send", at=at, sessionKey=session_key, message=text, idempotencyKey=marker
        )
        assert sent["runId"] == marker
        self.accept(marker, session_key, marker)
        return marker

    def accept(self, turn_id: str, session_key: str, marker: str) -> None:
        """Keep on record that a message was acknowledged."""
        whole = session_key if session_key.startswith("agent:") else f"agent:main:{session_key}"
        self.accepted[turn_id] = Accepted("agent:main:main" if session_key == "main" else whole, marker)

    async def outcome(self, turn_id: str, *, at: GatewayProcess | None = None) -> dict[str, Any]:
        """Wait for the outcome of a turn."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                answer = await self.call("agent.wait", at=at, runId=turn_id, timeoutMs=2_000)
                if answer["status"] != "timeout" or "outcome" in answer:
                    reply = "".join(part["text"] for part in answer["result"]["payloads"])
                    self.outcomes[turn_id].add((answer["outcome"], reply))
                    return answer

    async def post(self, recipient: str, number: int) -> None:
        """Send a message to a chat, outside of any session."""
        text = f"{recipient}-{number}"
        sent = await self.call("send", channel="pager", to=recipient, message=text, idempotencyKey=text)
        self.posts[sent["deliveryId"]] = text

    @staticmethod
    def calling(tool: str, **arguments: Any) -> str:
        """A message that makes the model call a tool."""
        return _as_text([(tool, arguments)])

    def wish(self, marker: str, session_key: str) -> str:
        """What the model is asked to do: mostly nothing but to answer, else to use tools."""
        other = self._random.choice([key for key in self.session_keys if key != session_key])
        to_other = {"sessionKey": other, "message": f"{marker}-told"}
        part = {"task": f"{marker}-part", "collect": True, "groupId": marker}
        wishes: list[tuple[int, list[tuple[str, dict[str, Any]]]]] = [
            (6, []),
            (2, [("stamp", {"word": marker}), ("peek", {"word": marker})]),
            (1, [("exec", {"command": "sleep 0.2; echo done"})]),
            (1, [("sessions_send", to_other | {"timeoutSeconds": 10})]),
            (1, [("sessions_send", to_other | {"timeoutSeconds": 0})]),
            (1, [("sessions_spawn", {"task": f"{marker}-task"})]),
            (1, [("sessions_spawn", part), ("agents_wait", {"groupId": marker})]),
        ]
        [(_, calls)] = self._random.choices(wishes, [weight for weight, _ in wishes])
        return _as_text(calls) if calls else ""

    # -- all together

    async def run(
        self,
        per_session: int = 1_000_000,
        *,
        until: asyncio.Event | None = None,
        chats: int = 4,
        jobs: int = 3,
    ) -> None:
        """Talk in all sessions and chats at once and run jobs, until all is said or `until` is set.

        Returns when everything accepted has ended.
        """
        ending = until or asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for key in self.session_keys:
                group.create_task(self._talk(key, per_session, ending))
            for number in range(chats):
                group.create_task(self._chat(f"r{number}", f"c{number}", per_session, ending))
            for _ in range(jobs):
                group.create_task(self.run_job())
        await self.settle()

    async def settle(self, turn_ids: Iterable[str] | None = None) -> None:
        """Wait for the outcome of each accepted turn."""
        await asyncio.gather(*(self.outcome(turn_id) for turn_id in turn_ids or list(self.accepted)))

    async def _talk(self, session_key: str, count: int, ending: asyncio.Event) -> None:
        for _ in range(count):
            if ending.is_set():
                return
            marker = self.marker()
            await self.send(session_key, self.wish(marker, session_key), marker=marker)
            if self._random.random() < 0.6:
                await self.outcome(marker)
            await asyncio.sleep(self._random.uniform(0, _TALK_PAUSE_S))

    async def _chat(self, recipient: str, person: str, count: int, ending: asyncio.Event) -> None:
        """Post to one chat, one message after the other, while a person writes in another."""
        for number in range(count):
            if ending.is_set():
                return
            await self.post(recipient, number)
            await self.cluster.outside.say(person, self.marker())
            await asyncio.sleep(_PAUSE_S)

    async def run_job(self, *, due: bool = False) -> None:
        """Run a new job whose answer is posted to the webhook: now, or when it is due a moment later."""
        delivery = {"mode": "webhook", "to": f"{self.cluster.outside.url}/webhook"}
        payload = {"kind": "agentTurn", "message": f"{self.marker()}-job"}
        schedule = {"kind": "at", "at": "1s" if due else "1h"}
        job = await self.call("cron.add", schedule=schedule, payload=payload, delivery=delivery)
        if not due:
            await self.call("cron.run", id=job["id"])

    async def follow(
        self, at: GatewayProcess, take: Callable[[dict[str, Any]], None], done: Callable[[], bool]
    ) -> None:
        """Hand the events of a gateway on, as they come, until `done`."""
        async with asyncio.timeout(LIMIT_S):
            while not done():
                event = await self.client(at).events.get()
                assert event is not None, f"the connection to gateway {at.number} was lost"
                take(event)


async def leader(load: Load, role: str, other_than: str = "") -> str:
    """The id of the gateway that has a role, once its beat has told so."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            listed = (await load.call("gateways.list"))["gateways"]
            for each in listed:
                if role in each["roles"] and each["gatewayId"] != other_than:
                    return str(each["gatewayId"])
            await asyncio.sleep(0.1)


@asynccontextmanager
async def open_load(cluster: Cluster, *, sessions: int = 30, seed: int | None = None) -> AsyncIterator[Load]:
    load = Load(cluster, sessions=sessions, seed=seed)
    try:
        yield load
    finally:
        await load.close()
