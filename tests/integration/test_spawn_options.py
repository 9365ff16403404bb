"""A spawn is exactly what was asked for: its tools, its context, its key, and whether it reports."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import ANN, spawning_agents, texts, transcript, use, wait_until_idle

from hobnob.sessions import children
from hobnob.testing import OWNER, calls, exchange_ended, rehearse, say


@pytest.mark.promise("spawn.asked_tools")
@pytest.mark.parametrize(
    ("asked", "runs"),
    [(["read", "group:web"], ["read", "web_fetch"]), ([], []), (["ls", "GREP"], ["grep", "ls"])],
)
async def test_a_spawn_has_the_tools_it_asks_for_and_no_others(
    tmp_path: Path, model_requests: Any, asked: list[str], runs: list[str]
) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        child = await use(gateway, "sessions_spawn", task="say done", tools=asked)
        assert child["tools"] == runs
        await exchange_ended(gateway, child["exchangeId"])
        await say(gateway, "say more", child["childSessionKey"])
    requests = [r for r in model_requests if r.session_key == child["childSessionKey"]]
    assert [sorted(t.name for t in r.tools) for r in (requests[0], requests[-1])] == [runs, runs]


@pytest.mark.promise("spawn.asked_tools")
@pytest.mark.parametrize(
    ("name", "status"), [("cron", "forbidden"), ("sessions_send", "forbidden"), ("fly", "error")]
)
async def test_a_spawn_that_asks_for_a_tool_it_may_not_have_is_refused(
    tmp_path: Path, name: str, status: str
) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, "sessions_spawn", task="x", tools=["read", name])
        assert answer["status"] == status and name in answer["error"]
        assert (await use(gateway, "subagents"))["total"] == 0


@pytest.mark.promise("spawn.fork")
async def test_a_fork_knows_the_conversation_up_to_the_call(tmp_path: Path, model_requests: Any) -> None:
    scripts = {
        ANN: [
            "Hello.",
            calls("session_status"),
            calls("sessions_spawn", task="Go on.", context="fork"),
            "Started.",
        ],
        "*": [],
    }
    async with rehearse(tmp_path, spawning_agents(scripts)) as gateway:
        await say(gateway, "hello", ANN)
        await say(gateway, "go", ANN)
        [found] = (await gateway.sessions.children(await gateway.sessions.resolve(OWNER, ANN)))[:1]
        await exchange_ended(gateway, found.exchange_id)
        copied = await transcript(gateway, found.target_key)
        own = await transcript(gateway, ANN)
    assert copied[:5] == own[:5]
    assert [m["role"] for m in copied[:6]] == ["user", "assistant", "user", "assistant", "toolResult", "user"]
    assert copied[5]["content"] == "Go on."
    first = next(r for r in model_requests if r.session_key == found.target_key)
    assert len(first.messages) == 6


@pytest.mark.promise("spawn.fork")
async def test_a_conversation_that_is_too_long_to_be_forked_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "_FORK_ENTRIES", 3)
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        await say(gateway, "say 1", ANN)
        await say(gateway, "say 2", ANN)
        answer = await use(gateway, "sessions_spawn", task="x", context="fork")
        assert answer["status"] == "error" and "too long to be forked" in answer["error"]
        assert "isolated" in answer["fix"]
        assert (await use(gateway, "subagents"))["total"] == 0


@pytest.mark.promise("spawn.fork")
async def test_a_fork_is_one_of_the_same_agent(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        answer = await use(gateway, "sessions_spawn", task="x", context="fork", agentId="bob")
        assert answer["status"] == "error" and "same agent" in answer["error"]


@pytest.mark.promise("spawn.idempotency_key")
async def test_the_same_key_starts_one_child_also_in_a_later_turn(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents()) as gateway:
        given = {"task": "say done", "idempotencyKey": "nightly-17"}
        first = await use(gateway, "sessions_spawn", **given)
        again = await use(gateway, "sessions_spawn", **given)
        assert (again["runId"], again["childSessionKey"]) == (first["runId"], first["childSessionKey"])
        other = await use(gateway, "sessions_spawn", **(given | {"idempotencyKey": "nightly-18"}))
        assert other["runId"] != first["runId"]
        assert (await use(gateway, "subagents"))["total"] == 2


@pytest.mark.promise("spawn.quiet")
async def test_a_quiet_spawn_announces_and_reports_nothing(tmp_path: Path) -> None:
    async with rehearse(tmp_path, spawning_agents(subagents={"onComplete": "wake"})) as gateway:
        child = await use(gateway, "sessions_spawn", task="say done", expectsCompletionMessage=False)
        assert child["expectsCompletionMessage"] is False
        ended = await exchange_ended(gateway, child["exchangeId"])
        assert (ended["end"], [s["step"] for s in ended["steps"]]) == ("quiet", ["primary"])
        await wait_until_idle(gateway, ANN)
        assert not [text for text in await texts(gateway, ANN, "user") if "Status:" in text]
