"""The verbs on transcripts."""

import asyncio
import threading
import time
from typing import Any

import pytest

from hobnob.errors import BadInput, SessionNotFound
from hobnob.events import Change, EntryAppended
from hobnob.keys import parse
from hobnob.store import Store, Tx, entries, search, sessions
from hobnob.types import Session


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


@pytest.mark.promise("transcript.numbered_from_one")
async def test_sequence_numbers_start_at_one_and_have_no_gap(store: Store, session: Session) -> None:
    new = await asyncio.gather(
        *(store.write(entries.append, session.session_id, said(str(i))) for i in range(50))
    )
    assert [e.seq for e in new] == list(range(1, 51))
    assert [e.seq for e in await store.read(entries.history, session.session_id)] == list(range(1, 51))


@pytest.mark.promise("transcript.comes_back_as_it_was")
async def test_a_message_comes_back_as_it_went_in(store: Store, session: Session) -> None:
    message = said("größer 🙂 \u2028") | {"usage": {"input": 3}, "nested": {"a": [1, None, 2.5]}}
    entry = await store.write(entries.append, session.session_id, message, turn_id="t")
    assert await store.read(entries.history, session.session_id) == [entry]
    assert (entry.message, entry.turn_id, entry.role) == (message, "t", "user")


async def test_a_transcript_that_is_not_there_is_an_error(store: Store) -> None:
    with pytest.raises(SessionNotFound):
        await store.write(entries.append, "nowhere", said("x"))


async def test_history_is_the_newest_page_oldest_first_and_pages_backward(
    store: Store, session: Session
) -> None:
    for i in range(1, 8):
        await store.write(entries.append, session.session_id, said(str(i)))
    newest = await store.read(entries.history, session.session_id, limit=3)
    assert [e.seq for e in newest] == [5, 6, 7]
    older = await store.read(entries.history, session.session_id, before=newest[0].seq, limit=3)
    assert [e.seq for e in older] == [2, 3, 4]
    assert [e.seq for e in await store.read(entries.after, session.session_id, 5)] == [6, 7]


async def test_lines_are_read_newest_first_with_tool_results_or_without(
    store: Store, session: Session
) -> None:
    for role in ["user", "assistant", "toolResult", "assistant"]:
        await store.write(entries.append, session.session_id, said("x", role))

    def lines(tx: Tx, **how: Any) -> list[entries.Line]:
        found = list(entries.lines(tx, session.session_id, **how))
        assert entries.count(tx, session.session_id, **how) == len(found)
        return found

    with_them = await store.read(lines, limit=3)
    assert [(seq, role) for seq, role, _ in with_them] == [
        (4, "assistant"),
        (3, "toolResult"),
        (2, "assistant"),
    ]
    without = await store.read(lines, before=4, tools=False, limit=2)
    assert [seq for seq, _, _ in without] == [2, 1]


async def test_search_finds_words_in_what_was_just_said(store: Store, session: Session) -> None:
    await store.write(entries.append, session.session_id, said("The quick brown fox"))
    await store.write(entries.append, session.session_id, said("A slow brown bear"))
    await store.write(entries.append, session.session_id, said("brown result", "toolResult"))
    assert [h.entry.seq for h in await search(store, "quick BROWN")] == [1]
    assert {h.entry.seq for h in await search(store, "brown")} == {1, 2}
    assert [h.session_key for h in await search(store, "bear")] == [session.key]


@pytest.mark.parametrize(
    "text", ['"', "a AND", "NEAR(", "*", "-x", "a:b", "(", "' or 1=1 --", "", "  ", "a\0b"]
)
async def test_search_takes_whatever_somebody_types(store: Store, session: Session, text: str) -> None:
    await store.write(entries.append, session.session_id, said("something else"))
    assert await search(store, text) == []


@pytest.mark.promise("transcript.roles")
@pytest.mark.parametrize(
    "message", [{}, {"role": "user"}, {"role": "king", "content": "x"}, {"role": "user", "content": 5}]
)
async def test_what_is_no_message_is_refused(store: Store, session: Session, message: Any) -> None:
    with pytest.raises(BadInput):
        await store.write(entries.append, session.session_id, message)


@pytest.mark.parametrize("content", [["hi"], [{"type": "text", "text": 5}], [{"type": "text"}], [None], []])
async def test_an_odd_message_disturbs_neither_search_nor_the_store(
    store: Store, session: Session, content: Any
) -> None:
    await store.write(entries.append, session.session_id, {"role": "user", "content": content})
    await store.write(entries.append, session.session_id, said("walrus"))
    assert [h.entry.seq for h in await search(store, "walrus")] == [2]


async def test_entries_that_follow_a_deletion_are_found_and_can_be_deleted_too(
    store: Store, session: Session
) -> None:
    for word in ("heron", "egret", "stork"):
        short_lived = await store.write(sessions.create, Session.of(parse(f"agent:a:subagent:{word}")))
        await store.write(entries.append, short_lived.session_id, said(word))
        assert [h.session_key for h in await search(store, word)] == [short_lived.key]
        await store.write(sessions.delete, short_lived.key)
        assert await search(store, word) == []


@pytest.mark.promise("archive.hidden")
async def test_search_leaves_archived_sessions_out(store: Store, session: Session) -> None:
    await store.write(entries.append, session.session_id, said("walrus"))
    await store.write(sessions.archive, session.key)
    assert await search(store, "walrus") == []


async def test_search_can_be_narrowed_to_an_agent_and_a_tree(store: Store, session: Session) -> None:
    child = Session.of(parse("agent:b:subagent:1"), spawned_by=session)
    other = Session.of(parse("agent:b:main"))
    for new in (child, other):
        await store.write(sessions.create, new)
        await store.write(entries.append, new.session_id, said("platypus"))
    found = [h.session_key for h in await search(store, "platypus", agent_id="b")]
    assert sorted(found) == [other.key, child.key]
    assert [h.session_key for h in await search(store, "platypus", tree_of=session)] == [child.key]
    assert await search(store, "platypus", agent_id="a") == []


async def test_watchers_hear_of_what_was_committed_and_of_nothing_else(
    store: Store, session: Session
) -> None:
    heard: list[Change] = []
    store.watch(heard.extend)

    def append_and_fail(tx: Tx) -> None:
        entries.append(tx, session.session_id, said("lost"))
        raise RuntimeError("planned")

    results = await asyncio.gather(
        store.write(entries.append, session.session_id, said("one")),
        store.write(append_and_fail),
        store.write(entries.append, session.session_id, said("two")),
        return_exceptions=True,
    )
    assert isinstance(results[1], RuntimeError)
    assert [(c.session_key, c.entry.seq) for c in heard if isinstance(c, EntryAppended)] == [
        (session.key, 1),
        (session.key, 2),
    ]


async def test_a_glance_sees_what_was_written(store: Store, session: Session) -> None:
    entry = await store.write(entries.append, session.session_id, said("hello"))

    assert await store.read_small(entries.history, session.session_id) == [entry]


@pytest.mark.parametrize("messages", [["a"] * 2000, ["x" * 20_000]], ids=["many rows", "a large row"])
async def test_a_glance_that_is_much_leaves_the_event_loop_alone(
    store: Store, session: Session, messages: list[str]
) -> None:
    def fill(tx: Tx) -> None:
        for text in messages:
            entries.append(tx, session.session_id, said(text))

    def look(tx: Tx) -> tuple[int, int]:
        return len(entries.history(tx, session.session_id, limit=10_000)), threading.get_ident()

    await store.write(fill)
    for _ in range(3):  # a second time too: what was broken off is over
        found, thread = await store.read_small(look)
        assert found == len(messages)
        assert thread != threading.get_ident()


@pytest.mark.parametrize("opener", ["sqlite"], indirect=True)
async def test_many_small_glances_stay_where_they_are(store: Store, session: Session) -> None:
    await store.write(entries.append, session.session_id, said("hello"))

    def look(tx: Tx) -> int:
        assert len(entries.history(tx, session.session_id)) == 1
        return threading.get_ident()

    for _ in range(2000):
        assert await store.read_small(look) == threading.get_ident()
        await asyncio.sleep(0)  # the next round of the event loop


@pytest.mark.parametrize("opener", ["sqlite"], indirect=True)
async def test_many_glances_at_once_do_not_hold_up_the_event_loop(store: Store, session: Session) -> None:
    def look(tx: Tx) -> int:
        until = time.perf_counter() + 0.001  # a verb has work of its own
        while time.perf_counter() < until:
            pass
        return threading.get_ident()

    where = await asyncio.gather(*(store.read_small(look) for _ in range(50)))
    assert 0 < where.count(threading.get_ident()) < 10


async def test_a_glance_that_fails_tells_why_and_the_next_one_works(store: Store) -> None:
    with pytest.raises(SessionNotFound):
        await store.read_small(entries.last_seq, "nobody")
    assert await store.read_small(lambda tx: tx.value("follower_get", name="words")) in (None, 0)
