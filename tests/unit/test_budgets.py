"""The accounting behind the limits: who is dropped, who waits, and that everything taken is given back."""

import asyncio

import pytest

from hobnob.api.budgets import Account, Budgets, Slot
from hobnob.config.gateway import GatewayLimits
from hobnob.errors import LimitReached
from hobnob.policy import Operator

READER = Operator("reader", ("operator.read",))
FEW = GatewayLimits.model_validate(
    {"unauthenticated": 4, "unauthenticatedPerAddress": 3, "connections": 2, "concurrentRequests": 2}
)


class Door:
    """Budgets with a clock of their own, and the connections that were dropped."""

    def __init__(self) -> None:
        self.now = 0.0
        self.dropped: list[str] = []
        self.budgets = Budgets(lambda: FEW, clock=lambda: self.now)

    def connect(self, name: str, address: str = "203.0.113.1", *, asks: bool = False) -> Slot:
        slot = self.budgets.connect(address, lambda: self.dropped.append(name))
        slot.has_asked = asks
        self.now += 1.0
        return slot


def test_the_oldest_silent_connection_is_dropped_before_older_ones_that_ask() -> None:
    door = Door()
    door.connect("asks", asks=True)
    door.connect("silent")
    door.connect("later")
    door.connect("new")
    assert door.dropped == ["silent"]


def test_a_connection_that_was_just_opened_is_not_dropped_as_silent() -> None:
    door = Door()
    for name in ("first", "second", "third"):
        door.connect(name, asks=True)
    door.connect("owner")
    door.now -= 0.9
    door.connect("next")
    assert door.dropped == ["first", "second"]


def test_the_address_with_the_most_connections_loses_one() -> None:
    door = Door()
    door.connect("alone", "203.0.113.9")
    for name in ("a", "b", "c"):
        door.connect(name)
    door.connect("other", "203.0.113.7")
    assert door.dropped == ["a"]
    assert len(door.budgets.strangers) == 4


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_is_one_address(address: str) -> None:
    door = Door()
    for name in ("a", "b", "c"):
        door.connect(name, "127.0.0.1")
    door.connect("d", address)
    assert door.dropped == ["a"]


def test_who_signs_in_leaves_the_strangers_and_is_counted_for_its_credential() -> None:
    door = Door()
    account = door.budgets.account(READER)
    slots = [door.connect(name) for name in ("a", "b", "c")]
    for slot in slots[:2]:
        slot.sign_in(account)
    with pytest.raises(LimitReached, match="'reader' may have 2 connections at a time"):
        slots[2].sign_in(account)
    slots[2].sign_in(door.budgets.account(Operator()))  # the owner may
    assert (len(door.budgets.strangers), account.used["connections"]) == (0, 2)
    for slot in slots:
        slot.close()
        slot.close()
    assert account.used["connections"] == 0
    slots[0].sign_in(account)  # a request that is handled after its connection was closed
    assert account.used["connections"] == 0


def test_a_client_that_claims_less_than_the_owner_may_is_limited() -> None:
    budgets = Budgets(GatewayLimits)
    assert budgets.account(Operator()).owner
    assert not budgets.account(Operator("owner", ("operator.read",))).owner


async def turn_of_the_loop() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_requests_start_in_their_order_when_one_before_them_ends() -> None:
    account = Account("reader", lambda: FEW)
    tickets = [account.open_ticket() for _ in range(5)]
    started: list[int] = []

    async def start(number: int) -> None:
        await tickets[number].start()
        started.append(number)

    tasks = [asyncio.create_task(start(number)) for number in range(5)]
    await turn_of_the_loop()
    assert started == [0, 1]
    tickets[0].close()
    await turn_of_the_loop()
    assert started == [0, 1, 2]
    tickets[3].give_up()  # its client left
    tickets[1].pause()  # it waits for something else than us
    await turn_of_the_loop()
    assert started == [0, 1, 2, 4]
    with pytest.raises(asyncio.CancelledError):
        await tasks[3]
    for ticket in tickets[1:]:
        ticket.close()
    await turn_of_the_loop()
    assert account.used["requests"] == 0
    assert await asyncio.wait_for(account.open_ticket().start(), 1) is None


async def test_a_request_that_is_cancelled_when_its_turn_comes_hands_it_on() -> None:
    account = Account("reader", lambda: FEW)
    tickets = [account.open_ticket() for _ in range(4)]
    tasks = [asyncio.create_task(ticket.start()) for ticket in tickets]
    await turn_of_the_loop()
    account.end_work()  # it is the turn of the third
    tasks[2].cancel()
    await turn_of_the_loop()
    assert tasks[3].done() and not tasks[3].cancelled()
