"""sessions_list: what a row tells, which rows a page has, and in which order."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    Gate,
    append_messages,
    create_sessions,
    keys_in,
    spawn_and_wait,
    spawning_agents,
    three_agents,
    use,
)
from tests.waiting import LIMIT_S

from hobnob.keys import parse
from hobnob.store import Tx, sessions
from hobnob.testing import OWNER, calls, rehearse, say
from hobnob.types import Session, now_ms

SECRET = "sk-" + "proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8x" * 2
ONE_OF_EACH = {
    "main": BOB,
    "group": "agent:bob:irc:group:ops",
    "cron": "agent:bob:cron:7",
    "hook": "agent:bob:hook:1",
    "node": "agent:bob:node-n",
    "other": "agent:bob:irc:direct:joe",
}


@pytest.mark.promise("list.by_kind", "list.row_kind")
@pytest.mark.parametrize("kind", ONE_OF_EACH)
async def test_a_list_of_one_kind_holds_that_kind_only(tmp_path: Path, kind: str) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, *ONE_OF_EACH.values())
        listed = await use(gateway, "sessions_list", kinds=[kind], agentId="bob")
        assert [(row["key"], row["kind"]) for row in listed["sessions"]] == [(ONE_OF_EACH[kind], kind)]


@pytest.mark.promise("list.by_kind")
async def test_a_list_can_hold_several_kinds(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, *ONE_OF_EACH.values())
        listed = await use(gateway, "sessions_list", kinds=["cron", "group"])
        assert keys_in(listed) == [ONE_OF_EACH["cron"], ONE_OF_EACH["group"]]


@pytest.mark.promise("list.by_activity")
async def test_a_list_of_active_sessions_ends_at_the_minutes_asked_for(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:

        def make(tx: Tx) -> None:
            for minutes in (1, 9, 11, 100):
                session = Session.of(
                    parse(f"agent:bob:hook:{minutes}"), updated_at_ms=now_ms() - minutes * 60_000
                )
                sessions.create(tx, session)

        await gateway.store.write(make)
        listed = await use(gateway, "sessions_list", kinds=["hook"], activeMinutes=10)
        assert keys_in(listed) == ["agent:bob:hook:1", "agent:bob:hook:9"]


@pytest.mark.promise("list.by_label")
async def test_a_list_by_label_holds_the_one_session(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, "agent:bob:hook:1", label="desk")
        await create_sessions(gateway, "agent:bob:hook:2", label="desk lamp")
        assert keys_in(await use(gateway, "sessions_list", label=" desk ")) == ["agent:bob:hook:1"]


@pytest.mark.promise("list.archived_when_asked", "archive.hidden")
async def test_archived_sessions_are_listed_when_asked_for_and_only_then(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, "agent:bob:hook:1", "agent:bob:hook:2")
        await gateway.sessions.archive(OWNER, "agent:bob:hook:1")
        assert keys_in(await use(gateway, "sessions_list", kinds=["hook"])) == ["agent:bob:hook:2"]
        hidden = await use(gateway, "sessions_list", kinds=["hook"], archived=True)
        assert keys_in(hidden) == ["agent:bob:hook:1"]
        assert hidden["sessions"][0]["archivedAt"] > 0


@pytest.mark.promise("list.ties_by_key", "list.cursor")
async def test_sessions_that_changed_at_the_same_time_come_by_key_on_all_pages(tmp_path: Path) -> None:
    keys = [f"agent:bob:hook:{n}" for n in range(7)]
    async with rehearse(tmp_path, three_agents()) as gateway:

        def make(tx: Tx) -> None:
            for key in reversed(keys):
                sessions.create(tx, Session.of(parse(key), updated_at_ms=1_000))

        await gateway.store.write(make)
        pages, cursor = [], {}
        while True:
            page = await use(gateway, "sessions_list", kinds=["hook"], limit=3, **cursor)
            pages.append(keys_in(page))
            if not page["hasMore"]:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert pages == [keys[:3], keys[3:6], keys[6:]]


@pytest.mark.promise("list.count", "list.has_more")
@pytest.mark.parametrize(("limit", "count", "more"), [(2, 2, True), (3, 3, False), (4, 3, False)])
async def test_a_page_says_how_many_rows_it_has_and_whether_there_are_more(
    tmp_path: Path, limit: int, count: int, more: bool
) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, *(f"agent:bob:hook:{n}" for n in range(3)))
        page = await use(gateway, "sessions_list", kinds=["hook"], limit=limit)
        assert (page["count"], len(page["sessions"]), page["hasMore"]) == (count, count, more)
        assert ("nextCursor" in page) == more


@pytest.mark.promise("list.no_messages_by_default", "list.message_limit_clamped", "list.last_messages")
@pytest.mark.parametrize(("limit", "shown"), [({}, 0), (0, 0), (-3, 0), (3, 3), (20, 20), (99, 20)])
async def test_a_row_has_as_many_messages_as_were_asked_for_and_twenty_at_most(
    tmp_path: Path, limit: Any, shown: int
) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, "agent:bob:hook:1")
        await append_messages(gateway, hook, *(f"message {n}" for n in range(25)))
        asked = {"messageLimit": limit} if limit != {} else {}
        [row] = (await use(gateway, "sessions_list", kinds=["hook"], **asked))["sessions"]
        last = [f"message {n}" for n in range(25 - shown, 25)]
        assert [m["content"] for m in row.get("messages", [])] == last
        assert ("messages" in row) == (shown > 0)


@pytest.mark.promise("list.messages_sanitised")
async def test_messages_in_a_list_are_as_history_shows_them(tmp_path: Path) -> None:
    picture = {"type": "image", "data": "QUJD" * 50, "mimeType": "image/png"}
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, "agent:bob:hook:1")
        parts = [{"type": "text", "text": "y" * 5_000}, picture]
        await append_messages(gateway, hook, f"token={SECRET}", {"role": "user", "content": parts})
        [row] = (await use(gateway, "sessions_list", kinds=["hook"], messageLimit=9))["sessions"]
        read = await use(gateway, "sessions_history", sessionKey=hook.key)
        assert row["messages"] == read["messages"]
        assert SECRET not in str(row)
        text, shown = row["messages"][1]["content"]
        assert (len(text["text"]) < 4_100, "data" in shown) == (True, False)


@pytest.mark.promise("list.row_model_and_tokens")
async def test_a_row_tells_the_model_and_how_much_it_used(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "say: hello", BOB)
        [row] = (await use(gateway, "sessions_list", agentId="bob"))["sessions"]
        bob = await gateway.store.read(sessions.get, BOB)
        assert row["model"] == "rehearsal/rehearsal"
        assert row["totalTokens"] == bob.input_tokens + bob.output_tokens > 0
        assert row["contextTokens"] == bob.context_tokens
        await gateway.sessions.patch(OWNER, BOB, model_override="anthropic/claude")
        [row] = (await use(gateway, "sessions_list", agentId="bob"))["sessions"]
        assert row["model"] == "anthropic/claude"


@pytest.mark.promise("list.row_levels")
async def test_a_row_tells_the_levels_of_the_session(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await gateway.sessions.create(OWNER, BOB, thinking_level="high", verbose_level="on")
        [row] = (await use(gateway, "sessions_list", agentId="bob"))["sessions"]
        assert (row["thinkingLevel"], row["verboseLevel"]) == ("high", "on")


@pytest.mark.promise("list.row_status")
@pytest.mark.parametrize(
    ("steps", "status"), [(["fine"], "done"), ([{"error": "no model"}], "failed"), ([""], "done")]
)
async def test_a_row_tells_how_the_last_turn_ended(tmp_path: Path, steps: list[Any], status: str) -> None:
    async with rehearse(tmp_path, three_agents({BOB: steps})) as gateway:
        await say(gateway, "hi", BOB)
        [row] = (await use(gateway, "sessions_list", agentId="bob"))["sessions"]
        assert row["status"] == status


@pytest.mark.promise("list.row_status")
async def test_a_row_tells_of_a_turn_that_runs_and_of_one_that_was_stopped(tmp_path: Path) -> None:
    gate = Gate()
    async with rehearse(tmp_path, three_agents({BOB: [calls("hold")]}), tools=[gate.tool]) as gateway:
        turn = await gateway.sessions.send(OWNER, BOB, "go")
        await gate.reached.wait()
        [row] = (await use(gateway, "sessions_list", agentId="bob"))["sessions"]
        assert (row["status"], row["abortedLastRun"]) == ("running", False)
        await gateway.sessions.abort(OWNER, BOB)
        await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        [row] = (await use(gateway, "sessions_list", agentId="bob"))["sessions"]
        assert (row["status"], row["abortedLastRun"]) == ("killed", True)


@pytest.mark.promise("list.row_family")
async def test_a_row_tells_who_spawned_it_and_whom_it_spawned(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        ended = await spawn_and_wait(gateway, task="say done", agentId="bob")
        rows = {row["key"]: row for row in (await use(gateway, "sessions_list"))["sessions"]}
        child = rows[ended["target"]]
        assert (child["spawnedBy"], rows["main"]["childSessions"]) == ("main", [child["key"]])
        assert ("childSessions" in child, "spawnedBy" in rows["main"]) == (False, False)


@pytest.mark.promise("list.channel_of_direct_chats", "list.channel_of_groups")
async def test_a_direct_chat_is_where_it_last_came_through_and_a_group_where_it_is(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, "agent:bob:irc:direct:joe", BOB, last_channel="sms", last_to="joe")
        await create_sessions(gateway, "agent:bob:irc:group:ops", last_channel="sms", last_to="joe")
        rows = {row["key"]: row for row in (await use(gateway, "sessions_list", agentId="bob"))["sessions"]}
        assert rows["agent:bob:irc:direct:joe"]["channel"] == "sms"
        assert rows[BOB]["channel"] == "sms"
        assert rows["agent:bob:irc:group:ops"]["channel"] == "irc"


@pytest.mark.promise("list.row_route")
async def test_a_row_tells_where_an_answer_would_go(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, BOB, last_channel="sms", last_to="+123", last_thread_id="t1")
        [row] = (await use(gateway, "sessions_list", agentId="bob"))["sessions"]
        assert (row["lastChannel"], row["lastTo"]) == ("sms", "+123")
        assert row["deliveryContext"] == {"channel": "sms", "to": "+123", "threadId": "t1"}


@pytest.mark.promise("list.tells_visibility")
@pytest.mark.parametrize(
    ("tools", "told"),
    [
        ({"sessions": {"visibility": "self"}}, {"mode": "self", "restricted": True}),
        ({}, {"mode": "tree", "restricted": True}),
        ({"sessions": {"visibility": "all"}}, {"mode": "all", "restricted": True}),
        (
            {"sessions": {"visibility": "all"}, "agentToAgent": {"enabled": True}},
            {"mode": "all", "restricted": False},
        ),
    ],
    ids=["self", "default", "all but others", "all"],
)
async def test_a_list_says_how_far_it_sees(tmp_path: Path, tools: Any, told: Any) -> None:
    async with rehearse(tmp_path, three_agents() | {"tools": tools}) as gateway:
        assert (await use(gateway, "sessions_list", ANN))["visibility"] == told
