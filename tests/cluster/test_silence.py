"""Gateways that say nothing for a while: whether their turns are to blame."""

from pathlib import Path

import pytest
from tests import stores
from tests.cluster.checker import assert_sound, idle, problems
from tests.cluster.harness import open_cluster
from tests.cluster.load import open_load
from tests.waiting import until

from hobnob.cluster.activity import Activity, loop_was_blocked

pytestmark = [
    pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself"),
    pytest.mark.timeout(300),
]


@pytest.mark.promise("cluster.silence_is_no_crash")
async def test_a_turn_does_not_fail_because_its_gateways_stood_still_one_after_the_other(
    tmp_path: Path,
) -> None:
    async with open_cluster(tmp_path, gateways=2) as cluster, open_load(cluster) as load:
        cluster.outside.hold("m-held")
        turn_id = await load.send("hook:held", marker="m-held")
        for times in (1, 2, 3):
            await cluster.outside.asked_for("m-held", times=times)
            await until(lambda: cluster.rows("select crashes from turns") == [(0,)])
            if times < 3:
                gateway = cluster.claimed_by(turn_id)
                assert gateway is not None
                gateway.freeze()
                await cluster.outside.asked_for("m-held", times=times + 1)
                assert cluster.rows("select crashes from turns") == [(1,)]  # nobody knows yet that it lives
                gateway.thaw()
        cluster.outside.release("m-held")
        assert (await load.outcome(turn_id))["outcome"] == "ok"
        await assert_sound(cluster, load)


@pytest.mark.promise("cluster.silence_is_no_crash")
@pytest.mark.parametrize(
    ("gateways", "how", "seconds"),
    [
        pytest.param(2, "waits", 14, id="waits"),
        pytest.param(2, "computes", 14, id="computes"),
        pytest.param(2, "waits", 7, id="too short for the others to notice"),
        pytest.param(1, "waits", 8, id="no others"),
    ],
)
async def test_a_turn_that_blocks_gateways_twice_fails(
    tmp_path: Path, gateways: int, how: str, seconds: int
) -> None:
    async with open_cluster(tmp_path, gateways=gateways) as cluster, open_load(cluster) as load:
        turn_id = await load.send("hook:blocking", load.calling("block", how=how, seconds=seconds))
        answer = await load.outcome(turn_id)
        assert answer["outcome"] == "failed"
        assert "killed 2 times in a row, or hung" in answer["error"]
        await idle(cluster)
        assert [found for found in problems(cluster, load) if "ended as failed" not in found] == []
        logs = [gateway.log.read_text() for gateway in cluster.gateways]
        assert any("the event loop was blocked for too long by code that runs here" in log for log in logs)


@pytest.mark.promise("cluster.silence_is_no_crash")
async def test_gateways_whose_machine_stood_still_do_not_take_each_other_for_dead(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, gateways=2) as cluster, open_load(cluster) as load:
        cluster.outside.hold("m-held")
        turn_id = await load.send("hook:held", marker="m-held")
        await cluster.outside.asked_for("m-held")
        for gateway in cluster.gateways:
            gateway.freeze()
        one_beats = "select count(*) from gateways where clock_timestamp() - beat_at < interval '1 second'"
        silent = "select min(clock_timestamp() - beat_at) > interval '10 seconds' from gateways"
        await until(lambda: cluster.rows(silent) == [(True,)])
        first, second = cluster.gateways
        first.thaw()
        await until(lambda: cluster.rows(one_beats) == [(1,)])
        second.thaw()
        await cluster.outside.asked_for("m-held", times=2)  # they had ended their turns, to be safe
        cluster.outside.release("m-held")
        assert (await load.outcome(turn_id))["outcome"] == "ok"
        await assert_sound(cluster, load)
        assert "found dead" not in "".join(gateway.log.read_text() for gateway in cluster.gateways)


def test_a_loop_is_blocked_if_it_stands_still_while_the_process_runs() -> None:
    start = Activity(at_s=100, cpu_s=7, thread_s=90, loop_s=80)

    def after(cpu_s: float, thread_s: float, loop_s: float) -> bool:
        end = Activity(110, start.cpu_s + cpu_s, start.thread_s + thread_s, start.loop_s + loop_s)
        return loop_was_blocked(start, end)

    assert after(cpu_s=9, thread_s=0, loop_s=0)  # it computes, and keeps the threads out
    assert after(cpu_s=0, thread_s=9, loop_s=0)  # it waits
    assert not after(cpu_s=0, thread_s=0, loop_s=0)  # the process was stopped, or the machine
    assert not after(cpu_s=1, thread_s=9, loop_s=9)  # only the database was away
