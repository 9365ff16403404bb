"""The pump that brings messages to channels, with small channels that behave badly in one way each."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import three_agents, use
from tests.waiting import LIMIT_S

from hobnob import config
from hobnob.channels import Channel, Undeliverable, pump
from hobnob.channels.pump import MAX_ATTEMPTS, Pump
from hobnob.effects import Effects
from hobnob.events import Change, DeliveryChanged
from hobnob.gateway import Gateway
from hobnob.store import Store, deliveries, open_store
from hobnob.testing import OWNER, exchange_ended, rehearse
from hobnob.types import Delivery, DeliveryState, now_ms

OPS = "agent:bob:irc:group:ops"


class FakeChannel:
    """A channel that records deliveries, and fails as `trouble` says."""

    def __init__(
        self,
        name: str = "irc",
        *,
        repeatable: bool = False,
        trouble: Callable[[int], Exception | None] | None = None,
    ) -> None:
        self.name, self.repeatable = name, repeatable
        self.given: list[Delivery] = []
        self.given_at_ms: list[int] = []
        self._trouble = trouble or (lambda _: None)

    async def send(self, delivery: Delivery) -> str | None:
        self.given.append(delivery)
        self.given_at_ms.append(now_ms())
        if (trouble := self._trouble(len(self.given))) is not None:
            raise trouble
        return f"sent-{len(self.given)}"


class StuckChannel(FakeChannel):
    """A channel that blocks until `free` is set."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.reached, self.free = asyncio.Event(), asyncio.Event()

    async def send(self, delivery: Delivery) -> str | None:
        self.reached.set()
        await self.free.wait()
        return await super().send(delivery)


def busy(_: int) -> Exception:
    return Undeliverable("the line is busy", again=True)


def first_only(trouble: Exception) -> Callable[[int], Exception | None]:
    return lambda attempt: trouble if attempt == 1 else None


@dataclass(frozen=True)
class Outbox:
    """A store without a gateway around it, so that the only pump is the one of the test."""

    store: Store
    effects: Effects


@asynccontextmanager
async def open_outbox(home: Path) -> AsyncIterator[Outbox]:
    loaded = config.load(env={"HOBNOB_HOME": str(home)})
    async with open_store(loaded.store_url, transcripts=home) as store:
        yield Outbox(store, Effects(loaded))


@asynccontextmanager
async def pumping(outbox: Outbox | Gateway, *given_channels: Channel) -> AsyncIterator[None]:
    """A pump for these channels."""
    pump = asyncio.create_task(Pump(outbox.store, outbox.effects, given_channels).run())
    try:
        yield
    finally:
        pump.cancel()
        await asyncio.wait([pump])


async def post(outbox: Outbox | Gateway, text: str = "hello", channel: str = "irc") -> Delivery:
    delivery = Delivery(session_key=OPS, channel=channel, recipient="ops", text=text)
    return await outbox.store.write(deliveries.create, delivery)


async def wait_for_delivery(
    outbox: Outbox | Gateway, delivery: Delivery, wanted: Callable[[Delivery], bool]
) -> Delivery:
    """The delivery, once the condition holds."""
    news = asyncio.Event()

    def changed(changes: list[Change]) -> None:
        if any(isinstance(change, DeliveryChanged) for change in changes):
            news.set()

    outbox.store.watch(changed)
    async with asyncio.timeout(LIMIT_S):
        while True:
            news.clear()
            found = await outbox.store.read(deliveries.find, delivery.delivery_id)
            assert found is not None
            if wanted(found):
                return found
            await news.wait()


async def wait_for_state(outbox: Outbox | Gateway, delivery: Delivery, state: DeliveryState) -> Delivery:
    return await wait_for_delivery(outbox, delivery, lambda found: found.state == state)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between tries in thousandths of what they are, and the longest of 16 ms."""
    monkeypatch.setattr(pump, "_FIRST_RETRY_MS", 1)
    monkeypatch.setattr(pump, "_MAX_RETRY_MS", 16)


async def test_a_message_is_handed_to_its_channel_and_the_receipt_is_kept(tmp_path: Path) -> None:
    channel = FakeChannel()
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        sent = await wait_for_state(outbox, await post(outbox), "delivered")
        assert (sent.external_id, sent.attempts, sent.error) == ("sent-1", 1, None)
        assert [(d.text, d.recipient) for d in channel.given] == [("hello", "ops")]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every time the pump looked at the clock."""
    times: list[int] = []

    def look() -> int:
        times.append(now_ms())
        return times[-1]

    monkeypatch.setattr(pump, "now_ms", look)
    return times


async def test_a_message_the_channel_may_take_later_waits_its_time(tmp_path: Path, clock: list[int]) -> None:
    channel = FakeChannel(trouble=busy)
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        waiting = await wait_for_delivery(outbox, await post(outbox), lambda found: found.error is not None)
        assert (waiting.state, waiting.attempts, waiting.error) == ("pending", 1, "the line is busy")
        assert waiting.next_attempt_at_ms - 1_000 in clock


async def test_a_message_that_got_through_at_a_later_try_is_delivered(
    tmp_path: Path, short_pauses: None
) -> None:
    channel = FakeChannel(trouble=first_only(Undeliverable("not now", again=True)))
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        sent = await wait_for_state(outbox, await post(outbox), "delivered")
        assert (sent.attempts, sent.external_id, sent.error) == (2, "sent-2", None)


async def test_each_pause_is_twice_the_one_before_up_to_the_longest(
    tmp_path: Path, short_pauses: None, clock: list[int]
) -> None:
    channel = FakeChannel(trouble=busy)
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        await wait_for_state(outbox, await post(outbox), "failed")
    pauses = [1, 2, 4, 8] + [16] * (MAX_ATTEMPTS - 5)
    for pause, at_ms, attempt in zip(pauses, channel.given_at_ms[:-1], channel.given[1:], strict=True):
        failed_at_ms = attempt.next_attempt_at_ms - pause
        assert failed_at_ms in clock
        assert failed_at_ms >= at_ms


async def test_a_message_is_given_up_after_so_many_tries(tmp_path: Path, short_pauses: None) -> None:
    channel = FakeChannel(trouble=busy)
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        lost = await wait_for_state(outbox, await post(outbox), "failed")
        assert (lost.attempts, len(channel.given), lost.error) == (
            MAX_ATTEMPTS,
            MAX_ATTEMPTS,
            "the line is busy",
        )


async def test_a_message_the_channel_will_never_take_is_tried_once(tmp_path: Path) -> None:
    channel = FakeChannel(trouble=lambda _: Undeliverable("no such room", again=False))
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        lost = await wait_for_state(outbox, await post(outbox), "failed")
        assert (lost.attempts, lost.error, len(channel.given)) == (1, "no such room", 1)


async def test_after_a_crash_amid_sending_a_message_is_not_risked_twice(tmp_path: Path) -> None:
    channel = FakeChannel()
    async with open_outbox(tmp_path) as outbox:
        begun = await post(outbox)
        await outbox.store.write(deliveries.claim, "irc")  # and then the process is gone
    async with open_outbox(tmp_path) as outbox:
        after = await post(outbox, "the next one")
        async with pumping(outbox, channel):
            unsure = await wait_for_state(outbox, begun, "ambiguous")
            assert "was stopped" in str(unsure.error)
            await wait_for_state(outbox, after, "delivered")
    assert [d.text for d in channel.given] == ["the next one"]


async def test_after_a_crash_amid_sending_a_channel_that_knows_repeats_is_given_it_again(
    tmp_path: Path,
) -> None:
    channel = FakeChannel(repeatable=True)
    async with open_outbox(tmp_path) as outbox:
        begun = await post(outbox)
        await outbox.store.write(deliveries.claim, "irc")
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        sent = await wait_for_state(outbox, begun, "delivered")
        assert (sent.attempts, sent.error) == (2, None)
    assert [d.delivery_id for d in channel.given] == [begun.delivery_id]


async def test_a_fault_in_a_channel_leaves_it_open_whether_the_message_went_out(tmp_path: Path) -> None:
    channel = FakeChannel(trouble=first_only(ValueError("out of range")))
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        unsure = await wait_for_state(outbox, await post(outbox), "ambiguous")
        assert unsure.error == "ValueError: out of range"
        assert len(channel.given) == 1


async def test_after_a_fault_a_channel_that_knows_repeats_is_given_the_message_again(
    tmp_path: Path, short_pauses: None
) -> None:
    channel = FakeChannel(repeatable=True, trouble=first_only(ValueError("out of range")))
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        sent = await wait_for_state(outbox, await post(outbox), "delivered")
        assert (sent.attempts, len(channel.given)) == (2, 2)


async def test_a_fault_in_a_channel_does_not_end_its_deliveries(tmp_path: Path) -> None:
    channel = FakeChannel(trouble=first_only(ValueError("out of range")))
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        first = await wait_for_state(outbox, await post(outbox, "one"), "ambiguous")
        second = await wait_for_state(outbox, await post(outbox, "two"), "delivered")
        assert (first.attempts, second.attempts) == (1, 1)
        assert [d.text for d in channel.given] == ["one", "two"]


async def test_a_message_that_waits_does_not_hold_up_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "_FIRST_RETRY_MS", 600_000)
    channel = FakeChannel(trouble=first_only(Undeliverable("not now", again=True)))
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        first = await post(outbox, "one")
        await wait_for_delivery(outbox, first, lambda found: found.error is not None)
        await wait_for_state(outbox, await post(outbox, "two"), "delivered")
        assert [d.text for d in channel.given] == ["one", "two"]


async def test_a_channel_that_is_stuck_does_not_hold_up_another(tmp_path: Path) -> None:
    stuck, free = StuckChannel("irc"), FakeChannel("sms")
    async with open_outbox(tmp_path) as outbox, pumping(outbox, stuck, free):
        held = await post(outbox, "held up", "irc")
        await stuck.reached.wait()
        await wait_for_state(outbox, await post(outbox, "passed", "sms"), "delivered")
        assert stuck.given == []
        stuck.free.set()
        await wait_for_state(outbox, held, "delivered")


async def test_a_message_for_a_channel_that_is_not_there_waits_for_it(tmp_path: Path) -> None:
    channel = FakeChannel()
    async with open_outbox(tmp_path) as outbox:
        waiting = await post(outbox)
    async with open_outbox(tmp_path) as outbox, pumping(outbox, channel):
        sent = await wait_for_state(outbox, waiting, "delivered")
        assert (sent.attempts, [d.delivery_id for d in channel.given]) == (1, [waiting.delivery_id])


async def test_what_was_posted_while_the_pump_was_down_is_delivered_in_order(tmp_path: Path) -> None:
    channel = FakeChannel()
    async with open_outbox(tmp_path) as outbox:
        waiting = [await post(outbox, str(n)) for n in range(5)]
        async with pumping(outbox, channel):
            for delivery in waiting:
                await wait_for_state(outbox, delivery, "delivered")
    assert [d.text for d in channel.given] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("channel", "state", "end"),
    [
        (FakeChannel(), "done", "delivered"),
        (FakeChannel(trouble=lambda _: Undeliverable("no such room", again=False)), "failed", "undelivered"),
        (FakeChannel(trouble=first_only(ValueError("out of range"))), "done", "ambiguous"),
    ],
    ids=["taken", "refused", "faulty"],
)
@pytest.mark.promise("announce.else_delivered", "exchange.says_why_it_ended")
async def test_how_its_announcement_fared_is_the_end_of_an_exchange(
    tmp_path: Path, channel: FakeChannel, state: str, end: str
) -> None:
    async with (
        rehearse(tmp_path, three_agents({OPS: ["yes", "Told."]})) as gateway,
        pumping(gateway, channel),
    ):
        await gateway.sessions.create(OWNER, OPS)
        answer: dict[str, Any] = await use(gateway, "sessions_send", sessionKey=OPS, message="?")
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert (ended["state"], ended["end"]) == (state, end)
        assert [(d.channel, d.recipient, d.text) for d in channel.given] == [("irc", "ops", "Told.")]
