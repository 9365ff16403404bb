"""Three gateways under load, of which some are killed, started and replaced."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import stores
from tests.cluster.checker import assert_sound
from tests.cluster.harness import FULL, Cluster, die_at, open_cluster, size
from tests.cluster.load import Load, open_load
from tests.waiting import LIMIT_S, until

from hobnob import crashpoints

pytestmark = [
    pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself"),
    pytest.mark.timeout(3600 if FULL else 300),
]

SESSIONS = size(8, 200)
# A turn, or what it does, takes any gateway there.
OF_TURNS = (
    *crashpoints.TURN_POINTS,
    "after-tell",
    "after-spawn",
    *crashpoints.BUDGET_POINTS,
    *crashpoints.JOIN_POINTS,
)
# Only the gateway that has the role comes there.
OF_ROLES = ("before-delivery", "after-delivery", *crashpoints.CHAT_POINTS, *crashpoints.JOB_POINTS)
BUDGET = {"budget": {"tokens": 1_000_000_000}}


def agents(cluster: Cluster) -> dict[str, object]:
    """Agents that reserve what a call of the model may cost."""
    settings = cluster.settings["agents"]
    return settings | {"defaults": settings["defaults"] | BUDGET}


async def die_in_role(cluster: Cluster, points: Sequence[str]) -> None:
    """For each point, let one gateway have all roles, and die there while the others take over."""
    for number, point in enumerate(points):
        gateway, *others = (cluster.gateways[(number + i) % 3] for i in range(3))
        for each in cluster.gateways:
            each.kill()
        await gateway.start(crash_at=point)
        await asyncio.gather(*(other.start() for other in others))
        await until(lambda gateway=gateway: not gateway.running)
        assert gateway.process.returncode == -9
        await gateway.start()


@pytest.mark.promise("cluster.accepted_once_ended_once")
@pytest.mark.parametrize("third", [0, 1, 2])
async def test_nothing_is_lost_or_doubled_when_gateways_are_killed_at_every_point_of_a_turn(
    tmp_path: Path, third: int
) -> None:
    points = iter([f"{point}:{visit}" for visit in range(1, size(2, 4)) for point in OF_TURNS][third::3])
    async with open_cluster(tmp_path, gateways=0) as cluster, open_load(cluster, sessions=SESSIONS) as load:
        cluster.outside.delay_s = cluster.outside.post_s = (0.01, 0.2)
        for _ in range(3):
            cluster.add(linked=False, agents=agents(cluster))
        one, two, last = cluster.gateways
        await last.start()
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(until=ending))
            await asyncio.gather(die_at(one, points), die_at(two, points))
            ending.set()
        await assert_sound(cluster, load)


@pytest.mark.promise("cluster.roles_are_taken_over")
async def test_nothing_is_lost_or_doubled_when_the_gateway_with_a_role_is_killed_at_its_points(
    tmp_path: Path,
) -> None:
    points = OF_ROLES if FULL else ("after-delivery", "after-due")
    async with open_cluster(tmp_path) as cluster, open_load(cluster, sessions=6) as load:
        cluster.outside.delay_s = cluster.outside.post_s = (0.01, 0.2)
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(until=ending))
            group.create_task(keep_running_jobs(load, ending))
            await die_in_role(cluster, points)
            ending.set()
        await assert_sound(cluster, load)


async def keep_running_jobs(load: Load, ending: asyncio.Event) -> None:
    while not ending.is_set():
        await load.run_job(due=True)
        await asyncio.sleep(0.5)


@pytest.mark.promise("cluster.streams_cross_gateways")
async def test_a_stream_that_is_followed_on_another_gateway_starts_again_when_its_gateway_dies(
    tmp_path: Path,
) -> None:
    async with open_cluster(tmp_path, gateways=0) as cluster, open_load(cluster) as load:
        settings = cluster.settings["agents"]
        narrow = settings | {"defaults": settings["defaults"] | {"maxConcurrent": 1}}
        here = cluster.add(linked=False, agents=narrow)
        for _ in range(2):
            cluster.add(linked=False)
        await here.start()
        cluster.outside.hold("m-first")
        await load.send("main", marker="m-first")  # takes the only slot of this gateway
        await cluster.outside.asked_for("m-first")
        await cluster.start()
        cluster.outside.hold("m-told")
        await load.send("hook:told", marker="m-told", at=here)
        await cluster.outside.asked_for("m-told")
        runs_at = cluster.claimed_by("m-told")
        assert runs_at is not None and runs_at is not here
        seen = Chat("m-told")
        await load.follow(here, seen.take, lambda: seen.text != "")
        runs_at.kill()
        await cluster.outside.asked_for("m-told", times=2)
        cluster.outside.release("m-told")
        cluster.outside.release("m-first")
        await load.follow(here, seen.take, lambda: bool(seen.finals))
        await load.settle()
        assert seen.restarts == 1
        assert seen.text == "answer m-told"
        assert seen.finals == ["answer m-told"]
        await runs_at.start()
        await assert_sound(cluster, load)


class Chat:
    """One run as a page shows it, from the events of the kind `chat`."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.text = ""
        self.restarts = 0
        self.finals: list[str] = []

    def take(self, event: dict[str, object]) -> None:
        payload = event["payload"]
        assert isinstance(payload, dict)
        if event["event"] != "chat" or payload["runId"] != self._run_id:
            return
        if payload["state"] == "delta":
            self.restarts += bool(payload.get("replace"))
            self.text = payload["deltaText"] if payload.get("replace") else self.text + payload["deltaText"]
        elif payload["state"] == "final":
            self.finals.append("".join(part["text"] for part in payload["message"]["content"]))


@pytest.mark.promise("cluster.rolling_restart")
async def test_gateways_are_restarted_one_after_the_other_without_a_lost_turn(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as cluster, open_load(cluster, sessions=SESSIONS) as load:
        cluster.outside.delay_s = cluster.outside.post_s = (0.01, 0.2)
        ending, loop = asyncio.Event(), asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(until=ending))
            for gateway in cluster.gateways:
                marker = f"m-held-by-{gateway.number}"
                cluster.outside.hold(marker)
                await load.send(f"hook:held-{gateway.number}", marker=marker, at=gateway)
                await cluster.outside.asked_for(marker)
                holder = cluster.claimed_by(marker)
                assert holder is not None
                begun = loop.time()
                holder.terminate()
                await cluster.outside.asked_for(marker, times=2)  # it runs elsewhere, and was not ended here
                assert loop.time() - begun < LIMIT_S / 10
                cluster.outside.release(marker)
                await holder.died()
                assert holder.process.returncode == 0
                await holder.start()
            ending.set()
        await assert_sound(cluster, load)
        assert cluster.rows("select turn_id, error from turns where outcome <> 'ok'") == []


@pytest.mark.promise("cluster.starting_disturbs_nobody")
async def test_a_gateway_that_starts_disturbs_no_other(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, gateways=2) as cluster, open_load(cluster, sessions=SESSIONS) as load:
        cluster.outside.delay_s = cluster.outside.post_s = (0.01, 0.2)
        held = [f"m-held-{number}" for number in range(10)]
        for number, marker in enumerate(held):
            cluster.outside.hold(marker)
            await load.send(f"hook:held-{number}", marker=marker, at=cluster.gateways[number % 2])
            await cluster.outside.asked_for(marker)
        one_more = cluster.add(linked=False)
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(until=ending))
            for _ in range(size(2, 10)):
                await one_more.start()
                await load.outcome(await load.send("hook:new", at=one_more))
                one_more.kill()
            await one_more.start()
            for marker in held:
                cluster.outside.release(marker)
            ending.set()
        await assert_sound(cluster, load)
        assert [cluster.outside.asked[marker] for marker in held] == [1] * len(held)
        claims = cluster.rows("select claim from turns where turn_id like 'm-held-%'")
        assert claims == [(1,)] * len(held)
