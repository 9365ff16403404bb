"""What is old is removed in small steps, what is needed stays, and costs stay known."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import stores
from tests.integration.crashes import CrashCases, crash_cases
from tests.integration.helpers import ANN, BOB, Gate, append_messages, create_sessions, three_agents, use
from tests.integration.test_wire import client_of
from tests.waiting import until

from hobnob.errors import Gone, NotFound, RpcFailed
from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.policy import Operator
from hobnob.requests import SearchQuery
from hobnob.sessions import InboundMessage
from hobnob.store import (
    Store,
    Tx,
    approvals,
    deliveries,
    entries,
    idempotency,
    open_store,
    purge_entries,
    retention,
    sessions,
    turns,
)
from hobnob.store.costs import usage as usage_rows
from hobnob.store.engine import statements
from hobnob.store.engine.sqlite_file import connect
from hobnob.store.mirror import path_of
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say, script
from hobnob.types import Approval, Delivery, Session, Usage, now_ms

DAY_MS = 24 * 3_600_000
NOTHING = dict.fromkeys(
    "sessionsDeleted sessionsArchived transcripts jobTranscripts jobRuns exchanges turns deliveries"
    " approvals chatMessages usageRows waits idempotencyKeys".split(),
    0,
)


def maintenance(**settings: Any) -> dict[str, Any]:
    return three_agents() | {"session": {"maintenance": settings}}


async def in_days(gateway: Gateway, days: float, **more: Any) -> dict[str, int]:
    """What is removed when it is that many days later."""
    return await gateway.retention.clean_up(at_ms=now_ms() + int(days * DAY_MS), **more)


async def keys(gateway: Gateway, **which: Any) -> list[str]:
    return sorted(s.key for s in await gateway.store.read(sessions.page, limit=10_000, **which))


def count(tx: Tx, table: str) -> int:
    return stores.count_rows(tx, table)


# -- sessions


async def test_unused_sessions_of_hooks_are_deleted_and_conversations_archived(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        for key in ("hook:1", "agent:ann:dashboard:d", "agent:ann:irc:group:g", "main"):
            await say(gateway, "say hi", key)
        assert await in_days(gateway, 29) == NOTHING
        done = await in_days(gateway, 31)
        assert (done["sessionsDeleted"], done["sessionsArchived"]) == (1, 1)
        assert await keys(gateway) == ["agent:ann:irc:group:g", ANN]
        assert await keys(gateway, archived=True) == ["agent:ann:dashboard:d"]
        await in_days(gateway, 367)
        assert await keys(gateway, archived=True) == []
        assert await keys(gateway) == ["agent:ann:irc:group:g", ANN]


async def test_the_longest_unused_sessions_beyond_the_maximum_number_go_first(tmp_path: Path) -> None:
    async with rehearse(tmp_path, maintenance(maxEntries=3)) as gateway:
        for number in range(6):
            await say(gateway, "say hi", f"hook:{number}")
        done = await in_days(gateway, 0)
        assert done["sessionsDeleted"] == 3
        assert await keys(gateway) == [f"agent:ann:hook:{number}" for number in (3, 4, 5)]


async def test_finished_sub_agents_in_the_archive_are_bounded_too(tmp_path: Path) -> None:
    async with rehearse(tmp_path, maintenance(maxEntries=2)) as gateway:
        for session in await create_sessions(gateway, *(f"agent:ann:subagent:{n}" for n in range(5))):
            await gateway.store.write(sessions.archive, session.key)
        assert (await in_days(gateway, 0))["sessionsDeleted"] == 3
        assert len(await keys(gateway, archived=True)) == 2


async def test_a_session_with_open_work_is_not_pruned(tmp_path: Path) -> None:
    gate = Gate()
    scripts = script(calls("hold"), "done", session="hook:busy")
    async with rehearse(tmp_path, scripts, tools=[gate.tool]) as gateway:
        busy = await gateway.sessions.send(OWNER, "hook:busy", InboundMessage("go"))
        await gate.reached.wait()
        waiting = Delivery(
            session_key="agent:main:hook:d",
            channel="irc",
            recipient="ann",
            text="x",
            next_attempt_at_ms=2**60,  # else it fails, because there is no such channel
        )
        await create_sessions(gateway, "agent:main:hook:d", "agent:main:hook:idle")
        await gateway.store.write(deliveries.create, waiting)
        assert (await in_days(gateway, 400))["sessionsDeleted"] == 1
        assert await keys(gateway) == ["agent:main:hook:busy", "agent:main:hook:d"]
        gate.open.set()
        assert (await gateway.sessions.wait(busy.turn_id, 60)).outcome == "ok"


async def test_a_parent_stays_as_long_as_a_child_of_it_is_listed(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [parent] = await create_sessions(gateway, "agent:ann:hook:parent")
        child = Session.of(parse("agent:ann:subagent:c"), spawned_by=parent)
        await gateway.store.write(sessions.create, child)
        await in_days(gateway, 0)
        assert await keys(gateway) == [parent.key, child.key]
        await gateway.store.write(sessions.archive, child.key)
        await in_days(gateway, 0)
        assert await keys(gateway) == []


async def test_a_session_that_is_used_in_the_meantime_stays(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [session] = await create_sessions(gateway, "agent:ann:hook:1")
        await gateway.store.write(sessions.touch, session.key)
        assert await gateway.store.write(gateway.retention._apply, session, "delete") is False
        assert await keys(gateway) == [session.key]


# -- rows


async def test_ended_turns_are_removed_but_the_last_of_each_session(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        first, second, last = [await say(gateway, f"say {n}") for n in range(3)]
        assert await in_days(gateway, 89) == NOTHING | {"idempotencyKeys": 0}
        assert (await in_days(gateway, 91))["turns"] == 2
        assert [t.turn_id for t in (await gateway.store.read(turns.by_ids, [last.turn_id])).values()]
        for gone in (first, second):
            with pytest.raises(NotFound) as told:
                await gateway.sessions.wait(gone.turn_id, 1, caller=OWNER)
            assert "turnRetention" in str(told.value.fix)
        assert (await say(gateway, "say on")).outcome == "ok"


async def test_ended_exchanges_are_removed_and_open_ones_stay_with_their_turns(tmp_path: Path) -> None:
    gate = Gate()
    settings = three_agents({BOB: ["fine", "again", calls("hold"), "late"]})
    async with rehearse(tmp_path, settings, tools=[gate.tool]) as gateway:
        ended = await use(gateway, "sessions_send", ANN, sessionKey=BOB, message="hello")
        await exchange_ended(gateway, ended["exchangeId"])
        opened = await use(gateway, "sessions_send", ANN, sessionKey=BOB, message="wait", timeoutSeconds=0)
        await gate.reached.wait()
        done = await in_days(gateway, 91)
        assert done["exchanges"] == 1
        with pytest.raises(NotFound):
            await gateway.sessions.queries.exchange(OWNER, ended["exchangeId"])
        going = await gateway.sessions.queries.exchange(OWNER, opened["exchangeId"])
        assert going["state"] == "open"
        gate.open.set()
        assert (await exchange_ended(gateway, opened["exchangeId"]))["state"] == "done"


async def test_settled_deliveries_are_removed_and_waiting_ones_stay(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:

        def fill(tx: Tx) -> None:
            for name in ("sent", "waits"):
                later = {"next_attempt_at_ms": 2**60}  # so that the gateway does not send it
                note = Delivery(
                    delivery_id=name, session_key=ANN, channel="irc", recipient="a", text=name, **later
                )
                deliveries.create(tx, note)
                if name == "sent":
                    deliveries.settle(tx, deliveries.claim(tx, note), "delivered")

        await gateway.store.write(fill)
        assert (await in_days(gateway, 91))["deliveries"] == 1
        assert await gateway.store.read(deliveries.find, "sent") is None
        assert await gateway.store.read(deliveries.find, "waits") is not None


async def test_answered_questions_are_removed_and_open_ones_stay(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:

        def ask(tx: Tx) -> None:
            for name in ("answered", "open"):
                question = Approval(
                    approval_id=name, session_key=ANN, agent_id="ann", turn_id="t", call_id="c",
                    command="ls", expires_at_ms=2**60,
                )  # fmt: skip
                approvals.ask(tx, question)
            approvals.decide(tx, "answered", "denied", "owner")

        await gateway.store.write(ask)
        assert (await in_days(gateway, 31))["approvals"] == 1
        assert [q.approval_id for q in await gateway.store.read(approvals.pending)] == ["open"]


async def test_a_replaced_transcript_is_removed_with_its_file_and_words(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        await say(gateway, "remember: platypus")
        old = await gateway.store.read(sessions.get, "agent:main:main")
        await gateway.sessions.reset(OWNER, "main")
        await say(gateway, "remember: walrus")
        file = path_of(tmp_path, "main", old.session_id)
        await until(file.exists)
        assert (await in_days(gateway, 364))["transcripts"] == 0
        assert (await in_days(gateway, 366))["transcripts"] == 1
        await say(gateway, "say hi")  # without it the file is removed a minute later
        await until(lambda: not file.exists())
        found = await gateway.sessions.queries.search(OWNER, SearchQuery(query="platypus"))
        assert found["results"] == []
        assert await gateway.store.read(count, "entries") == 4
        assert await gateway.store.read(count, stores.WORDS_TABLE) == 4
        with pytest.raises(NotFound):
            await gateway.sessions.queries.history(OWNER, old.session_id)


async def test_costs_stay_known_as_sums_of_a_day(tmp_path: Path) -> None:
    settings = {"agents": {"list": [{"id": "main"}, {"id": "helper"}]}}
    async with rehearse(tmp_path, settings) as gateway:
        for number in range(300):
            call = Usage(
                day="2026-01-01", agent_id="main" if number % 3 else "helper", model="p/m",
                session_key=f"agent:main:hook:{number}", calls=1, input_tokens=2, cost_usd=0.5,
            )  # fmt: skip
            await gateway.store.write(usage_rows.add, call)
        before, _ = await gateway.sessions.queries.usage(OWNER, "2026-01-01", "2026-01-01")
        done = await gateway.retention.clean_up()
        after, by_session = await gateway.sessions.queries.usage(OWNER, "2026-01-01", "2026-01-01")
        assert done["usageRows"] == 300
        assert before == after and after is not None and after.cost_usd == 150
        assert by_session == []
        kept = await gateway.store.read(usage_rows.between, "2026-01-01", "2026-01-01")
        assert [(u.agent_id, u.session_key, u.calls) for u in kept] == [
            ("helper", "", 100),
            ("main", "", 200),
        ]
        narrow, _ = await gateway.sessions.queries.usage(
            Operator("n", ("operator.read",), ("helper",)), "2026-01-01", "2026-01-01"
        )
        assert narrow is not None and narrow.cost_usd == 50
        assert (await gateway.retention.clean_up())["usageRows"] == 0


# -- retries


async def test_a_retry_within_the_window_is_told_that_its_run_is_gone_and_runs_nothing(
    tmp_path: Path,
) -> None:
    async with rehearse(tmp_path, maintenance(maxEntries=1)) as gateway:
        once = InboundMessage("say hi", idempotency_key="k", turn_id="k")
        turn = await gateway.sessions.send(OWNER, "hook:1", once)
        await gateway.sessions.wait(turn.turn_id, 60)
        await say(gateway, "say hi", "hook:2")
        assert (await in_days(gateway, 0))["sessionsDeleted"] == 1
        with pytest.raises(Gone, match="not done a second time"):
            await gateway.sessions.send(OWNER, "hook:1", once)
        with pytest.raises(NotFound, match="There is no run k"):
            await gateway.sessions.wait("k", 1, caller=OWNER)
        assert await keys(gateway) == ["agent:ann:hook:2"]


async def test_an_idempotency_key_is_forgotten_after_its_window(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        await say(gateway, "say hi", idempotency_key="k")
        assert (await in_days(gateway, 6.9))["idempotencyKeys"] == 0
        assert (await in_days(gateway, 7.1))["idempotencyKeys"] == 1
        assert await gateway.store.read(idempotency.recall, "send:owner", "k") is None


async def test_what_a_running_turn_has_caused_is_kept_for_its_replay(tmp_path: Path) -> None:
    gate = Gate()
    sent = calls("sessions_send", sessionKey=BOB, message="hello")
    settings = three_agents({ANN: [sent, calls("hold"), "done"], BOB: ["fine", "again", "and again"]})
    async with rehearse(tmp_path, settings, tools=[gate.tool]) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", InboundMessage("go", idempotency_key="k"))
        await gate.reached.wait()
        await say(gateway, "say more", BOB)
        counts = await in_days(gateway, 400)
        kept = await gateway.store.read(count, "idempotency_keys")
        assert (counts["exchanges"], counts["idempotencyKeys"], kept) == (0, 0, 2)
        assert await gateway.store.read(count, "exchanges") == 1
        gate.open.set()
        await gateway.sessions.wait(turn.turn_id, 60)
        assert (await in_days(gateway, 400))["idempotencyKeys"] == 2


# -- how it is started


async def test_a_dry_run_counts_what_a_run_removes_and_removes_nothing(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        for number in range(3):
            await say(gateway, "say hi", f"hook:{number}", idempotency_key=f"k{number}")
            await say(gateway, "say hi")
        await say(gateway, "say hi", "agent:ann:dashboard:d")
        planned = await in_days(gateway, 100, dry_run=True)
        assert planned == await in_days(gateway, 100, dry_run=True)
        done = await in_days(gateway, 100)
        assert planned["sessionsDeleted"] == done["sessionsDeleted"] == 3
        assert planned["idempotencyKeys"] == done["idempotencyKeys"] == 3
        assert planned == done
        assert await in_days(gateway, 100) == NOTHING


async def test_with_mode_warn_nothing_is_removed_unless_it_is_enforced(tmp_path: Path) -> None:
    settings = {"session": {"maintenance": {"mode": "warn", "maxEntries": 1}}}
    async with client_of(tmp_path, settings) as client:
        for number in range(3):
            await client.ask("say hi", f"hook:{number}")
        planned = await client.call("sessions.cleanup")
        assert (planned["dryRun"], planned["counts"]["sessionsDeleted"]) == (True, 2)
        assert (await client.call("sessions.list"))["count"] == 3
        done = await client.call("sessions.cleanup", enforce=True)
        assert (done["dryRun"], done["counts"]["sessionsDeleted"]) == (False, 2)
        assert (await client.call("sessions.list"))["count"] == 1
        with pytest.raises(RpcFailed, match="dryRun"):
            await client.call("sessions.cleanup", enforce=True, dryRun=True)


async def test_the_gateway_removes_what_is_due_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hobnob.retention.INTERVAL_S", 0.01)
    async with rehearse(tmp_path, three_agents()) as gateway:
        deleted = asyncio.Event()
        gateway.store.watch(lambda changes: deleted.set())
        await create_sessions(gateway, "agent:ann:hook:old")
        async with asyncio.timeout(60):
            while await keys(gateway):
                deleted.clear()
                await deleted.wait()


# -- in small steps


async def fill_transcript(store: Store, count: int) -> Session:
    def fill(tx: Tx) -> Session:
        session = sessions.create(tx, Session.of(parse("agent:a:hook:long")))
        for number in range(count):
            entries.append(tx, session.session_id, {"role": "user", "content": f"word {number}"})
        return session

    return await store.write(fill)


async def test_a_long_transcript_is_removed_in_several_transactions(db: Path) -> None:
    async with open_store(f"sqlite:///{db}") as store:
        session = await fill_transcript(store, 250)
        await store.write(entries.index, step=120)
        await store.write(sessions.delete, session.key)
        steps = [await store.write(entries.purge) for _ in range(2)]
        assert steps == [True, True]
        # A new transcript does not get the number of one whose entries are still there.
        new = await store.write(sessions.create, Session.of(parse("agent:a:hook:new")))
        assert await store.read(entries.history, new.session_id) == []
        await purge_entries(store)
        assert await store.read(count, "entries") == 0
        assert await store.read(count, stores.WORDS_TABLE) == 0
        if not stores.ON_POSTGRES:
            await store.write(
                lambda tx: tx._execute("insert into entry_words (entry_words) values ('integrity-check')")
            )  # type: ignore[attr-defined]


async def test_a_deleted_transcript_is_purged_at_the_next_start(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/hobnob.db") as store:
        session = await fill_transcript(store, 250)
        await store.write(sessions.delete, session.key)
    async with rehearse(tmp_path) as gateway:
        async with asyncio.timeout(60):
            while await gateway.store.read(count, "entries"):
                await asyncio.sleep(0.01)


@pytest.mark.sqlite_file
async def test_freed_pages_are_used_again(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        sizes = []
        for round_number in range(3):
            made = await create_sessions(gateway, *(f"agent:ann:hook:{round_number}-{n}" for n in range(20)))
            for session in made:
                await append_messages(gateway, session, *["x" * 4000] * 20)
            assert (await gateway.retention.clean_up())["sessionsDeleted"] == 20
            sizes.append(await gateway.store.read(pages))
        assert sizes[2] <= 1.1 * sizes[0]


def pages(tx: Tx) -> int:
    return int(tx._execute("pragma page_count").fetchone()[0])  # type: ignore[attr-defined]


QUERIES = sorted(
    {rule.due for rule in vars(retention).values() if isinstance(rule, retention.Rule)}
    | {
        query
        for rule in vars(retention).values()
        if isinstance(rule, retention.Rule)
        for query in rule.removes
    }
    | {
        "sessions_idle",
        "sessions_idle_archived",
        "session_in_use",
        "purge_next",
        "purge_entries",
        "purge_delete",
    }
    | {"transcripts_purge", "transcripts_unfile", "transcripts_remove"}
)


@pytest.mark.sqlite_file
@pytest.mark.parametrize("query", QUERIES)
async def test_no_query_of_retention_reads_a_whole_table_or_sorts(db: Path, query: str) -> None:
    async with open_store(f"sqlite:///{db}"):
        pass
    connection = connect(db, read_only=True)
    params = dict.fromkeys(
        ("before", "after_time", "after_id", "limit", "until_ms", "key", "transcript", "seq", "count"), 0
    )
    sql = statements.load()[query]
    plan = [row[3] for row in connection.execute(f"explain query plan {sql}", params | {"ids": "[]"})]
    connection.close()
    scans = [
        step
        for step in plan
        if step.startswith("SCAN ") and not step.endswith(("json_each VIRTUAL TABLE INDEX 1:", "ROW"))
    ]
    sorts = [step for step in plan if "TEMP B-TREE" in step and query != "usage_add_up"]
    assert (scans if query != "purge_next" else [], sorts) == ([], []), plan


# -- crashes


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashCases]:
    with crash_cases("retention_crash_cases.py", tmp_path_factory.mktemp("retention")) as cases:
        yield cases


@pytest.mark.parametrize("visit", range(1, 9))
def test_after_a_crash_between_two_steps_the_next_run_goes_on(cases: CrashCases, visit: int) -> None:
    case, whole = cases[f"after-removal:{visit}"], cases["whole"]
    assert case["killed"] and not whole["killed"]
    assert case["left"] == whole["left"]
    assert case["cost"] == whole["cost"] == 12.5


async def test_old_copies_of_files_are_removed_although_something_else_lies_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that gateways share may have a folder `lost+found`."""
    monkeypatch.setattr("hobnob.retention.INTERVAL_S", 0.05)
    outgoing = tmp_path / "outgoing"
    (outgoing / "lost+found").mkdir(parents=True)
    (outgoing / "old").write_text("x")
    (outgoing / "new").write_text("x")
    for name in ("lost+found", "old"):
        os.utime(outgoing / name, (1, 1))
    async with rehearse(tmp_path, three_agents()):
        await until(lambda: sorted(p.name for p in outgoing.iterdir()) == ["lost+found", "new"])
