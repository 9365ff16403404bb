"""The verbs on turns, exchanges, deliveries and the exchange_rows."""

import asyncio
import json
import re
from typing import Any

import pytest

from hobnob import metering
from hobnob.errors import Fenced, NotFound
from hobnob.records import replace
from hobnob.spending import Limits, ModelCall
from hobnob.store import Store, deliveries, entries, exchanges, idempotency, jobs, sessions, turns
from hobnob.store.costs import budgets
from hobnob.store.deliveries import Lane
from hobnob.types import Delivery, Exchange, Job, Session, Turn


def turn(session: Session, text: str = "hello", **more: Any) -> Turn:
    return Turn(
        session_key=session.key,
        session_id=session.session_id,
        agent_id=session.agent_id,
        input=json.dumps({"role": "user", "content": text}),
        **more,
    )


@pytest.mark.promise("send.waits_its_turn")
async def test_turns_of_a_session_run_one_at_a_time_in_the_order_accepted(
    store: Store, session: Session
) -> None:
    accepted = await asyncio.gather(*(store.write(turns.accept, turn(session, str(i))) for i in range(5)))
    assert [t.position for t in accepted] == [1, 2, 3, 4, 5]
    ran = []
    while claimed := await store.write(turns.claim, session.key, "node"):
        assert await store.write(turns.claim, session.key, "node") is None
        ran.append(json.loads(claimed.input)["content"])
        await store.write(turns.end, claimed, "ok", reply="done")
    assert ran == ["0", "1", "2", "3", "4"]
    assert await store.read(turns.open_turns) == []


async def test_an_ended_turn_keeps_its_outcome(store: Store, session: Session) -> None:
    accepted = await store.write(turns.accept, turn(session))
    claimed = await store.write(turns.claim, session.key, "node")
    assert claimed is not None
    await store.write(turns.end, claimed, "failed", error="why")
    ended = await store.read(turns.get, accepted.turn_id)
    assert (ended.status, ended.outcome, ended.error) == ("ended", "failed", "why")
    assert ended.ended_at_ms is not None
    with pytest.raises(Fenced):
        await store.write(turns.end, claimed, "ok")


async def test_the_first_claim_sets_the_home_and_other_homes_claim_nothing(
    store: Store, session: Session
) -> None:
    for _ in range(2):
        await store.write(turns.accept, turn(session))
    first = await store.write(turns.claim, session.key, "a", home="one")
    assert first is not None
    await store.write(turns.end, first, "ok")
    assert (await store.read(sessions.get, session.key)).home == "one"
    assert await store.write(turns.claim, session.key, "b", home="two") is None
    waiting = await store.read(turns.next_of, session.key)
    assert waiting is not None
    assert waiting.input_seq is None  # nothing of it was written
    assert await store.write(turns.claim, session.key, "c") is not None  # one that has all files
    assert (await store.read(sessions.get, session.key)).home == "one"


async def test_the_older_of_two_claims_can_no_longer_write(store: Store, session: Session) -> None:
    await store.write(turns.accept, turn(session))
    older = await store.write(turns.claim, session.key, "one")
    assert older is not None
    await store.write(turns.release, older, crashed=True)
    with pytest.raises(Fenced):  # also while nobody has claimed it anew
        await store.write(turns.end, older, "ok")
    newer = await store.write(turns.claim, session.key, "two")
    assert newer is not None
    assert (newer.claim, newer.crashes, newer.turn_id) == (2, 1, older.turn_id)
    for verb in (turns.check_claim, turns.release):
        with pytest.raises(Fenced):
            await store.write(verb, older)
    with pytest.raises(Fenced):
        await store.write(turns.end, older, "ok")
    await store.write(turns.end, newer, "ok")


async def running_at_crash(store: Store, session: Session) -> Turn:
    await store.write(turns.accept, turn(session))
    claimed = await store.write(turns.claim, session.key, "node", "boot 1")
    assert claimed is not None
    await store.write(turns.recover, "boot 1")
    again = await store.write(turns.claim, session.key, "node", "boot 1")
    assert again is not None
    assert again.crashes == 1
    return again


async def test_a_turn_that_ran_at_two_kills_in_a_row_fails_and_says_when(
    store: Store, session: Session
) -> None:
    await running_at_crash(store, session)
    [ended] = await store.write(turns.recover, "boot 1")
    assert ended.outcome == "failed"
    assert re.search(r"killed 2 times .* \d{4}-\d\d-\d\d [\d:]{8} UTC and", str(ended.error))


async def test_a_step_between_two_kills_clears_the_count(store: Store, session: Session) -> None:
    again = await running_at_crash(store, session)
    await store.write(turns.progressed, again)
    assert await store.write(turns.recover, "boot 1") == []
    assert (await store.read(turns.get, again.turn_id)).crashes == 1


async def test_a_crash_on_another_machine_counts(store: Store, session: Session) -> None:
    await store.write(turns.accept, turn(session))
    ended: list[Turn] = []
    for claimed_on, recovered_on in (("one/boot 1", "two/boot 9"), ("two/boot 9", "three/boot 5")):
        assert ended == []
        assert await store.write(turns.claim, session.key, "node", claimed_on) is not None
        ended = await store.write(turns.recover, recovered_on)
    assert [each.outcome for each in ended] == ["failed"]


async def test_a_restart_of_the_machine_is_not_blamed_on_a_turn(store: Store, session: Session) -> None:
    again = await running_at_crash(store, session)
    assert await store.write(turns.recover, "boot 2") == []
    kept = await store.read(turns.get, again.turn_id)
    assert (kept.status, kept.crashes) == ("queued", 1)


async def test_a_kill_during_a_shutdown_is_not_blamed_on_a_turn(store: Store, session: Session) -> None:
    again = await running_at_crash(store, session)
    await store.write(turns.stopping, "node")
    assert await store.write(turns.recover, "boot 1") == []
    assert await store.write(turns.claim, session.key, "node", "boot 1") is not None
    [ended] = await store.write(turns.recover, "boot 1")  # the mark ends with its claim
    assert ended.turn_id == again.turn_id


async def test_input_enters_the_transcript_once_when_its_turn_begins(store: Store, session: Session) -> None:
    await store.write(turns.accept, turn(session, "one"))
    await store.write(turns.accept, turn(session, "two"))
    assert await store.read(entries.history, session.session_id) == []
    for crashed in (True, True, False):
        claimed = await store.write(turns.claim, session.key, "node")
        assert claimed is not None
        assert claimed.input_seq == 1
        await store.write(turns.release, claimed, crashed=crashed)
    said = [e.message["content"] for e in await store.read(entries.history, session.session_id)]
    assert said == ["one"]


async def test_collected_turns_become_one_turn_with_all_their_inputs(store: Store, session: Session) -> None:
    accepted = [
        await store.write(turns.accept, turn(session, text, queue_mode=mode))
        for text, mode in [("a", "collect"), ("b", "collect"), ("c", "followup"), ("d", "collect")]
    ]
    claimed = await store.write(turns.claim, session.key, "node")
    assert claimed is not None
    said = await store.read(entries.history, session.session_id)
    assert [(e.message["content"], e.turn_id) for e in said] == [
        ("a", claimed.turn_id),
        ("b", claimed.turn_id),
    ]
    await store.write(turns.end, claimed, "ok", reply="both")
    merged = await store.read(turns.get, accepted[1].turn_id)
    assert (merged.status, merged.merged_into) == ("ended", claimed.turn_id)
    following = await store.write(turns.claim, session.key, "node")
    assert following is not None
    assert following.turn_id == accepted[2].turn_id


async def test_a_running_turn_takes_what_steers_it_and_leaves_the_rest(
    store: Store, session: Session
) -> None:
    await store.write(turns.accept, turn(session, "go"))
    claimed = await store.write(turns.claim, session.key, "node")
    assert claimed is not None
    await store.write(turns.accept, turn(session, "left", queue_mode="steer"))
    await store.write(turns.accept, turn(session, "later"))
    taken = await store.write(turns.absorb, claimed, {"steer"})
    assert [e.message["content"] for e in taken] == ["left"]
    assert await store.write(turns.absorb, claimed, {"steer"}) == []
    assert len(await store.read(turns.open_turns)) == 2


async def test_a_session_tells_what_its_last_turn_did(store: Store, session: Session) -> None:
    seen = []
    outcomes: list[Any] = ["ok", "failed", "timed_out", "cancelled"]
    for outcome in outcomes:
        await store.write(turns.accept, turn(session))
        claimed = await store.write(turns.claim, session.key, "node")
        assert claimed is not None
        assert (await store.read(sessions.get, session.key)).status == "running"
        await store.write(turns.end, claimed, outcome)
        after = await store.read(sessions.get, session.key)
        seen.append((after.status, after.aborted_last_run))
    assert seen == [("done", False), ("failed", False), ("timeout", False), ("killed", True)]


async def test_an_exchange_and_its_turns_are_kept_together(store: Store, session: Session) -> None:
    exchange = Exchange(requester_key="agent:b:main", target_key=session.key, request="hi", max_turns=5)
    await store.write(exchanges.begin, exchange)
    first = await store.write(turns.accept, replace(turn(session), exchange_id=exchange.exchange_id))
    ended = replace(exchange, state="done", end_reason="reply_skip", first_reply="yes")
    ended = await store.write(exchanges.save, ended)
    assert ended.updated_at_ms >= exchange.updated_at_ms
    assert await store.read(exchanges.get, exchange.exchange_id) == ended
    assert await store.read(exchanges.turns, exchange.exchange_id) == [first]
    assert await store.read(exchanges.page) == [ended]
    with pytest.raises(NotFound):
        await store.write(exchanges.save, replace(exchange, exchange_id="other"))


async def test_a_gateway_that_lost_a_turn_settles_no_call_that_another_one_makes_for_it(
    store: Store, session: Session
) -> None:
    queued = await store.write(turns.accept, turn(session))
    lost = await store.write(turns.claim, session.key, "one")
    assert lost is not None and lost.turn_id == queued.turn_id
    await store.write(turns.release, lost)
    taken_over = await store.write(turns.claim, session.key, "two")
    assert taken_over is not None
    call = ModelCall(turn_id=queued.turn_id, input_tokens=10, max_output=10)
    reserved = await store.write(metering.reserve, Limits(tokens=1_000), session, taken_over, call)
    with pytest.raises(Fenced):
        await store.write(metering.give_back, lost, made=False)
    with pytest.raises(Fenced):
        await store.write(metering.extend, lost)
    assert await store.read(budgets.reservation, queued.turn_id) == reserved


async def test_a_delivery_is_claimed_once_and_settled_by_its_claim(store: Store, session: Session) -> None:
    new = Delivery(session_key=session.key, channel="webchat", recipient="ann", text="hi")
    await store.write(deliveries.create, new)
    assert await store.read(deliveries.lanes) == [Lane("webchat", None, "ann")]
    claimed = await store.write(deliveries.claim, new)
    assert (claimed.state, claimed.attempts) == ("sending", 1)
    assert await store.read(deliveries.head, Lane("webchat", None, "ann")) is None
    await store.write(deliveries.settle, claimed, "delivered", external_id="42")
    with pytest.raises(Fenced):
        await store.write(deliveries.settle, claimed, "failed")
    kept = await store.read(deliveries.find, new.delivery_id)
    assert kept is not None
    assert (kept.state, kept.external_id) == ("delivered", "42")


async def test_a_delivery_that_is_put_off_stays_first_in_its_lane(store: Store, session: Session) -> None:
    first, second = (Delivery(session_key=session.key, channel="irc", recipient="a", text=t) for t in "12")
    for new in (first, second):
        await store.write(deliveries.create, new)
    claimed = await store.write(deliveries.claim, first)
    await store.write(deliveries.settle, claimed, "pending", next_attempt_at_ms=2**60)
    head = await store.read(deliveries.head, Lane("irc", None, "a"))
    assert head is not None
    assert (head.delivery_id, head.next_attempt_at_ms) == (first.delivery_id, 2**60)


async def test_deliveries_are_sent_in_the_order_of_their_transactions(store: Store, session: Session) -> None:
    """Not of their ids, which have the time: the clock was set back, or is that of another gateway."""
    second, first = (Delivery(session_key=session.key, channel="irc", recipient="a", text=t) for t in "21")
    for new in (first, second):
        await store.write(deliveries.create, new)
    head = await store.read(deliveries.head, Lane("irc", None, "a"))
    assert first.delivery_id > second.delivery_id
    assert head == first


async def test_the_parts_of_a_delivery_are_fixed_by_its_first_claim(store: Store, session: Session) -> None:
    new = Delivery(session_key=session.key, channel="irc", recipient="ann", text="hi")
    await store.write(deliveries.create, new)
    claimed = await store.write(deliveries.claim, new, [{"text": "h"}, {"text": "i"}])
    claimed = await store.write(deliveries.progress, claimed, "7")
    waiting = await store.write(deliveries.settle, claimed, "pending")
    again = await store.write(deliveries.claim, waiting, [{"text": "other"}])
    assert (again.parts, again.part_ids, again.external_id) == ('[{"text":"h"},{"text":"i"}]', '["7"]', "7")


async def test_the_same_request_gets_the_first_answer(store: Store) -> None:
    await store.write(idempotency.remember, "agent", "k", "run-1")
    await store.write(idempotency.remember, "agent", "k", "run-2")
    await store.write(idempotency.remember, "chat", "k", "run-3")
    assert await store.read(idempotency.recall, "agent", "k") == "run-1"
    assert await store.read(idempotency.recall, "chat", "k") == "run-3"


async def test_scheduled_jobs_are_kept_changed_found_when_due_and_removed(store: Store) -> None:
    job = Job(
        agent_id="a",
        name="daily",
        schedule="{}",
        payload="{}",
        delivery="{}",
        target="isolated",
        next_run_at_ms=100,
    )
    await store.write(jobs.create, job)
    assert await store.read(jobs.due, 99) == []
    assert await store.read(jobs.due, 100) == [job]
    off = await store.write(jobs.save, replace(job, enabled=False))
    assert await store.read(jobs.due, 100) == []
    assert await store.read(jobs.page) == [off]
    await store.write(jobs.delete, job)
    assert await store.read(jobs.find, job.job_id) is None
    with pytest.raises(NotFound):
        await store.write(jobs.delete, job)
