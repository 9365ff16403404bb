"""Notes that an agent saves before a summary replaces what it knows."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import transcript
from tests.integration.sandboxed import needs_sandbox

from hobnob import crashpoints
from hobnob.gateway import Gateway
from hobnob.models import Request
from hobnob.store import deliveries, sessions
from hobnob.testing import calls, rehearse, say
from hobnob.types import text_of

MAIN, FLUSH = "agent:main:main", "agent:main:flush"
FILLER = "lorem ipsum " * 60  # about 200 tokens
NOTES = calls("write", path="memory/notes.md", content="The user likes tea.")


def settings(*flush_steps: Any, flush: dict[str, Any] | None = None, **defaults: Any) -> dict[str, Any]:
    compaction = {"keepRecentTokens": 300, "memoryFlush": flush or {}}
    return {
        "agents": {"defaults": {"contextTokens": 2000, "compaction": compaction} | defaults},
        "models": {"rehearsal": {"scripts": {"flush": list(flush_steps)}}},
    }


async def fill(gateway: Gateway, count: int = 8) -> None:
    for number in range(count):
        assert (await say(gateway, f"say Fact {number}. {FILLER}")).outcome == "ok"


def notes_of(gateway: Gateway) -> Path:
    return Path(str(gateway.config.workspace("main"))) / "memory" / "notes.md"


def flushes(requests: list[Request]) -> list[Request]:
    """The first request of each flush."""
    return [r for r in requests if r.session_key == FLUSH and r.messages[-1]["role"] == "user"]


def summaries(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [m for m in messages if "compaction" in m]


@pytest.mark.promise("life.memory_flush")
async def test_notes_are_saved_once_before_each_summary(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, settings(NOTES, "NO_REPLY")) as gateway:
        await fill(gateway)
        assert notes_of(gateway).read_text() == "The user likes tea."
        made = summaries(await transcript(gateway, MAIN))
        assert made and all(m["compaction"]["memoryFlush"] == "done" for m in made)
        order = [r.session_key for r in model_requests if r.session_key != MAIN]
        first_summary = order.index("agent:main:compaction")
        assert order[:first_summary] == [FLUSH, FLUSH]  # the call of the tool, and the answer
        assert len(made) <= len(flushes(model_requests)) <= len(made) + 1


@pytest.mark.promise("life.memory_flush")
async def test_its_answer_reaches_neither_the_transcript_nor_a_chat(tmp_path: Path) -> None:
    async with rehearse(tmp_path, settings(NOTES, "I saved everything!")) as gateway:
        await fill(gateway)
        said = [text_of(m) for m in await transcript(gateway, MAIN)]
        assert not any("I saved everything" in text for text in said)
        assert not any(m["role"] == "toolResult" for m in await transcript(gateway, MAIN))
        sent = await gateway.store.read(deliveries.of_session, MAIN)
        assert not any("I saved everything" in each.text for each in sent)


async def test_it_has_the_tools_for_files_and_no_others(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, settings()) as gateway:
        await fill(gateway)
        (first, *_) = flushes(model_requests)
        assert {tool.name for tool in first.tools} == {"read", "write", "edit"}
        assert "memory/" in text_of(first.messages[-1])


async def test_the_settings_can_say_what_it_is_asked(tmp_path: Path, model_requests: list[Request]) -> None:
    asked = {"prompt": "Keep the names.", "systemPrompt": "Be brief."}
    async with rehearse(tmp_path, settings(flush=asked)) as gateway:
        await fill(gateway)
        (first, *_) = flushes(model_requests)
        assert text_of(first.messages[-1]) == "Keep the names."
        assert first.system.endswith("Be brief.")


async def test_what_it_costs_is_known(tmp_path: Path, model_requests: list[Request]) -> None:
    async with rehearse(tmp_path, settings(NOTES, "NO_REPLY")) as gateway:
        await fill(gateway)
        session = await gateway.store.read(sessions.get, MAIN)
    (tmp_path / "without").mkdir()
    async with rehearse(tmp_path / "without", settings(flush={"enabled": False})) as gateway:
        await fill(gateway)
        without = await gateway.store.read(sessions.get, MAIN)
    assert session.input_tokens > without.input_tokens


@pytest.mark.promise("life.memory_flush")
@pytest.mark.parametrize(
    "more",
    [
        {"flush": {"enabled": False}},
        {"tools": {"deny": ["write"]}},
        pytest.param(
            {"sandbox": {"mode": "all", "workspaceAccess": "ro"}}, marks=needs_sandbox, id="read-only"
        ),
    ],
)
async def test_there_is_none_where_it_is_off_or_nothing_can_be_written(
    tmp_path: Path, model_requests: list[Request], more: dict[str, Any]
) -> None:
    tools = {"tools": more.pop("tools")} if "tools" in more else {}
    async with rehearse(tmp_path, settings(**more) | tools) as gateway:
        await fill(gateway)
        made = summaries(await transcript(gateway, MAIN))
        assert made and "memoryFlush" not in made[0]["compaction"]
        assert flushes(model_requests) == []


async def test_one_that_fails_does_not_stop_the_turn_and_is_tried_before_the_next_summary(
    tmp_path: Path, model_requests: list[Request]
) -> None:
    async with rehearse(tmp_path, settings({"error": "no credit"})) as gateway:
        await fill(gateway, 20)
        made = summaries(await transcript(gateway, MAIN))
        assert len(made) > 1
        assert all("no credit" in m["compaction"]["memoryFlush"] for m in made)
        assert len(flushes(model_requests)) >= len(made)


@pytest.mark.promise("life.memory_flush")
@pytest.mark.parametrize("point", ["before-flush", "before-tool", "after-tool", "after-flush"])
def test_a_kill_repeats_no_flush(tmp_path: Path, point: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    kept = settings(calls("edit", path="log.md", oldText="end", newText="more\nend"), "NO_REPLY")
    kept["agents"]["defaults"]["contextTokens"] = 100_000

    async def begin() -> None:
        async with rehearse(home, kept) as gateway:
            await say(gateway, 'call write {"path": "log.md", "content": "end"}')
            await fill(gateway, 6)

    async def live() -> tuple[str, list[dict[str, Any]]]:
        async with rehearse(home, kept) as gateway:
            await say(gateway, "/compact", idempotency_key="once")
            log = Path(str(gateway.config.workspace("main"))) / "log.md"
            return log.read_text(), await transcript(gateway, MAIN)

    asyncio.run(begin())
    pid = os.fork()
    if pid == 0:
        crashpoints.armed = point
        asyncio.run(live())
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    log, messages = asyncio.run(live())
    assert log in ("end", "more\nend")  # never twice
    assert len(summaries(messages)) == 1
