"""Three gateways under load, of which one hangs or is cut off, or whose database goes away."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import postgres, stores
from tests.cluster.checker import assert_sound, programs_left
from tests.cluster.harness import FULL, Cluster, GatewayProcess, open_cluster, size
from tests.cluster.load import Load, open_load
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself"),
    pytest.mark.timeout(3600 if FULL else 300),
]

SESSIONS = size(8, 200)


@pytest.fixture
def durable() -> Iterator[postgres.Server]:
    """A server of its own, which writes to the disk as in earnest and may be stopped."""
    postgres.require_server()
    server = postgres.start_server(durable=True)
    server.prepare_template()
    yield server
    server.stop()


async def hold_turns_at(cluster: Cluster, load: Load, gateway: GatewayProcess) -> tuple[str, str]:
    """Two turns that run on a gateway: one waits for the model, one for a program that takes long."""
    for attempt in range(50):
        waiting, working = f"m-waiting-{attempt}", f"m-working-{attempt}"
        cluster.outside.hold(waiting)
        await load.send(f"hook:waiting-{attempt}", marker=waiting, at=gateway)
        await cluster.outside.asked_for(waiting)
        command = load.calling("exec", command="sleep 600", timeout=600, yieldMs=600_000)
        await load.send(f"hook:working-{attempt}", command, marker=working, at=gateway)
        await until(lambda: any("sleep 600" in name for _, name in programs_left(cluster)))
        if cluster.claimed_by(waiting) is gateway and cluster.claimed_by(working) is gateway:
            return waiting, working
        cluster.outside.release(waiting)
        await load.call("chat.abort", sessionKey=f"hook:working-{attempt}")
        load.accepted.pop(working)
        await until(lambda: not any("sleep 600" in name for _, name in programs_left(cluster)))
    raise AssertionError("no turn was claimed by the gateway that it was sent to")


@pytest.mark.promise("cluster.taken_over_after_a_hang")
async def test_turns_of_a_gateway_that_hangs_run_elsewhere_and_it_is_fenced_when_it_goes_on(
    tmp_path: Path,
) -> None:
    async with open_cluster(tmp_path) as cluster, open_load(cluster, sessions=SESSIONS) as load:
        cluster.outside.delay_s = cluster.outside.post_s = (0.01, 0.2)
        victim = cluster.gateways[0]
        waiting, working = await hold_turns_at(cluster, load, victim)
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(until=ending))
            await asyncio.sleep(1)
            victim.freeze()
            frozen_at = asyncio.get_running_loop().time()
            await cluster.outside.asked_for(waiting, times=2)
            cluster.outside.release(waiting)
            for turn_id in (waiting, working):  # the program was interrupted; the model is told and answers
                assert (await load.outcome(turn_id))["outcome"] == "ok"
            await asyncio.sleep(max(0, frozen_at + size(12, 20) - asyncio.get_running_loop().time()))
            victim.thaw()
            ending.set()
        await load.outcome(await load.send("hook:s0", at=victim), at=victim)  # it is back
        await assert_sound(cluster, load)


@pytest.mark.promise("cluster.taken_over_after_a_cut", "cluster.fences_itself")
async def test_a_gateway_that_is_cut_off_ends_its_programs_while_its_turns_run_elsewhere(
    tmp_path: Path,
) -> None:
    async with open_cluster(tmp_path, linked=True) as cluster, open_load(cluster, sessions=SESSIONS) as load:
        cluster.outside.delay_s = cluster.outside.post_s = (0.01, 0.2)
        victim = cluster.gateways[0]
        waiting, working = await hold_turns_at(cluster, load, victim)
        assert victim.link is not None
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(until=ending))
            await asyncio.sleep(1)
            victim.link.cut()
            await until(lambda: not any("sleep 600" in name for _, name in programs_left(cluster)))
            await cluster.outside.asked_for(waiting, times=2)
            cluster.outside.release(waiting)
            for turn_id in (waiting, working):
                assert (await load.outcome(turn_id))["outcome"] == "ok"
            victim.link.mend()
            ending.set()
        await load.outcome(await load.send("hook:s0", at=victim), at=victim)  # it is back
        await assert_sound(cluster, load)


@pytest.mark.promise("cluster.survives_the_database")
@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        pytest.param(signal.SIGQUIT, 5, id="crash"),
        pytest.param(signal.SIGINT, size(9, 60), id="stop"),  # longer than a gateway goes on without it
    ],
)
async def test_gateways_go_on_when_their_database_is_back(
    tmp_path: Path, durable: postgres.Server, how: signal.Signals, seconds: int
) -> None:
    async with (
        open_cluster(tmp_path, server=durable) as cluster,
        open_load(cluster, sessions=SESSIONS) as load,
    ):
        cluster.outside.delay_s = cluster.outside.post_s = (0.01, 0.2)
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(until=ending))
            await until(lambda: len(load.accepted) > SESSIONS)
            await asyncio.to_thread(durable.halt, how)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(durable.start)
            before = len(load.accepted)
            await until(lambda: len(load.accepted) > before + SESSIONS)
            ending.set()
        await assert_sound(cluster, load)


@pytest.mark.promise("cluster.lost_messages_are_made_up_for")
async def test_nothing_waits_for_ever_while_no_gateway_hears_the_others(tmp_path: Path) -> None:
    async with open_cluster(tmp_path) as cluster, open_load(cluster, sessions=SESSIONS) as load:
        cluster.outside.delay_s = cluster.outside.post_s = (0.01, 0.2)
        cuts, deaf = 0, asyncio.create_task(asyncio.sleep(size(5, 30)))
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(size(4, 20)))
            while not deaf.done():
                cuts += await asyncio.to_thread(cluster.cut_listening)
                await asyncio.sleep(0.02)
        assert cuts >= 3
        await assert_sound(cluster, load)


@pytest.mark.promise("cluster.accepted_once_ended_once")
async def test_nothing_is_lost_or_doubled_when_connections_break_during_commits(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, linked=True) as cluster, open_load(cluster, sessions=SESSIONS) as load:
        cluster.outside.delay_s = cluster.outside.post_s = (0.01, 0.2)
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(until=ending))
            for number in range(size(12, 200)):
                await asyncio.sleep(0.4)
                link = cluster.gateways[number % 3].link
                assert link is not None
                await asyncio.to_thread(link.break_connections)
            ending.set()
        await assert_sound(cluster, load)
