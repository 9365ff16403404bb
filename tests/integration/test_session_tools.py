"""What an agent sees through the session tools."""

import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    EVE,
    append_messages,
    create_sessions,
    keys_in,
    spawning_agents,
    three_agents,
    use,
)

from hobnob.keys import parse
from hobnob.policy import Operator
from hobnob.requests import SessionQuery
from hobnob.store import Tx, sessions
from hobnob.testing import OWNER, exchange_ended, rehearse, say
from hobnob.types import Session

TOOLS_WITH_A_TARGET = ("sessions_history", "sessions_send", "session_status", "sessions_search")
SECRET = "sk-" + "proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8x" * 2


def seen(visibility: str, *, others: bool = False, **more: Any) -> dict[str, Any]:
    tools = {"sessions": {"visibility": visibility}, "agentToAgent": {"enabled": others}}
    return three_agents() | {"tools": tools} | more


# -- sessions_list


@pytest.mark.promise("list.newest_first", "list.row_key", "list.channel_internal", "list.channel_unknown")
async def test_a_list_is_ordered_by_last_use_and_shows_the_callers_own_keys_short(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(
            gateway, BOB, "agent:ann:cron:7", "agent:ann:hook:h", "agent:bob:cron:7", "agent:ann:node-n"
        )
        answer = await use(gateway, "sessions_list")
        assert keys_in(answer) == ["main", "node-n", "agent:bob:cron:7", "hook:h", "cron:7", BOB]
        kinds = {row["key"]: (row["kind"], row["channel"]) for row in answer["sessions"]}
        assert kinds == {
            "main": ("main", "webchat"),
            "node-n": ("node", "internal"),
            "agent:bob:cron:7": ("cron", "internal"),
            "hook:h": ("hook", "internal"),
            "cron:7": ("cron", "internal"),
            BOB: ("main", "unknown"),
        }


@pytest.mark.promise(
    "list.by_label",
    "list.row_names",
    "list.row_updated",
    "list.row_session_id",
    "list.row_send_policy",
    "list.row_route",
    "list.row_transcript_path",
    "list.absent_when_unknown",
    "list.channel_of_groups",
)
async def test_a_row_holds_what_is_known_and_leaves_out_what_is_not(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [group] = await create_sessions(
            gateway, "agent:bob:irc:group:lobby", display_name="Lobby", label="the lobby", send_policy="deny"
        )
        row = (await use(gateway, "sessions_list", label="the lobby"))["sessions"][0]
        assert row == {
            "key": group.key,
            "kind": "group",
            "channel": "irc",
            "displayName": "Lobby",
            "label": "the lobby",
            "updatedAt": 1_000,
            "sessionId": group.session_id,
            "sendPolicy": "deny",
            "transcriptPath": str(tmp_path / "agents" / "bob" / "sessions" / f"{group.session_id}.jsonl"),
            "status": "idle",
            "systemSent": False,
            "abortedLastRun": False,
        }
        own = (await use(gateway, "sessions_list", kinds=["main"]))["sessions"][0]
        assert (own["key"], own["status"], own["lastChannel"], own["lastTo"]) == (
            "main",
            "running",
            "webchat",
            ANN,
        )
        assert own["model"] == "rehearsal/rehearsal"
        assert own["totalTokens"] > 0


@pytest.mark.promise(
    "list.filters_before_limit",
    "list.visibility_before_limit",
    "list.has_more",
    "list.cursor",
    "list.tells_visibility",
)
async def test_a_list_is_filtered_before_it_is_cut(tmp_path: Path) -> None:
    async with rehearse(tmp_path, seen("agent")) as gateway:
        mine = [f"agent:ann:hook:{n}" for n in range(6)]
        theirs = [f"agent:bob:hook:{n}" for n in range(30)]
        await create_sessions(gateway, *mine, *theirs)
        first = await use(gateway, "sessions_list", limit=4, kinds=["hook"])
        assert keys_in(first) == ["hook:5", "hook:4", "hook:3", "hook:2"]
        assert (first["hasMore"], first["visibility"]) == (True, {"mode": "agent", "restricted": True})
        rest = await use(gateway, "sessions_list", limit=4, kinds=["hook"], cursor=first["nextCursor"])
        assert (keys_in(rest), rest["hasMore"]) == (["hook:1", "hook:0"], False)
        assert "nextCursor" not in rest


@pytest.mark.promise("list.by_agent")
async def test_a_list_can_be_narrowed(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, "agent:bob:hook:1", "agent:eve:hook:2", "agent:bob:irc:group:ops")
        assert keys_in(await use(gateway, "sessions_list", agentId="BOB")) == [
            "agent:bob:irc:group:ops",
            "agent:bob:hook:1",
        ]
        assert keys_in(await use(gateway, "sessions_list", search="OPS")) == ["agent:bob:irc:group:ops"]
        assert keys_in(await use(gateway, "sessions_list", kinds=["group"])) == ["agent:bob:irc:group:ops"]
        assert keys_in(await use(gateway, "sessions_list", activeMinutes=5)) == ["main"]
        assert keys_in(await use(gateway, "sessions_list", label="none such")) == []


@pytest.mark.promise("list.last_messages")
async def test_a_list_can_show_the_last_messages_without_tool_results_and_secrets(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, "agent:bob:hook:1")
        result = {"role": "toolResult", "toolCallId": "1", "toolName": "x", "content": [], "isError": False}
        await append_messages(gateway, hook, "one", f"my key is {SECRET}", result, "three")
        answer = await use(gateway, "sessions_list", kinds=["hook"], messageLimit=2)
        shown = [m["content"] for m in answer["sessions"][0]["messages"]]
        assert shown[1] == "three"
        assert shown[0].startswith("my key is")
        assert SECRET not in orjson.dumps(answer).decode()
        assert "messages" not in (await use(gateway, "sessions_list", kinds=["hook"]))["sessions"][0]


@pytest.mark.promise("list.says_why_cut")
async def test_a_list_stays_within_its_bound_and_says_so(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        hooks = await create_sessions(gateway, *(f"agent:bob:hook:{n}" for n in range(12)))
        for hook in hooks:
            await append_messages(gateway, hook, *["x" * 3_000] * 5)
        seen_keys: list[str] = []
        cursor = None
        while True:
            more = {"cursor": cursor} if cursor else {}
            answer = await use(gateway, "sessions_list", kinds=["hook"], messageLimit=5, **more)
            assert len(orjson.dumps(answer["sessions"])) <= 64 * 1024
            seen_keys += keys_in(answer)
            if not answer["hasMore"]:
                break
            assert answer["truncationReason"] == "byte-limit"
            cursor = answer["nextCursor"]
        assert seen_keys == [f"agent:bob:hook:{n}" for n in reversed(range(12))]


@pytest.mark.promise("tools.numbers_are_clamped", "list.limit_default", "list.limit_clamped")
@pytest.mark.parametrize(
    ("arguments", "count"),
    [({"limit": 0}, 1), ({"limit": -5}, 1), ({"limit": 9999}, 200), ({"limit": "3"}, 3), ({}, 100)],
)
async def test_numbers_out_of_range_are_clamped(arguments: dict[str, Any], count: int) -> None:
    """In a directory with a short name: 200 rows with long transcript paths would exceed the byte limit."""
    with tempfile.TemporaryDirectory() as home:
        async with rehearse(Path(home), three_agents()) as gateway:
            await create_sessions(gateway, *(f"agent:bob:hook:{n}" for n in range(210)))
            assert (await use(gateway, "sessions_list", **arguments))["count"] == count


@pytest.mark.promise(
    "tools.wrong_types_are_refused",
    "tools.unknown_parameters_are_refused",
    "tools.unknown_choices_are_refused",
)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"kinds": ["cats"]}, "'main', 'group', 'cron', 'hook', 'node' or 'other'"),
        ({"limitt": 3}, "no parameter limitt, did you mean limit?"),
        ({"limit": "many"}, "limit"),
        ({"kinds": "main"}, "kinds"),
        ({"cursor": "nonsense"}, "cursor is not valid for this list"),
    ],
)
async def test_bad_parameters_are_refused_with_the_right_ones(
    tmp_path: Path, arguments: dict[str, Any], said: str
) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        answer = await use(gateway, "sessions_list", **arguments)
        assert answer["status"] == "error"
        assert said in answer["error"]


async def test_parameters_may_be_written_with_underscores_and_truth_as_text(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        answer = await use(gateway, "sessions_history", session_key="main", include_tools="true", limit="2")
        assert len(answer["messages"]) == 2


@pytest.mark.promise("keys.reserved_never_listed", "keys.reserved_never_created")
@pytest.mark.parametrize("scope", ["per-sender", "global"])
async def test_global_and_unknown_are_never_listed_nor_made(tmp_path: Path, scope: str) -> None:
    async with rehearse(tmp_path, three_agents(session={"scope": scope})) as gateway:
        await say(gateway, "hi", "main")
        assert keys_in(await use(gateway, "sessions_list")) == ["main"]
        for key in ("global", "unknown"):
            answer = await use(gateway, "sessions_history", sessionKey=key)
            told = answer.get("sessionKey"), answer.get("code")
            assert told == (("main", None) if scope == "global" else (None, "key.bad"))


# -- visibility


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (seen("self"), ["main"]),
        (seen("tree"), ["main", "agent:bob:subagent:c", "agent:ann:subagent:a"]),
        (seen("agent"), ["main", "agent:bob:subagent:c", "agent:ann:subagent:a", "hook:1"]),
        (seen("all"), ["main", "agent:bob:subagent:c", "agent:ann:subagent:a", "hook:1"]),
        (seen("all", others=True), ["main", "agent:bob:subagent:c", "agent:ann:subagent:a", BOB, "hook:1"]),
    ],
    ids=["self", "tree", "agent", "all, others off", "all"],
)
async def test_a_list_shows_what_the_caller_may_see(
    tmp_path: Path, settings: dict[str, Any], expected: list[str]
) -> None:
    async with rehearse(tmp_path, settings) as gateway:
        await say(gateway, "hi", ANN)
        await create_sessions(gateway, "agent:ann:hook:1", BOB)
        ann = await gateway.store.read(sessions.get, ANN)

        def spawn(tx: Tx) -> None:
            for at, key in ((2_000, "agent:ann:subagent:a"), (3_000, "agent:bob:subagent:c")):
                sessions.create(tx, Session.of(parse(key), spawned_by=ann, updated_at_ms=at))

        await gateway.store.write(spawn)
        assert keys_in(await use(gateway, "sessions_list")) == expected


@pytest.mark.promise("policy.restricted_unknown_is_forbidden", "policy.unknown_looks_like_invisible")
@pytest.mark.parametrize(
    ("tool", "reference"),
    [
        *product(TOOLS_WITH_A_TARGET, [BOB, "agent:bob:hook:none", "id", "none"]),
        ("sessions_send", "label"),
    ],
)
async def test_what_is_not_visible_looks_like_what_is_not_there(
    tmp_path: Path, tool: str, reference: str
) -> None:
    async with rehearse(tmp_path, seen("tree")) as gateway:
        [bob] = await create_sessions(gateway, BOB, label="bobs own")
        unknown = "018f0000-0000-7000-8000-000000000000"
        named = {"id": bob.session_id, "none": unknown}.get(reference, reference)
        more = {"sessions_send": {"message": "hi"}, "sessions_search": {"query": "hi"}}.get(tool, {})
        if reference == "label":
            answer = await use(gateway, tool, label="bobs own", **more)
            other = await use(gateway, tool, label="nobodys", **more)
        else:
            answer = await use(gateway, tool, sessionKey=named, **more)
            twin = {"id": unknown, BOB: EVE}.get(reference, named)
            other = await use(gateway, tool, sessionKey=twin, **more)
        assert (answer["status"], answer["code"]) == ("forbidden", "visibility.tree")
        assert "tools.sessions.visibility" in answer["fix"]
        assert "tools.agentToAgent.enabled" in answer["fix"]
        assert {k: v for k, v in answer.items() if k != "error"} == {
            k: v for k, v in other.items() if k != "error"
        }


@pytest.mark.promise(
    "more.search_finds_words", "more.search_sees_what_the_caller_sees", "policy.decides_search"
)
async def test_search_finds_only_in_sessions_the_caller_may_see(tmp_path: Path) -> None:
    async with rehearse(tmp_path, seen("agent")) as gateway:
        mine, theirs = await create_sessions(gateway, "agent:ann:hook:1", BOB)
        await append_messages(gateway, theirs, *["the zebra is theirs"] * 30)
        await append_messages(gateway, mine, f"{'x ' * 140}{SECRET} the zebra is mine, password={SECRET}")
        answer = await use(gateway, "sessions_search", query="zebra mine")
        found = {row["sessionKey"]: row["snippet"] for row in answer["results"]}
        assert sorted(found) == ["hook:1", "main"]  # the question itself was said in main
        assert "the zebra is mine" in found["hook:1"]
        assert SECRET[8:20] not in orjson.dumps(answer).decode()
        other = await use(gateway, "sessions_search", query="zebra theirs", sessionKey="hook:1")
        assert other["results"] == []


@pytest.mark.parametrize("before", [0, 10_000, 60_000, 120_000])
async def test_a_snippet_is_redacted_before_it_is_cut_from_a_long_text(tmp_path: Path, before: int) -> None:
    """The words are the last ones of a private key whose first line is far away."""
    words = " ".join("QbYx7Kd2Lm9" * 6 for _ in range(180))  # as long as the largest keys
    begin, end = (f"-----{word} PRIVATE " + "KEY-----" for word in ("BEGIN", "END"))
    key = f"{begin}\n{words.replace(' ', chr(10))}\nzebraZEBRAzebraZEBRA7\n{end}"
    async with rehearse(tmp_path, seen("agent")) as gateway:
        [mine] = await create_sessions(gateway, "agent:ann:hook:1")
        await append_messages(gateway, mine, f"{'x ' * (before // 2)}{key} that was it")
        answer = await use(
            gateway, "sessions_search", query="zebraZEBRAzebraZEBRA7", sessionKey="agent:ann:hook:1"
        )
        [hit] = answer["results"]
        assert "QbYx7Kd2" not in hit["snippet"] and "zebraZEBRA" not in hit["snippet"]


async def test_a_secret_at_the_cut_of_a_preview_is_redacted(tmp_path: Path) -> None:
    """In the list of sub-agents, and in the question for an approval."""
    task = f"{'x' * 180} {SECRET}"
    settings = spawning_agents({"*": ["done", "ANNOUNCE_SKIP"]})
    async with rehearse(tmp_path, settings) as gateway:
        started = await use(gateway, "sessions_spawn", task=task)
        listed = await use(gateway, "subagents", action="list")
        assert started["status"] == "accepted"
        assert SECRET[:12] not in orjson.dumps(listed).decode()
        assert "sk-p" in orjson.dumps(listed).decode()


# -- sessions_history


@pytest.mark.promise("history.newest_page", "history.oldest_first", "history.pages_backward")
async def test_history_is_the_newest_page_and_pages_backward(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, "agent:bob:hook:1")
        await append_messages(gateway, hook, *(f"message {n}" for n in range(1, 8)))
        pages, cursor = [], None
        while True:
            more = {"cursor": cursor} if cursor else {}
            answer = await use(gateway, "sessions_history", sessionKey=hook.key, limit=3, **more)
            pages.append([m["content"] for m in answer["messages"]])
            cursor = answer.get("nextCursor")
            if cursor is None:
                break
        assert pages == [
            ["message 5", "message 6", "message 7"],
            ["message 2", "message 3", "message 4"],
            ["message 1"],
        ]


@pytest.mark.promise("history.by_session_id")
async def test_history_takes_a_session_id_also_of_a_transcript_that_was_reset(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "say: before", BOB)
        old = await gateway.store.read(sessions.get, BOB)
        await gateway.sessions.reset(OWNER, BOB)
        await say(gateway, "say: after", BOB)
        for reference, expected in ((old.session_id, "say: before"), (BOB, "say: after")):
            answer = await use(gateway, "sessions_history", sessionKey=reference)
            assert answer["messages"][0]["content"] == expected
            assert answer["sessionKey"] == BOB


@pytest.mark.promise("history.no_tool_results_by_default", "history.tool_results_when_asked")
async def test_tool_results_are_shown_only_when_asked_for(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await use(gateway, "agents_list", BOB)
        for asked, roles in ((False, 0), (True, 1)):
            answer = await use(gateway, "sessions_history", sessionKey=BOB, includeTools=asked)
            assert sum(m["role"] == "toolResult" for m in answer["messages"]) == roles


@pytest.mark.promise("history.secrets_redacted", "history.long_text_cut", "history.no_image_data")
async def test_history_is_without_secrets_pictures_and_long_texts_and_says_so(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, "agent:bob:hook:1")
        image = {"type": "image", "data": "QUJD" * 100, "mimeType": "image/png"}
        await append_messages(
            gateway,
            hook,
            {"role": "user", "content": [{"type": "text", "text": "y" * 9_000}, image]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": f"token={SECRET}"}]},
        )
        answer = await use(gateway, "sessions_history", sessionKey=hook.key)
        text, picture = answer["messages"][0]["content"]
        assert (text["text"][:4_000], len(text["text"])) == ("y" * 4_000, 4_014)
        assert picture == {"type": "image", "mimeType": "image/png", "omitted": True, "bytes": 400}
        assert SECRET not in orjson.dumps(answer).decode()
        flags = ("truncated", "droppedMessages", "contentTruncated", "contentRedacted")
        assert [answer[flag] for flag in flags] == [True, 0, True, True]


async def test_history_stays_within_its_bound_by_leaving_out_the_oldest(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, "agent:bob:hook:1")
        await append_messages(gateway, hook, *(f"{n} " + "z" * 3_900 for n in range(40)))
        answer = await use(gateway, "sessions_history", sessionKey=hook.key)
        assert answer["bytes"] <= 80 * 1024
        assert (answer["truncated"], answer["droppedMessages"]) == (True, 40 - len(answer["messages"]))
        assert answer["messages"][-1]["content"].startswith("39 ")
        before = await use(gateway, "sessions_history", sessionKey=hook.key, cursor=answer["nextCursor"])
        assert before["messages"][-1]["seq"] == answer["messages"][0]["seq"] - 1


# -- session_status


@pytest.mark.promise("more.status", "more.only_its_own_tree")
async def test_status_tells_how_a_session_does_and_changes_the_model_of_ones_own_only(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "hi", BOB)
        answer = await use(gateway, "session_status", sessionKey=BOB)
        assert (answer["key"], answer["status"], answer["openTurns"]) == (BOB, "done", 0)
        refused = await use(gateway, "session_status", sessionKey=BOB, model="rehearsal/rehearsal")
        assert (refused["status"], refused["code"]) == ("forbidden", "control.not_descendant")
        changed = await use(gateway, "session_status", model="rehearsal/rehearsal")
        assert (changed["key"], changed["changedModel"]) == ("main", True)
        wrong = await use(gateway, "session_status", model="none/such")
        assert wrong["code"] == "model.unknown"
        ann = await gateway.store.read(sessions.get, ANN)
        assert ann.model_override == "rehearsal/rehearsal"
        await use(gateway, "session_status", model="default")
        assert (await gateway.store.read(sessions.get, ANN)).model_override is None


# -- operators


async def test_a_narrow_token_reads_only_exchanges_of_its_agents(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=BOB, message="say: yes")
        await exchange_ended(gateway, answer["exchangeId"])
        narrow = Operator("narrow", ("operator.read",), ("ann",))
        assert (await gateway.sessions.queries.exchanges(narrow))["count"] == 0
        assert (await gateway.sessions.queries.exchanges(Operator("n", ("operator.read",), ("ann", "bob"))))[
            "count"
        ] == 1
        listed = await gateway.sessions.queries.list(narrow, SessionQuery())
        assert [row["key"] for row in listed["sessions"]] == [ANN]


@pytest.mark.promise("send.by_label")
async def test_a_label_belongs_to_one_session(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await create_sessions(gateway, "agent:bob:hook:1", label="desk")
        answer = await use(gateway, "sessions_send", label="desk", message="say: here")
        assert (answer["status"], answer["reply"], answer["sessionKey"]) == ("ok", "here", "agent:bob:hook:1")
        both = await use(gateway, "sessions_send", label="desk", sessionKey=BOB, message="x")
        assert "not both" in both["error"]
        neither = await use(gateway, "sessions_send", message="x")
        assert "sessionKey, label or agentId" in neither["error"]
        elsewhere = await use(gateway, "sessions_send", label="desk", agentId="eve", message="x")
        assert elsewhere["code"] == "session.not_found"


@pytest.mark.promise("tools.refusal_has_a_code")
@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("agent:bob:hook:gone", "session.not_found"),
        ("agent:", "key.bad"),
        ("agent:bob:../../etc", "key.bad"),
        ("x" * 600, "key.bad"),
        ("", "input.bad"),
        ("agent:nobody:main", "agent.unknown"),
    ],
)
async def test_a_send_to_nowhere_is_an_error_that_helps(tmp_path: Path, key: str, code: str) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=key, message="hi")
        assert (answer["status"], answer["code"]) == ("error", code)
        assert (await gateway.sessions.queries.exchanges(OWNER))["count"] == 0
