"""sessions_history: how much of a transcript a page holds, and in which form."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    append_messages,
    create_sessions,
    three_agents,
    transcript,
    use,
)

from hobnob.store import Tx, entries
from hobnob.testing import rehearse, say
from hobnob.types import Session

HOOK = "agent:bob:hook:1"
FLAGS = ("truncated", "droppedMessages", "contentTruncated", "contentRedacted")
SECRET = "sk-" + "proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8x" * 2
IMAGE = {"role": "user", "content": [{"type": "image", "data": "QUJD", "mimeType": "image/png"}]}


async def filled(gateway: Any, count: int) -> Session:
    [hook] = await create_sessions(gateway, HOOK)

    def fill(tx: Tx) -> None:
        for n in range(1, count + 1):
            entries.append(tx, hook.session_id, {"role": "user", "content": f"m{n}"})

    await gateway.store.write(fill)
    return hook


@pytest.mark.promise("history.needs_a_session")
async def test_history_needs_a_session(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        answer = await use(gateway, "sessions_history")
        assert answer["status"] == "error"
        assert "sessionKey is required" in answer["error"]


@pytest.mark.promise("history.by_session_id")
async def test_an_id_out_of_a_list_is_as_good_as_the_key(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await say(gateway, "say: hello", BOB)
        [row] = (await use(gateway, "sessions_list", agentId="bob"))["sessions"]
        by_id = await use(gateway, "sessions_history", sessionKey=row["sessionId"].upper())
        assert by_id == await use(gateway, "sessions_history", sessionKey=BOB)
        assert by_id["messages"][0]["content"] == "say: hello"


@pytest.mark.promise("history.unknown_id_is_refused")
async def test_an_id_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        unknown = "018f0000-0000-7000-8000-000000000000"
        answer = await use(gateway, "sessions_history", sessionKey=unknown)
        assert (answer["status"], answer["code"]) == ("error", "session.not_found")
        assert unknown in answer["error"]


@pytest.mark.promise("history.limit_default", "history.limit_clamped", "tools.numbers_are_clamped")
@pytest.mark.parametrize(
    ("limit", "shown"),
    [({}, 200), ({"limit": 0}, 1), ({"limit": -7}, 1), ({"limit": 5}, 5), ({"limit": 5_000}, 1_000)],
)
async def test_a_page_has_200_messages_unless_asked_for_and_1000_at_most(
    tmp_path: Path, limit: dict[str, int], shown: int
) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await filled(gateway, 1_005)
        answer = await use(gateway, "sessions_history", sessionKey=HOOK, **limit)
        newest = [f"m{n}" for n in range(1_006 - shown, 1_006)]
        assert [m["content"] for m in answer["messages"]] == newest


@pytest.mark.promise("history.pages_backward", "history.oldest_first")
@pytest.mark.parametrize("count", [1, 6, 7])
async def test_pages_put_together_are_the_whole_transcript(tmp_path: Path, count: int) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await filled(gateway, count)
        whole: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await use(gateway, "sessions_history", sessionKey=HOOK, limit=3, **cursor)
            whole = [m["content"] for m in page["messages"]] + whole
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert whole == [f"m{n}" for n in range(1, count + 1)]


@pytest.mark.promise("history.transcript_format")
async def test_messages_come_as_they_stand_in_the_transcript(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await use(gateway, "agents_list", BOB)
        read = await use(gateway, "sessions_history", sessionKey=BOB, includeTools=True)
        kept = [m | {"seq": n} for n, m in enumerate(await transcript(gateway, BOB), 1)]
        assert read["messages"] == kept
        assert [m["role"] for m in kept] == ["user", "assistant", "toolResult", "assistant"]


@pytest.mark.promise("history.tells_what_is_missing")
@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (["fine"], [False, 0, False, False]),
        (["y" * 4_001], [True, 0, True, False]),
        ([f"password={SECRET}"], [False, 0, False, True]),
        ([IMAGE], [True, 0, True, False]),
    ],
    ids=["whole", "cut", "redacted", "picture"],
)
async def test_a_page_says_what_was_left_out_of_it(
    tmp_path: Path, messages: list[Any], told: list[Any]
) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, HOOK)
        await append_messages(gateway, hook, *messages)
        answer = await use(gateway, "sessions_history", sessionKey=HOOK)
        assert [answer[flag] for flag in FLAGS] == told
        size = len(orjson.dumps(answer["messages"]))
        assert size <= answer["bytes"] <= size + 1


@pytest.mark.promise("history.tells_what_is_missing", "history.pages_backward")
async def test_a_page_says_how_many_messages_did_not_fit_and_leads_to_them(tmp_path: Path) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        [hook] = await create_sessions(gateway, HOOK)
        await append_messages(gateway, hook, *(f"{n} " + "z" * 3_900 for n in range(40)))
        page = await use(gateway, "sessions_history", sessionKey=HOOK)
        assert (page["truncated"], page["contentTruncated"]) == (True, False)
        assert page["droppedMessages"] == 40 - len(page["messages"]) > 0
        before = await use(gateway, "sessions_history", sessionKey=HOOK, cursor=page["nextCursor"])
        assert before["messages"][-1]["seq"] + 1 == page["messages"][0]["seq"]


@pytest.mark.promise("tools.booleans_may_be_text")
@pytest.mark.parametrize(("said", "results"), [("true", 1), ("false", 0)])
async def test_yes_and_no_may_come_as_text(tmp_path: Path, said: str, results: int) -> None:
    async with rehearse(tmp_path, three_agents()) as gateway:
        await use(gateway, "agents_list", BOB)
        answer = await use(gateway, "sessions_history", ANN, sessionKey=BOB, includeTools=said)
        assert sum(m["role"] == "toolResult" for m in answer["messages"]) == results
