"""Three gateways that do the same thing at the same moment."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests import stores
from tests.cluster.checker import assert_sound
from tests.cluster.harness import FULL, Cluster, open_cluster, size
from tests.cluster.load import Load, leader, open_load
from tests.waiting import until

from hobnob.types import now_ms

T = TypeVar("T")
pytestmark = [
    pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself"),
    pytest.mark.timeout(7200 if FULL else 300),
]

_NOTICED_MS = 2_500  # a forgotten turn is found by a look every 5 seconds, on average after this time
_LONG_WAITS = f"""
  select turn_id, started_at_ms - waited, started_at_ms from (
    select turn_id, started_at_ms, started_at_ms - greatest(accepted_at_ms, lag(ended_at_ms) over (
      partition by session_key order by position)) as waited
    from turns where merged_into is null) t
  where waited > {_NOTICED_MS}"""


@pytest.mark.promise("cluster.nothing_is_forgotten")
async def test_a_message_that_is_accepted_while_its_session_drains_is_not_forgotten(tmp_path: Path) -> None:
    """Two clients take turns in each session, so that each message races with the end of the turn before."""
    short = {"contextTokens": 8_000, "compaction": {"enabled": False}}  # so that turns stay short
    rehearsal = {"agents": {"list": [{"id": "main", "default": True}], "defaults": short}}
    async with open_cluster(tmp_path, **rehearsal) as cluster, open_load(cluster, sessions=6) as load:

        async def talk(session_key: str, first: int) -> None:
            for number in range(size(30, 8_334)):
                gateways = [cluster.gateways[(first + number + i) % 3] for i in range(2)]
                turn_id = await load.send(session_key, at=gateways[0])
                await load.outcome(turn_id, at=gateways[1])

        async with machine_stalls() as stalls, asyncio.TaskGroup() as group:
            for key in load.session_keys:
                group.create_task(talk(key, 0))
                group.create_task(talk(key, 1))
        await assert_sound(cluster, load)
        waits = cluster.rows(_LONG_WAITS)
        assert [wait for wait in waits if not stalls.explain(*wait[1:])] == [], (waits, stalls.times)


class Stalls:
    """When this process got no CPU for half a second: a machine that is shared stops for all of it."""

    def __init__(self) -> None:
        self.times: list[tuple[int, int]] = []  # from and to, in milliseconds

    async def watch(self) -> None:
        while True:
            before = now_ms()
            await asyncio.sleep(0.05)
            if now_ms() - before > 500:
                self.times.append((before, now_ms()))

    def explain(self, began_ms: int, ended_ms: int) -> bool:
        """Whether there was one during a wait, or shortly before: gateways may take each other for dead."""
        return any(began_ms < to + 15_000 and ended_ms > begin for begin, to in self.times)


@asynccontextmanager
async def machine_stalls() -> AsyncIterator[Stalls]:
    stalls = Stalls()
    watching = asyncio.create_task(stalls.watch())
    try:
        yield stalls
    finally:
        watching.cancel()


@pytest.mark.promise("cluster.no_circle_of_waits")
async def test_of_two_sessions_that_ask_each_other_at_once_at_most_one_is_refused(tmp_path: Path) -> None:
    pairs = size(25, 500)
    async with open_cluster(tmp_path) as cluster, open_load(cluster, sessions=2 * pairs) as load:
        await ready(load)
        couples = list(zip(load.session_keys[::2], load.session_keys[1::2], strict=True))
        for some in batches(couples):
            async with asyncio.TaskGroup() as group:
                for one, two in some:
                    group.create_task(ask(load, one, two, 0))
                    group.create_task(ask(load, two, one, 1))
        await assert_sound(cluster, load)
        refused = 0
        for one, two in couples:
            answers = sorted(status(result) for key in (one, two) for result in results(cluster, key))
            assert answers in (["ok", "ok"], ["deadlock", "ok"]), (one, two, answers)
            refused += answers[0] == "deadlock"
        assert refused > 0  # some did meet


@pytest.mark.promise("cluster.no_circle_of_waits")
async def test_no_question_is_refused_that_closes_no_circle(tmp_path: Path) -> None:
    """Each session asks the next one, all at the same time; the last one asks nobody."""
    async with open_cluster(tmp_path) as cluster, open_load(cluster, sessions=size(30, 300)) as load:
        await ready(load)
        async with asyncio.TaskGroup() as group:
            for number, (one, two) in enumerate(zip(load.session_keys, load.session_keys[1:], strict=False)):
                group.create_task(ask(load, one, two, number))
        await assert_sound(cluster, load)
        found = Counter(status(result) for key in load.session_keys for result in results(cluster, key))
        assert found == {"ok": len(load.session_keys) - 1}


def batches(many: Sequence[T]) -> Iterator[Sequence[T]]:
    """So many at a time as gateways on a small machine answer in time."""
    for start in range(0, len(many), 50):
        yield many[start : start + 50]


async def ready(load: Load) -> None:
    """Sessions exist once somebody wrote to them."""
    for keys in batches(load.session_keys):
        await asyncio.gather(*(load.send(key) for key in keys))
        await load.settle()


async def ask(load: Load, one: str, two: str, at: int) -> None:
    marker = load.marker()
    message = {"sessionKey": two, "message": f"{marker}-asked", "timeoutSeconds": size(60, 600)}
    gateway = load.cluster.gateways[at % 3]
    await load.send(one, load.calling("sessions_send", **message), marker=marker, at=gateway)
    assert (await load.outcome(marker))["outcome"] == "ok"


def results(cluster: Cluster, session_key: str) -> list[dict[str, Any]]:
    """What tools returned in a session."""
    rows = cluster.rows(
        "select e.body from entries e join transcripts t on t.number = e.transcript"
        f" where e.role = 'toolResult' and t.session_key = '{session_key}'"
    )
    return [json.loads(json.loads(row[0])["content"][0]["text"]) for row in rows]


def status(result: dict[str, Any]) -> str:
    return str(result.get("code") or result["status"])


@pytest.mark.promise("cluster.one_idempotency_key")
async def test_one_idempotency_key_on_three_gateways_is_one_turn_and_one_message(tmp_path: Path) -> None:
    """The key is too long to be the id of the run, so that each gateway would make one of its own."""
    async with open_cluster(tmp_path) as cluster, open_load(cluster, sessions=4) as load:

        async def everywhere(method: str, **params: Any) -> list[dict[str, Any]]:
            calls = (load.call(method, at=gateway, **params) for gateway in cluster.gateways)
            return await asyncio.gather(*calls)

        for number in range(size(25, 1_000)):
            marker = load.marker()
            key, session_key = marker.ljust(200, "x"), load.session_keys[number % 4]
            sent = await everywhere("chat.send", sessionKey=session_key, message=marker, idempotencyKey=key)
            assert len({each["runId"] for each in sent}) == 1, sent
            load.accept(sent[0]["runId"], session_key, marker)
            posted = {"channel": "pager", "to": "r0", "message": f"r0-{number}", "idempotencyKey": key}
            queued = await everywhere("send", **posted)
            assert len({each["deliveryId"] for each in queued}) == 1, queued
            load.posts[queued[0]["deliveryId"]] = f"r0-{number}"
        await load.settle()
        await assert_sound(cluster, load)
        assert cluster.rows("select count(*) from turns") == [(len(load.accepted),)]
        assert cluster.rows("select count(*) from deliveries") == [(len(load.posts),)]


@pytest.mark.promise("cluster.roles_are_taken_over")
async def test_a_message_that_is_being_sent_is_left_to_its_gateway_when_another_takes_the_account(
    tmp_path: Path,
) -> None:
    """The other one could not tell whether it was sent, and must not overtake it."""
    async with open_cluster(tmp_path, gateways=2) as cluster, open_load(cluster) as load:
        first, second = "r0-1", "r0-2"
        cluster.outside.hold(first)
        await load.post("r0", 1)
        await until(lambda: cluster.outside.posts)
        role = "channel:pager:default"
        sender = await leader(load, role)
        await load.call("gateways.drain", gatewayId=sender)
        await leader(load, role, other_than=sender)
        await load.post("r0", 2)
        cluster.outside.release(first)
        await until(lambda: len(cluster.outside.posts) == 2)
        await load.call("gateways.drain", gatewayId=sender, on=False)
        await assert_sound(cluster, load)
        assert [post["text"] for post in cluster.outside.posts] == [first, second]
        assert cluster.rows("select distinct state, attempts from deliveries") == [("delivered", 1)]
