"""Three gateways of which some are killed while they summarise conversations or remove what is old."""

import asyncio
from pathlib import Path

import pytest
from tests import stores
from tests.cluster.checker import assert_sound
from tests.cluster.harness import FULL, die_at, open_cluster, size
from tests.cluster.load import Load, open_load

from hobnob import crashpoints
from hobnob.errors import GatewayLost

pytestmark = [
    pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself"),
    pytest.mark.timeout(3600 if FULL else 300),
]

FILLER = "lorem ipsum " * 100
OLD_KEYS = size(1_000, 3_000)  # are removed in steps of 200; the deaths come after 1, 2, … steps each


@pytest.mark.promise("cluster.accepted_once_ended_once")
async def test_nothing_is_lost_or_doubled_when_gateways_are_killed_at_every_point_of_a_compaction(
    tmp_path: Path,
) -> None:
    visits = range(1, size(2, 4))
    points = iter([f"{point}:{visit}" for visit in visits for point in crashpoints.COMPACTION_POINTS])
    async with open_cluster(tmp_path, gateways=0) as cluster, open_load(cluster, sessions=6) as load:
        settings = cluster.settings["agents"]
        narrow = {"contextTokens": 16_000, "compaction": {"keepRecentTokens": 300}}
        for _ in range(3):
            cluster.add(linked=False, agents=settings | {"defaults": settings["defaults"] | narrow})
        one, two, last = cluster.gateways
        await last.start()
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for key in load.session_keys:
                group.create_task(talk(load, key, ending))
            await asyncio.gather(die_at(one, points), die_at(two, points))
            ending.set()
        await assert_sound(cluster, load)
        compactions = "select count(*) from entries where body like '%\"compaction\"%'"
        assert cluster.rows(compactions)[0][0] >= len(crashpoints.COMPACTION_POINTS)


async def talk(load: Load, session_key: str, ending: asyncio.Event) -> None:
    while not ending.is_set():
        await load.outcome(await load.send(session_key, FILLER))


@pytest.mark.promise("cluster.roles_are_taken_over")
async def test_a_removal_in_which_its_gateway_was_killed_is_completed_by_another(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, gateways=2) as cluster, open_load(cluster, sessions=2) as load:
        await load.run(2)
        cluster.rows(
            "insert into idempotency_keys (scope, key, answer, created_at_ms)"
            f" select 'old', n::text, '', 1 from generate_series(1, {OLD_KEYS}) n returning 1"
        )
        left = "select count(*) from idempotency_keys where scope = 'old'"
        victim, other = cluster.gateways
        for step in range(1, size(2, 5)):
            victim.kill()
            await victim.start(crash_at=f"after-removal:{step}")
            before = cluster.rows(left)[0][0]
            client = load.client(victim)
            await client.connect()
            with pytest.raises(GatewayLost):
                await client.call("sessions.cleanup", enforce=True)
            assert 0 < cluster.rows(left)[0][0] < before
        await load.call("sessions.cleanup", at=other, enforce=True)
        assert cluster.rows(left) == [(0,)]
        await victim.start()
        await assert_sound(cluster, load)
