"""Messages of one chat arrive in their order, also while the gateway that sends them loses the account."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests import stores
from tests.cluster.checker import assert_sound
from tests.cluster.harness import Cluster, GatewayProcess, open_cluster
from tests.cluster.load import Load, leader, open_load
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself"),
    pytest.mark.timeout(300),
]
FIRST, SECOND = "r0-1", "r0-2"
ROLE = "channel:pager:default"


@asynccontextmanager
async def sending(folder: Path) -> AsyncIterator[tuple[Cluster, Load, GatewayProcess]]:
    """A gateway that is sending the first of two messages to a chat, and another one that could."""
    async with open_cluster(folder, gateways=0) as cluster, open_load(cluster) as load:
        cluster.outside.slow_down(FIRST)
        sender = cluster.add(linked=True)
        await cluster.start()
        await leader(load, ROLE)
        cluster.add(linked=False)
        await cluster.start()
        await load.post("r0", 1)
        await until(lambda: cluster.outside.on_the_way)
        await load.post("r0", 2)
        yield cluster, load, sender


@asynccontextmanager
async def without_database(cluster: Cluster, gateway: GatewayProcess) -> AsyncIterator[None]:
    """Take its connections from a gateway; another one finds it dead and takes the account."""
    assert gateway.link is not None
    gateway.link.close()
    others = f"select pid <> {gateway.pid}, roles like '%{ROLE}%' from gateways"
    await until(lambda: cluster.rows(others) == [(True, True)])
    yield
    gateway.link.open()


def arrived(cluster: Cluster) -> list[str]:
    return [post["text"] for post in cluster.outside.posts]


@pytest.mark.promise("cluster.delivery_order")
async def test_a_message_that_is_still_being_sent_is_not_overtaken_when_its_gateway_is_found_dead(
    tmp_path: Path,
) -> None:
    """The gateway lost its connections to the database for a moment, not the one to the chat."""
    async with sending(tmp_path) as (cluster, load, sender):
        async with without_database(cluster, sender):
            cluster.outside.release(FIRST)
        await assert_sound(cluster, load)
        assert arrived(cluster) == [FIRST, SECOND]
        assert cluster.rows("select distinct state, attempts from deliveries") == [("delivered", 1)]


@pytest.mark.promise("cluster.delivery_order")
async def test_a_gateway_that_was_found_dead_stops_sending_before_another_one_goes_on(tmp_path: Path) -> None:
    async with sending(tmp_path) as (cluster, load, sender):
        async with without_database(cluster, sender):
            await until(lambda: arrived(cluster) == [SECOND])
            assert cluster.outside.on_the_way == []  # given up, or it could arrive now
        await assert_sound(cluster, load)
        states = cluster.rows("select text, state from deliveries order by text")
        assert states == [(FIRST, "ambiguous"), (SECOND, "delivered")]


@pytest.mark.promise("cluster.delivery_order")
async def test_a_gateway_that_hung_before_it_sent_a_message_does_not_send_it_after_the_next_one(
    tmp_path: Path,
) -> None:
    async with open_cluster(tmp_path, gateways=0) as cluster, open_load(cluster) as load:
        sender, other = (cluster.add(linked=False) for _ in range(2))
        await sender.start(hang_at="before-delivery")
        await leader(load, ROLE)
        await other.start()
        await load.post("r0", 1)
        await until(lambda: sender.hangs)
        await load.post("r0", 2)
        await until(lambda: SECOND in arrived(cluster))
        sender.thaw()
        await load.outcome(await load.send("hook:s0", at=sender), at=sender)  # it is back
        await assert_sound(cluster, load)
        assert arrived(cluster) == [SECOND]
        assert cluster.rows(f"select state from deliveries where text = '{FIRST}'") == [("ambiguous",)]
