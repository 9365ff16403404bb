"""The verbs on sessions."""

import asyncio
from typing import Any

import pytest

from hobnob.errors import BadInput, LabelTaken, SessionExists, SessionNotFound
from hobnob.events import Change, TurnChanged
from hobnob.keys import parse
from hobnob.records import replace
from hobnob.store import Store, Tx, deliveries, entries, exchanges, sessions, turns
from hobnob.store.costs import usage as usage_rows
from hobnob.types import Delivery, Exchange, Session, Turn, Usage


def made(key: str, at: int = 0, **more: Any) -> Session:
    return Session.of(parse(key), created_at_ms=at, updated_at_ms=at, **more)


async def add(store: Store, *new: Session) -> None:
    def all_of_them(tx: Tx) -> None:
        for session in new:
            sessions.create(tx, session)

    await store.write(all_of_them)


async def keys_of(store: Store, **narrow: Any) -> list[str]:
    return [s.key for s in await store.read(sessions.page, **narrow)]


@pytest.mark.promise("keys.parts_are_columns")
async def test_a_session_comes_back_as_it_went_in(store: Store) -> None:
    new = made("agent:a:telegram:group:5:topic:7", 5, label="L", sandboxed=True, cost_usd=0.5)
    await store.write(sessions.create, new)
    assert await store.read(sessions.get, new.key) == new
    assert (new.kind, new.channel, new.chat_type, new.thread_id) == ("group", "telegram", "group", "7")


async def test_a_key_names_one_session(store: Store, session: Session) -> None:
    with pytest.raises(SessionExists):
        await store.write(sessions.create, session)
    assert await store.write(sessions.ensure, made(session.key)) == session


async def test_a_session_is_found_by_key_id_and_label(store: Store) -> None:
    new = await store.write(sessions.create, made("agent:a:main", label="boss"))
    assert await store.read(sessions.by_id, new.session_id) == new
    assert await store.read(lambda tx: list(sessions.with_label(tx, "boss"))) == [new]
    assert await store.read(sessions.find, "agent:b:main") is None
    with pytest.raises(SessionNotFound):
        await store.read(sessions.get, "agent:b:main")


async def test_a_label_belongs_to_one_session_of_an_agent(store: Store) -> None:
    await add(store, made("agent:a:main", label="boss"), made("agent:a:hook:1"), made("agent:b:main"))
    with pytest.raises(LabelTaken, match="boss"):
        await store.write(sessions.patch, "agent:a:hook:1", label="boss")
    assert (await store.write(sessions.patch, "agent:b:main", label="boss")).label == "boss"
    await store.write(sessions.patch, "agent:a:main", label=None)
    assert (await store.write(sessions.patch, "agent:a:hook:1", label="boss")).label == "boss"


async def test_a_label_belongs_to_one_child_of_a_session(store: Store) -> None:
    parents = made("agent:a:main", label="boss"), made("agent:b:main")
    await add(store, *parents)
    for number, parent in enumerate(parents):
        await add(store, made(f"agent:b:subagent:{number}", label="boss", spawned_by=parent))
        with pytest.raises(LabelTaken, match="sub-agent of this session"):
            await add(store, made(f"agent:c:subagent:{number}", label="boss", spawned_by=parent))


async def test_a_patch_changes_what_it_names_and_nothing_else(store: Store, session: Session) -> None:
    after = await store.write(sessions.patch, session.key, model_override="p/m", send_policy="deny")
    assert after.updated_at_ms >= session.updated_at_ms
    raised = {"updated_at_ms": after.updated_at_ms, "version": session.version + 1}
    expected = replace(session, model_override="p/m", send_policy="deny", **raised)
    assert await store.read(sessions.get, session.key) == expected


@pytest.mark.promise("transcript.numbered_from_one")
async def test_a_new_transcript_starts_at_one_and_the_old_one_stays_readable(
    store: Store, session: Session
) -> None:
    await store.write(entries.append, session.session_id, {"role": "user", "content": "old"})
    new = await store.write(sessions.reset, session.key)
    entry = await store.write(entries.append, new.session_id, {"role": "user", "content": "new"})
    assert (new.session_id != session.session_id, entry.seq) == (True, 1)
    assert [e.message["content"] for e in await store.read(entries.history, session.session_id)] == ["old"]
    assert await store.read(sessions.by_id, session.session_id) == new


async def test_a_deleted_session_leaves_nothing_but_what_it_cost(store: Store, session: Session) -> None:
    usage = Usage(day="2026-01-02", agent_id="a", session_key=session.key, model="m", calls=1, cost_usd=1.5)

    def use(tx: Tx) -> None:
        entries.append(tx, session.session_id, {"role": "user", "content": "platypus"})
        entries.index(tx)
        usage_rows.add(tx, usage)

    await store.write(use)
    assert await store.write(sessions.delete, session.key) == [session.session_id]
    assert await store.read(sessions.find, session.key) is None
    assert await store.read(entries.history, session.session_id) == []
    assert await store.read(entries.search, "platypus") == []
    assert await store.read(usage_rows.between, "2026-01-01", "2026-01-31") == [usage]


async def test_what_a_deleted_session_had_planned_does_not_happen_in_its_successor(
    store: Store, session: Session
) -> None:
    other = await store.write(sessions.create, made("agent:b:main"))
    waiting = Turn(session_key=session.key, session_id=session.session_id, agent_id="a", input="{}")
    exchange = Exchange(requester_key=other.key, target_key=session.key, request="secret plan")
    delivery = Delivery(session_key=session.key, channel="irc", recipient="ann", text="secret")
    await store.write(turns.accept, waiting)
    await store.write(exchanges.begin, exchange)
    await store.write(deliveries.create, delivery)
    heard: list[Change] = []
    store.watch(heard.extend)
    await store.write(sessions.delete, session.key)
    ended = [c.turn for c in heard if isinstance(c, TurnChanged)]
    assert [(t.turn_id, t.status) for t in ended] == [(waiting.turn_id, "ended")]
    await store.write(sessions.create, made(session.key))
    assert await store.write(turns.claim, session.key, "node") is None
    assert await store.read(deliveries.lanes) == []
    kept = await store.read(exchanges.get, exchange.exchange_id)
    assert kept.request == ""  # that they spoke stays known, what they said does not
    assert await store.read(turns.find, waiting.turn_id) is None


async def test_the_place_of_a_session_in_the_tree_cannot_be_patched(store: Store, session: Session) -> None:
    for field in ("lineage", "spawn_depth", "root_key", "input_tokens", "updated_at_ms"):
        with pytest.raises(BadInput, match=field):
            await store.write(sessions.patch, session.key, **{field: 1})


async def test_pages_come_newest_first_with_ties_by_key(store: Store) -> None:
    await add(store, made("agent:a:b", 1), made("agent:a:a", 1), made("agent:a:c", 2))
    assert await keys_of(store) == ["agent:a:c", "agent:a:a", "agent:a:b"]


async def test_pages_follow_each_other_without_gap_or_repeat(store: Store) -> None:
    await add(store, *(made(f"agent:a:s{i:02}", i // 3) for i in range(20)))
    seen: list[str] = []
    after = None
    while rows := await store.read(sessions.page, after=after, limit=3):
        seen += [s.key for s in rows]
        after = (rows[-1].updated_at_ms, rows[-1].key)
    assert seen == await keys_of(store, limit=100)
    assert len(set(seen)) == 20


async def test_a_page_can_be_narrowed_to_agent_kind_and_time(store: Store) -> None:
    await add(
        store,
        made("agent:a:main", 1),
        made("agent:a:cron:1", 2),
        made("agent:b:cron:1", 3),
        made("agent:b:slack:group:1", 4),
    )
    assert await keys_of(store, agent_id="a") == ["agent:a:cron:1", "agent:a:main"]
    assert await keys_of(store, kinds=["cron"]) == ["agent:b:cron:1", "agent:a:cron:1"]
    assert await keys_of(store, kinds=["main", "group"]) == ["agent:b:slack:group:1", "agent:a:main"]
    assert await keys_of(store, agent_id="b", kinds=["cron", "main"]) == ["agent:b:cron:1"]
    assert await keys_of(store, since_ms=3) == ["agent:b:slack:group:1", "agent:b:cron:1"]
    assert await keys_of(store, kinds=["cron"], limit=1) == ["agent:b:cron:1"]


async def test_a_page_of_a_tree_holds_the_session_and_everything_it_spawned(store: Store) -> None:
    root = made("agent:a:main", 1)
    child = made("agent:b:subagent:1", 2, spawned_by=root)
    grandchild = made("agent:c:subagent:2", 3, spawned_by=child)
    other = made("agent:a:subagent:3", 4, spawned_by=root)
    await add(store, root, child, grandchild, other, made("agent:a:cron:1", 5))
    assert await keys_of(store, tree_of=root) == [other.key, grandchild.key, child.key, root.key]
    assert await keys_of(store, tree_of=child) == [grandchild.key, child.key]
    assert await keys_of(store, tree_of=root, agent_id="a", limit=1) == [other.key]
    assert [s.key for s in await store.read(sessions.children, root.key)] == [child.key, other.key]


@pytest.mark.promise("archive.hidden", "archive.restorable")
async def test_archived_sessions_are_hidden_unless_asked_for_and_can_be_restored(store: Store) -> None:
    await add(store, made("agent:a:one", 1), made("agent:a:two", 2), made("agent:b:three", 3))
    await store.write(sessions.archive, "agent:a:one")
    assert await keys_of(store) == ["agent:b:three", "agent:a:two"]
    assert await keys_of(store, archived=True) == ["agent:a:one"]
    assert await keys_of(store, archived=True, agent_id="b") == []
    assert (await store.read(sessions.get, "agent:a:one")).archived_at_ms is not None
    await store.write(sessions.restore, "agent:a:one")
    assert (await keys_of(store))[0] == "agent:a:one"


async def test_the_time_of_last_use_never_goes_back(store: Store) -> None:
    far = 2**50
    await add(store, made("agent:a:main", far))
    await store.write(sessions.touch, "agent:a:main")
    await store.write(sessions.patch, "agent:a:main", label="x")
    assert (await store.read(sessions.get, "agent:a:main")).updated_at_ms == far


async def test_what_model_calls_cost_adds_up_by_session_and_by_day(store: Store, session: Session) -> None:
    def call(day: str, tokens: int) -> Usage:
        return Usage(
            day=day,
            agent_id="a",
            session_key=session.key,
            model="p/m",
            calls=1,
            input_tokens=tokens,
            cost_usd=tokens / 4,
        )

    await asyncio.gather(
        *(store.write(usage_rows.add, call(f"2026-01-0{1 + i % 2}", 2), context_tokens=7) for i in range(6))
    )
    after = await store.read(sessions.get, session.key)
    assert (after.input_tokens, after.cost_usd, after.total_tokens) == (12, 3.0, 12)
    assert (after.model, after.context_tokens) == ("p/m", 7)
    by_day = await store.read(usage_rows.between, "2026-01-01", "2026-01-01")
    assert [(u.calls, u.input_tokens, u.cost_usd) for u in by_day] == [(3, 6, 1.5)]
