"""The pump that brings messages to channels, with a channel that behaves badly in one way at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.channels.line import Line
from tests.integration.helpers import three_agents, use
from tests.waiting import LIMIT_S

from hobnob import config
from hobnob.channels import LoginNeeded, NotNow, Outgoing, Undeliverable
from hobnob.chats import pump
from hobnob.chats.accounts import Accounts
from hobnob.chats.inbox import confirm
from hobnob.chats.pump import MAX_ATTEMPTS, Pump
from hobnob.chats.webchat import Webchat
from hobnob.cluster import Alone
from hobnob.effects import Effects
from hobnob.events import Change, DeliveryChanged
from hobnob.hub import Hub
from hobnob.store import Store, Tx, deliveries, open_store
from hobnob.store.deliveries import Lane
from hobnob.testing import exchange_ended, rehearse
from hobnob.types import Delivery, DeliveryState, now_ms

OPS = "agent:bob:line:group:ops"
LANE = Lane("line", None, "ops")


def busy(_: Outgoing) -> Exception:
    return Undeliverable("the line is busy", again=True)


def first_only(trouble: Exception) -> Callable[[Outgoing], Exception | None]:
    troubles = [trouble]
    return lambda _: troubles.pop() if troubles else None


@dataclass(frozen=True)
class Outbox:
    """A store without a gateway around it, so that the only pump is the one of the test."""

    store: Store
    effects: Effects
    accounts: Accounts
    config: config.Config


@asynccontextmanager
async def open_outbox(home: Path, line: Line | None = None) -> AsyncIterator[Outbox]:
    (home / "hobnob.json5").write_bytes(orjson.dumps((line or Line()).settings()))
    loaded = config.load(env={"HOBNOB_HOME": str(home)})
    async with open_store(loaded.store_url, transcripts=home) as store:
        accounts = Accounts(loaded)
        yield Outbox(store, Effects(loaded, accounts.names), accounts, loaded)


@asynccontextmanager
async def pumping(outbox: Outbox) -> AsyncIterator[None]:
    """A pump with the accounts of its channels."""
    outbox.accounts.apply()
    run = Pump(outbox.store, outbox.config, outbox.effects, outbox.accounts, [Webchat(Hub())], Alone()).run()
    task = asyncio.create_task(run)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def claim(outbox: Outbox) -> None:
    """Claim the next delivery, and then the process is gone."""

    def begin(tx: Tx) -> None:
        head = deliveries.head(tx, LANE)
        assert head is not None
        deliveries.claim(tx, head, [{"text": head.text}])

    await outbox.store.write(begin)


async def post(outbox: Outbox, text: str = "hello", to: str = "ops", **more: Any) -> Delivery:
    delivery = Delivery(session_key=OPS, channel="line", recipient=to, text=text, **more)
    return await outbox.store.write(deliveries.create, delivery)


async def wait_for_delivery(
    outbox: Outbox, delivery: Delivery, wanted: Callable[[Delivery], bool]
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


async def wait_for_state(outbox: Outbox, delivery: Delivery, state: DeliveryState) -> Delivery:
    return await wait_for_delivery(outbox, delivery, lambda found: found.state == state)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between tries in thousandths of what they are, and the longest of 16 ms."""
    monkeypatch.setattr(pump, "_FIRST_RETRY_MS", 1)
    monkeypatch.setattr(pump, "_MAX_RETRY_MS", 16)


async def test_a_message_is_handed_to_its_channel_and_the_receipt_is_kept(tmp_path: Path) -> None:
    line = Line()
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        sent = await wait_for_state(outbox, await post(outbox), "delivered")
        assert (sent.external_id, sent.attempts, sent.error) == ("sent-1", 1, None)
        assert [(part.text, part.address.to) for part in line.sent] == [("hello", "ops")]


async def test_a_draft_that_a_killed_process_was_completing_is_completed_and_nothing_is_sent(
    tmp_path: Path,
) -> None:
    line = Line(edits=True)
    async with open_outbox(tmp_path, line) as outbox:
        answer = await post(outbox, "the whole answer", kind="reply")
        await claim(outbox)
        claimed = await outbox.store.read(deliveries.find, answer.delivery_id)
        assert claimed is not None
        await outbox.store.write(deliveries.note_draft, claimed, "draft-1")
        async with pumping(outbox):
            sent = await wait_for_state(outbox, answer, "delivered")
        assert (sent.external_id, line.sent) == ("draft-1", [])
        assert [(message_id, text) for message_id, text in line.edits] == [("draft-1", "the whole answer")]


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
    async with open_outbox(tmp_path, Line(trouble=busy)) as outbox, pumping(outbox):
        waiting = await wait_for_delivery(outbox, await post(outbox), lambda found: found.error is not None)
        assert (waiting.state, waiting.attempts, waiting.error) == ("pending", 1, "the line is busy")
        assert waiting.next_attempt_at_ms - 1_000 in clock


async def test_a_message_that_got_through_at_a_later_try_is_delivered(
    tmp_path: Path, short_pauses: None
) -> None:
    line = Line(trouble=first_only(Undeliverable("not now", again=True)))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        sent = await wait_for_state(outbox, await post(outbox), "delivered")
        assert (sent.attempts, sent.external_id, sent.error) == (2, "sent-1", None)


async def test_each_pause_is_twice_the_one_before_up_to_the_longest(
    tmp_path: Path, short_pauses: None, clock: list[int]
) -> None:
    times: list[int] = []
    line = Line(trouble=busy)
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        outbox.store.watch(lambda changes: times.extend(_next_attempts(changes)))
        await wait_for_state(outbox, await post(outbox), "failed")
    pauses = [1, 2, 4, 8] + [16] * (MAX_ATTEMPTS - 5)
    for pause, at_ms, next_at_ms in zip(pauses, line.sent_at_ms[:-1], times, strict=True):
        assert next_at_ms - pause in clock
        assert next_at_ms - pause >= at_ms


def _next_attempts(changes: list[Change]) -> list[int]:
    found = [c.delivery for c in changes if isinstance(c, DeliveryChanged)]
    return [d.next_attempt_at_ms for d in found if d.state == "pending" and d.attempts]


async def test_a_message_is_given_up_after_so_many_tries(tmp_path: Path, short_pauses: None) -> None:
    line = Line(trouble=busy)
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        lost = await wait_for_state(outbox, await post(outbox), "failed")
        assert (lost.attempts, len(line.sent_at_ms)) == (MAX_ATTEMPTS, MAX_ATTEMPTS)
        assert lost.error == "the line is busy"


async def test_a_message_the_channel_will_never_take_is_tried_once(tmp_path: Path) -> None:
    line = Line(trouble=lambda _: Undeliverable("no such room"))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        lost = await wait_for_state(outbox, await post(outbox), "failed")
        assert (lost.attempts, lost.error, len(line.sent_at_ms)) == (1, "no such room", 1)


async def test_a_rate_limit_is_not_counted_as_an_attempt(tmp_path: Path) -> None:
    line = Line(trouble=first_only(NotNow("slow down", 0.01)))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        sent = await wait_for_state(outbox, await post(outbox), "delivered")
        assert (sent.attempts, len(line.sent_at_ms)) == (1, 2)


async def test_a_message_that_a_limit_kept_for_a_day_is_given_up(tmp_path: Path) -> None:
    line = Line(trouble=lambda _: NotNow("slow down", 0.01))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        old = await post(outbox, created_at_ms=now_ms() - pump.MAX_AGE_MS - 1)
        lost = await wait_for_state(outbox, old, "failed")
        assert lost.error == "given up after 24 hours: slow down"


async def test_a_limited_chat_holds_up_no_other(tmp_path: Path) -> None:
    line = Line(trouble=lambda part: NotNow("slow down", 600) if part.address.to == "ops" else None)
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        held = await post(outbox)
        await wait_for_delivery(outbox, held, lambda found: found.error is not None)
        await wait_for_state(outbox, await post(outbox, to="dev"), "delivered")
        assert [part.address.to for part in line.sent] == ["dev"]


async def test_a_limit_of_the_account_holds_up_all_its_chats(tmp_path: Path) -> None:
    line = Line(trouble=first_only(NotNow("slow down", 0.5, scope="account")))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        await wait_for_delivery(outbox, await post(outbox), lambda found: found.error is not None)
        limited_at_ms = line.sent_at_ms[0]
        await wait_for_state(outbox, await post(outbox, to="dev"), "delivered")
        assert line.sent_at_ms[1] - limited_at_ms >= 450


async def test_refused_credentials_stop_the_account(tmp_path: Path) -> None:
    line = Line(trouble=lambda _: LoginNeeded("the token was revoked"))
    async with rehearse(tmp_path, line.settings()) as gateway:
        await line.connected.wait()
        posted = await gateway.store.write(
            deliveries.create, Delivery(session_key=OPS, channel="line", recipient="ops", text="hello")
        )
        outbox = Outbox(gateway.store, gateway.effects, gateway.chats.accounts, gateway.config)
        lost = await wait_for_state(outbox, posted, "failed")
        (status,) = gateway.chats.accounts.statuses()
        assert (lost.error, status.state, status.last_error) == (
            "the token was revoked",
            "stopped",
            "the token was revoked",
        )


async def test_a_long_message_goes_out_in_parts_and_a_retry_repeats_none(
    tmp_path: Path, short_pauses: None
) -> None:
    troubles = iter([None, Undeliverable("not now", again=True), None, None])
    line = Line(text_limit=10, trouble=lambda _: next(troubles))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        sent = await wait_for_state(outbox, await post(outbox, "one two three four five six"), "delivered")
        assert [part.text for part in line.sent] == ["one two", "three four", "five six"]
        assert [part.key for part in line.sent] == [f"{sent.delivery_id}:{n}" for n in range(3)]
        assert orjson.loads(sent.part_ids) == ["sent-1", "sent-2", "sent-3"]


async def test_a_part_whose_receipt_was_lost_does_not_keep_the_next_ones_back(tmp_path: Path) -> None:
    troubles = iter([None, ConnectionError("cut"), None])
    line = Line(text_limit=10, trouble=lambda _: next(troubles))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        unsure = await wait_for_state(outbox, await post(outbox, "one two three four five six"), "ambiguous")
        assert [part.text for part in line.sent] == ["one two", "five six"]
        assert orjson.loads(unsure.part_ids) == ["sent-1", None, "sent-2"]


async def test_later_proof_settles_what_was_ambiguous(tmp_path: Path) -> None:
    line = Line(trouble=first_only(ConnectionError("cut")))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        unsure = await wait_for_state(outbox, await post(outbox), "ambiguous")
        await outbox.store.write(confirm, f"{unsure.delivery_id}:0", "echo-7")
        proven = await wait_for_state(outbox, unsure, "delivered")
        assert (proven.external_id, proven.error) == ("echo-7", None)


async def test_a_channel_that_can_look_up_a_message_does_so_instead_of_sending_it_again(
    tmp_path: Path, short_pauses: None
) -> None:
    line = Line(finds_sent=True)

    def cut_after_sending(part: Outgoing) -> Exception | None:
        line.sent.append(part)
        return ConnectionError("cut")

    line.trouble = cut_after_sending
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        proven = await wait_for_state(outbox, await post(outbox), "delivered")
        assert (proven.external_id, len(line.sent)) == ("sent-1", 1)


async def test_after_a_crash_amid_sending_a_message_is_not_risked_twice(tmp_path: Path) -> None:
    line = Line()
    async with open_outbox(tmp_path, line) as outbox:
        begun = await post(outbox)
        await claim(outbox)
    async with open_outbox(tmp_path, line) as outbox:
        after = await post(outbox, "the next one")
        async with pumping(outbox):
            unsure = await wait_for_state(outbox, begun, "ambiguous")
            assert "was stopped" in str(unsure.error)
            await wait_for_state(outbox, after, "delivered")
    assert [part.text for part in line.sent] == ["the next one"]


async def test_after_a_crash_amid_sending_a_channel_that_knows_repeats_is_given_it_again(
    tmp_path: Path,
) -> None:
    line = Line(repeatable_s=inf)
    async with open_outbox(tmp_path, line) as outbox:
        begun = await post(outbox)
        await claim(outbox)
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        sent = await wait_for_state(outbox, begun, "delivered")
        assert (sent.attempts, sent.error) == (2, None)
    assert [part.key for part in line.sent] == [f"{begun.delivery_id}:0"]


async def test_a_repeat_is_not_risked_when_the_channel_no_longer_knows_it(tmp_path: Path) -> None:
    line = Line(repeatable_s=120)
    async with open_outbox(tmp_path, line) as outbox:
        begun = await post(outbox, part_started_at_ms=now_ms() - 121_000)
        await claim(outbox)
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        await wait_for_state(outbox, begun, "ambiguous")
    assert line.sent == []


async def test_a_fault_in_a_channel_leaves_it_open_whether_the_message_went_out(tmp_path: Path) -> None:
    line = Line(trouble=first_only(ValueError("out of range")))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        unsure = await wait_for_state(outbox, await post(outbox), "ambiguous")
        assert unsure.error == "ValueError: out of range"
        assert len(line.sent_at_ms) == 1


async def test_after_a_fault_a_channel_that_knows_repeats_is_given_the_message_again(
    tmp_path: Path, short_pauses: None
) -> None:
    line = Line(repeatable_s=inf, trouble=first_only(ValueError("out of range")))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        sent = await wait_for_state(outbox, await post(outbox), "delivered")
        assert (sent.attempts, len(line.sent_at_ms)) == (2, 2)


async def test_a_fault_in_a_channel_does_not_end_its_deliveries(tmp_path: Path) -> None:
    line = Line(trouble=first_only(ValueError("out of range")))
    async with open_outbox(tmp_path, line) as outbox, pumping(outbox):
        first = await wait_for_state(outbox, await post(outbox, "one"), "ambiguous")
        second = await wait_for_state(outbox, await post(outbox, "two"), "delivered")
        assert (first.attempts, second.attempts) == (1, 1)


async def test_messages_to_one_chat_keep_their_order_when_one_has_to_wait(
    tmp_path: Path, short_pauses: None
) -> None:
    line = Line(trouble=first_only(Undeliverable("not now", again=True)))
    async with open_outbox(tmp_path, line) as outbox:
        posted = [await post(outbox, text) for text in ("one", "two", "three")]
        async with pumping(outbox):
            for delivery in posted:
                await wait_for_state(outbox, delivery, "delivered")
    assert [part.text for part in line.sent] == ["one", "two", "three"]


async def test_a_message_for_a_channel_that_is_not_configured_fails_with_the_reason(tmp_path: Path) -> None:
    async with open_outbox(tmp_path) as outbox, pumping(outbox):
        lost = Delivery(session_key=OPS, channel="pager", recipient="ops", text="hello")
        failed = await wait_for_state(outbox, await outbox.store.write(deliveries.create, lost), "failed")
        assert failed.error == "The channel pager is not configured, or its account is disabled."


async def test_what_was_posted_while_the_pump_was_down_is_delivered_in_order(tmp_path: Path) -> None:
    line = Line()
    async with open_outbox(tmp_path, line) as outbox:
        waiting = [await post(outbox, str(n)) for n in range(5)]
        async with pumping(outbox):
            for delivery in waiting:
                await wait_for_state(outbox, delivery, "delivered")
    assert [part.text for part in line.sent] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("trouble", "state", "end"),
    [
        (None, "done", "delivered"),
        (Undeliverable("no such room"), "failed", "undelivered"),
        (ValueError("out of range"), "done", "ambiguous"),
    ],
    ids=["taken", "refused", "faulty"],
)
@pytest.mark.promise("announce.else_delivered", "exchange.says_why_it_ended")
async def test_how_its_announcement_fared_is_the_end_of_an_exchange(
    tmp_path: Path, trouble: Exception | None, state: str, end: str
) -> None:
    line = Line()
    settings = three_agents({OPS: ["Hello.", "yes", "Told."]}) | line.settings(groups={"ops": {}})
    settings["bindings"] = [{"agentId": "bob", "match": {"channel": "line"}}]
    async with rehearse(tmp_path, settings) as gateway:
        await line.say("hello bot", room="ops", mentioned=True)
        await line.posts()
        line.trouble = first_only(trouble) if trouble else (lambda _: None)
        answer: dict[str, Any] = await use(gateway, "sessions_send", sessionKey=OPS, message="?")
        ended = await exchange_ended(gateway, answer["exchangeId"])
        assert (ended["state"], ended["end"]) == (state, end)
        announced = [(part.address.to, part.text) for part in line.sent[1:]]
        assert announced == ([("To-ops", "Told.")] if trouble is None else [])
