"""The harness itself, with one gateway: it survives a kill, and the checker finds every fault planted."""

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import stores
from tests.cluster.checker import assert_sound, idle, problems
from tests.cluster.harness import Cluster, open_cluster
from tests.cluster.load import Accepted, Load, open_load

pytestmark = pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")

ENTRY = "select transcript, seq, role, turn_id, body, created_at_ms from entries"
# A statement, and words of the problem that it must cause.
AGAIN = ENTRY.replace("seq,", "seq + 1000,")
PLANTED_ROWS = {
    "update turns set status = 'running', claimed_by = 'x' where turn_id = 'm-1'": "turn left open: m-1",
    "update turns set outcome = 'failed', error = 'x' where turn_id = 'm-1'": "m-1 ended as failed",
    "update turns set reply = 'x' where turn_id = 'm-1'": "clients saw",
    "update turns set outcome = null where turn_id = 'm-1'": "m-1 has the outcome None",
    "delete from turns where turn_id = 'm-1'": "acknowledged turn m-1 does not exist",
    "update exchanges set state = 'open'": "exchange left open",
    "update deliveries set state = 'pending'": "delivery left open",
    "delete from deliveries": "acknowledged delivery",
    "update deliveries set attempts = 0 where channel = 'webhook'": "after 0 attempts",
    "update job_runs set ended_at_ms = null": "run of a job left open",
    "delete from inbox": "is answered by None deliveries",
    "update entries set seq = seq + 1 where seq = (select max(seq) from entries)": "numbered 1 to",
    f"insert into entries (transcript, seq, role, turn_id, body, created_at_ms) {AGAIN}"
    " where turn_id = 'm-1' and role = 'user'": "input of m-1 is 2 times",
    f"insert into entries (transcript, seq, role, turn_id, body, created_at_ms) {AGAIN}"
    " where turn_id = 'm-1' and role = 'assistant'": "m-1 has 2 final answers",
    "delete from entries where role = 'toolResult'": "its result 0 times",
    "update turns set started_at_ms = 0": "before",
}


def _second_post(cluster: Cluster, load: Load) -> None:
    cluster.outside.posts.append(cluster.outside.posts[0])


def _early_post(cluster: Cluster, load: Load) -> None:
    cluster.outside.posts.insert(0, cluster.outside.posts[0] | {"text": "r0-99"})


def _second_key(cluster: Cluster, load: Load) -> None:
    cluster.outside.webhooks.append(("another key", cluster.outside.webhooks[0][1]))


def _second_effect(cluster: Cluster, load: Load) -> None:
    with cluster.effects.open("a") as effects:
        effects.write("stamp x\nstamp x\n")


def _lost_message(cluster: Cluster, load: Load) -> None:
    load.accepted["m-lost"] = Accepted("agent:main:main", "m-lost")


PLANTED: list[tuple[Callable[[Cluster, Load], None], str]] = [
    (_second_post, "arrived 2 times"),
    (_early_post, "got its messages in the order"),
    (_second_key, "posted under 2 keys"),
    (_second_effect, "happened 2 times: stamp x"),
    (_lost_message, "acknowledged turn m-lost does not exist"),
]


async def test_a_gateway_that_is_killed_and_started_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, gateways=1) as cluster, open_load(cluster, sessions=8) as load:
        cluster.outside.delay_s = cluster.outside.post_s = (0.01, 0.2)
        (gateway,) = cluster.gateways
        running = asyncio.create_task(load.run(4))
        for _ in range(2):
            await cluster.outside.asked_for(f"m-{len(load.accepted) + 5}")
            gateway.kill()
            await gateway.start()
        await running
        await assert_sound(cluster, load)


async def test_the_checker_finds_every_fault_that_is_planted(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, gateways=1) as cluster, open_load(cluster, sessions=3) as load:
        await load.outcome(await load.send(load.session_keys[0]))
        await load.outcome(await load.send(load.session_keys[0], load.calling("stamp", word="a")))
        asked = load.calling("sessions_send", sessionKey=load.session_keys[0], message="m-asked")
        await load.outcome(await load.send(load.session_keys[2], asked))
        await load.run(1, chats=1, jobs=1)
        await assert_sound(cluster, load)
        cluster.gateways[0].kill()  # it would work on what is planted
        cluster.rows("create schema kept")
        tables = ("turns", "entries", "exchanges", "deliveries", "job_runs", "inbox")
        for table in tables:
            cluster.rows(f"create table kept.{table} as table {table}")
        for statement, words in PLANTED_ROWS.items():
            cluster.rows(statement)
            assert any(words in problem for problem in problems(cluster, load)), statement
            for table in tables:
                cluster.rows(f"truncate {table}; insert into {table} table kept.{table}")
        assert problems(cluster, load) == []
        for plant, words in PLANTED:
            plant(cluster, load)
            assert any(words in problem for problem in problems(cluster, load)), words


async def test_the_checker_finds_a_program_that_was_left_running(tmp_path: Path) -> None:
    async with open_cluster(tmp_path, gateways=0) as cluster, open_load(cluster) as load:
        env = os.environ | {"HOBNOB_PROCESS": "x", "TMPDIR": str(tmp_path / "tmp")}
        with subprocess.Popen(["sleep", "600"], env=env) as program:
            await idle(cluster, limit_s=0.2)
            [problem] = problems(cluster, load)
            program.kill()
        assert f"process {program.pid} was left running: sleep 600" in problem
