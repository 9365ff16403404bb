"""External harnesses as child sessions, against a real one: what they are asked, and what comes of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.harnesses import harness_log, harness_settings, reports, start_harness
from tests.integration.helpers import ANN, BOB, spawn_and_wait, texts, transcript, use, wait_until_idle
from tests.integration.sandboxed import needs_sandbox
from tests.waiting import LIMIT_S, until

from hobnob.errors import BadInput
from hobnob.keys import Shape, parse
from hobnob.store import sessions
from hobnob.testing import OWNER, exchange_ended, rehearse, say
from hobnob.types import Session


@pytest.mark.promise("acp.runs_a_harness", "acp.child_key")
async def test_a_harness_does_a_task_and_all_of_it_stands_in_the_transcript(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        ended = await spawn_and_wait(gateway, task="work", runtime="acp", label="notes")
        key = parse(ended["target"])
        assert (key.agent, key.shape, ended["state"], ended["outcome"]) == ("stub", Shape.ACP, "done", "ok")
        _, called, result, answer = await transcript(gateway, ended["target"])
        assert [part["type"] for part in called["content"]] == ["thinking", "text", "toolCall"]
        assert called["content"][2]["arguments"] == {"title": "Read notes", "path": "notes.txt"}
        assert (result["toolCallId"], result["isError"]) == ("c1", False)
        assert result["content"][0]["text"] == "three lines"
        assert answer["content"] == [{"type": "text", "text": "There are three."}]
        assert (answer["provider"], answer["model"]) == ("stub", "small")
        (report,) = await reports(gateway)
        assert report.startswith("Status: completed\nResult: There are three.\nNotes: (none)\nStats: ")
        assert "tokens 90 (in 70 / out 20)" in report and "cost $0.2500" in report
    assert len(harness_log(tmp_path, "prompt")) == 1


async def test_a_harness_gets_the_folder_of_who_asked_and_little_of_our_environment(tmp_path: Path) -> None:
    async with rehearse(
        tmp_path, harness_settings(tmp_path, more={"home": str(tmp_path / "its home")})
    ) as gateway:
        await spawn_and_wait(gateway, task="work", runtime="acp")
        workspace = gateway.config.workspace("ann")
    assert harness_log(tmp_path, "new_session") == [str(workspace)]
    assert workspace.stat().st_mode & 0o777 == 0o700
    (names,) = harness_log(tmp_path, "env")
    assert set(names[1:-1].replace('"', "").split(", ")) <= {"HOME", "HOBNOB_PROCESS", "LC_CTYPE", "STUB_LOG"}
    assert harness_log(tmp_path, "initialize") == ["fs=False terminal=False"]


@pytest.mark.parametrize(
    ("mode", "answers"),
    [
        (
            "approve-reads",
            {
                "may read allow_always allow_once reject_once": "allow_once",
                "may execute allow_once reject_always reject_once": "reject_once",
                "may read allow_always reject_once": "reject_once",
                "may other allow_once": "cancelled",
            },
        ),
        (
            "approve-all",
            {
                "may execute reject_once allow_always allow_once": "allow_once",
                "may edit allow_always reject_once": "allow_always",
            },
        ),
        ("deny-all", {"may read allow_once reject_always": "reject_always"}),
    ],
)
async def test_permissions_are_given_by_what_a_tool_does_and_by_the_kind_of_option(
    tmp_path: Path, mode: str, answers: dict[str, str]
) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path, permissionMode=mode)) as gateway:
        asked = [await start_harness(gateway, task=task) for task in answers]
        ended = [await exchange_ended(gateway, each["exchangeId"], LIMIT_S) for each in asked]
        said = {each["request"]: each["steps"][0]["text"].removeprefix("answer: ") for each in ended}
        assert said == answers
        for each in ended:
            _, _, result, _ = await transcript(gateway, each["target"])
            refused = not answers[each["request"]].startswith("allow")
            assert result["isError"] == refused
            assert (f"acp.permissionMode is {mode}" in result["content"][0]["text"]) == refused


async def test_the_report_says_how_it_really_ended(tmp_path: Path) -> None:
    stops = {
        "stop max_tokens": ("failed", "reached its token limit"),
        "stop max_turn_requests": ("failed", "limit of model calls"),
        "stop refusal": ("failed", "refused"),
        "stop cancelled": ("failed", "cancelled the turn by itself"),
    }
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        for answer in [await start_harness(gateway, task=task) for task in stops]:
            await exchange_ended(gateway, answer["exchangeId"], LIMIT_S)
        await wait_until_idle(gateway, ANN)
        told = await reports(gateway)
        assert len(told) == len(stops)
        for status, note in stops.values():
            begins = f"Status: {status}\nResult: as far as I came\nNotes: "
            assert [r for r in told if r.startswith(begins) and note in r]


@pytest.mark.parametrize(("task", "reply"), [("warn", "The answer."), ("last", "Said before.")])
async def test_the_reply_is_what_was_said_after_the_last_call_or_else_the_last_message(
    tmp_path: Path, task: str, reply: str
) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        ended = await spawn_and_wait(gateway, task=task, runtime="acp")
        assert (ended["outcome"], ended["steps"][0]["text"]) == ("ok", reply)
        open_calls = {p["id"] for m in await transcript(gateway, ended["target"]) for p in _calls(m)}
        assert open_calls == {m["toolCallId"] for m in await _results(gateway, ended["target"])}


async def test_a_harness_that_gives_up_over_a_refusal_has_that_said_for_it(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path, "--sulks")) as gateway:
        ended = await spawn_and_wait(gateway, task="may edit reject_once", runtime="acp")
        assert ended["report"].startswith("Status: failed\nResult: answer: reject_once\n")
        assert "not allowed (acp.permissionMode is approve-reads)" in ended["report"]


async def test_what_a_terminal_of_the_harness_prints_is_the_result_of_its_call(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        ended = await spawn_and_wait(gateway, task="shell", runtime="acp")
        assert ended["outcome"] == "no_output"
        (result,) = await _results(gateway, ended["target"])
        assert result["content"] == [{"type": "text", "text": "one\ntwo\n"}]


async def test_mode_model_and_thinking_are_set_in_the_words_of_the_harness(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path, more={"mode": "ask"})) as gateway:
        answer = await start_harness(gateway, task="work", model="Large", thinking="high")
        assert (answer["model"], answer["thinking"]) == ("stub/Large", "high")
        assert (answer["sandbox"], answer["tools"]) == (False, [])
        await exchange_ended(gateway, answer["exchangeId"], LIMIT_S)
        assert [m["model"] for m in await transcript(gateway, answer["childSessionKey"]) if "model" in m] == [
            "large",
            "large",
        ]
    assert (
        harness_log(tmp_path, "mode "),
        harness_log(tmp_path, "model"),
        harness_log(tmp_path, "effort"),
    ) == (
        ["ask"],
        ["large"],
        ["high"],
    )


@pytest.mark.parametrize(
    ("arguments", "more", "asked", "said"),
    [
        ([], {}, {"model": "huge"}, "has no model 'huge'. It has: small, large."),
        ([], {}, {"thinking": "extreme"}, "has no thinking level 'extreme'. It has: low, high."),
        ([], {"mode": "yolo"}, {}, "has no mode 'yolo'. It has: auto, ask."),
        (["--plain"], {}, {"model": "large"}, "does not support choosing a model"),
    ],
)
async def test_what_a_harness_does_not_offer_fails_the_turn_before_anything_is_asked(
    tmp_path: Path, arguments: list[str], more: Any, asked: dict[str, str], said: str
) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path, *arguments, more=more)) as gateway:
        ended = await spawn_and_wait(gateway, task="work", runtime="acp", **asked)
        assert ended["outcome"] == "failed"
        assert said in ended["report"]
    assert harness_log(tmp_path, "prompt") == []


async def test_a_later_message_takes_up_the_session_of_the_harness(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path, "--load")) as gateway:
        ended = await spawn_and_wait(gateway, task="work", runtime="acp")
        (before,) = {m["harnessSession"] for m in await transcript(gateway, ended["target"]) if "api" in m}
        turn = await say(gateway, "And tell me more", ended["target"])
        assert (turn.outcome, turn.reply) == ("ok", "You said: tell me more")
        assert "old words" not in str(await transcript(gateway, ended["target"]))
    assert harness_log(tmp_path, "load_session") == [before]
    assert len(harness_log(tmp_path, "new_session")) == 1


async def test_a_harness_that_has_forgotten_is_told_what_was_said_before(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path, "--load", "--forgets")) as gateway:
        ended = await spawn_and_wait(gateway, task="work", runtime="acp")
        answer = await use(gateway, "sessions_send", sessionKey=ended["target"], message="And what else?")
        assert answer["status"] == "ok", answer
        await exchange_ended(gateway, answer["exchangeId"], LIMIT_S)
    second = harness_log(tmp_path, "prompt")[1]
    assert "Earlier messages of this session:" in second
    assert "There are three." in second
    assert rf"[From the session \"{ANN}\"." in second and second.endswith('And what else?"')


@pytest.mark.promise("acp.allow_list", "acp.own_list", "acp.refuses_attachments", "acp.not_from_a_sandbox")
@pytest.mark.parametrize(
    ("acp", "arguments", "code", "said"),
    [
        ({"enabled": False}, {}, "spawn.acp_disabled", "config set acp.enabled true"),
        ({"enabled": False}, {"agentId": "stub"}, "spawn.acp_disabled", "config set acp.enabled true"),
        ({}, {"agentId": "other"}, "spawn.harness_unknown", "available: stub"),
        ({}, {"agentId": "bob"}, "spawn.harness_unknown", "available: stub"),
        ({"allowedAgents": ["bob"]}, {}, "spawn.harness_not_allowed", 'acp.allowedAgents \'["bob","stub"]\''),
        ({"allowedAgents": ["bob"]}, {"agentId": "bob"}, "spawn.harness_unknown", "acp.harnesses.bob"),
        ({"harnesses": {}}, {}, "spawn.harness_unknown", "acp.harnesses"),
        ({"harnesses": {"a": {"command": ["a"]}, "b": {"command": ["b"]}}}, {}, "input.bad", "a, b"),
        ({}, {"sandbox": "require"}, "spawn.sandbox", "outside"),
        ({}, {"attachments": [{"name": "a", "content": "b"}]}, "attachment.bad", "no attachments"),
        ({}, {"thread": True}, "spawn.thread", "cannot open threads"),
        ({}, {"model": "a\nb"}, "input.bad", "one line"),
        ({}, {"runtime": "subagent", "agentId": "stub"}, "spawn.agent_unknown", "runtime: acp"),
    ],
)
async def test_a_harness_that_may_not_run_is_refused_with_the_reason_and_nothing_is_made(
    tmp_path: Path, acp: Any, arguments: dict[str, Any], code: str, said: str
) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path, **acp)) as gateway:
        answer = await use(gateway, "sessions_spawn", **({"task": "work", "runtime": "acp"} | arguments))
        assert answer.get("code") == code, answer
        assert said in answer["error"] + answer.get("fix", "")
        assert await _keys(gateway) == [ANN]
    assert harness_log(tmp_path) == []


@needs_sandbox
@pytest.mark.promise("acp.not_from_a_sandbox")
async def test_a_sandboxed_session_cannot_run_a_harness(tmp_path: Path) -> None:
    settings = harness_settings(tmp_path)
    settings["agents"]["list"][0]["sandbox"] = {"mode": "all"}
    async with rehearse(tmp_path, settings) as gateway:
        answer = await use(gateway, "sessions_spawn", task="work", runtime="acp")
        assert (answer["status"], answer["code"]) == ("forbidden", "spawn.sandbox")
        assert "config set 'agents.list[ann].sandbox.mode' off" in answer["fix"]
        assert (await use(gateway, "agents_list"))["acp"] == []


@pytest.mark.promise("acp.allow_list")
async def test_limits_of_sub_agents_hold_for_harnesses(tmp_path: Path) -> None:
    settings = harness_settings(tmp_path)
    settings["agents"]["defaults"]["subagents"] = {"maxChildrenPerAgent": 1}
    async with rehearse(tmp_path, settings) as gateway:
        await start_harness(gateway, task="hang")
        answer = await use(gateway, "sessions_spawn", task="work", runtime="acp")
        assert answer["code"] == "spawn.children"


@pytest.mark.promise("agents.harnesses", "agents.exactly_what_spawn_accepts")
async def test_agents_list_and_the_schema_show_just_the_harnesses_a_spawn_takes(tmp_path: Path) -> None:
    settings = harness_settings(
        tmp_path, allowedAgents=["stub", "gone"], defaultAgent="stub", more={"name": "Stub"}
    )
    settings["acp"]["harnesses"]["closed"] = {"command": ["true"]}
    async with rehearse(tmp_path, settings) as gateway:
        listed = await use(gateway, "agents_list")
        assert listed["acp"] == [{"id": "stub", "name": "Stub", "default": True}]
        spec = await _schema(gateway, "sessions_spawn")
        assert spec["properties"]["agentId"]["enum"] == ["ann", "bob", "stub"]


async def test_only_so_many_harnesses_work_at_a_time(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path, maxConcurrentSessions=1)) as gateway:
        first = await start_harness(gateway, task="hang")
        await until(lambda: harness_log(tmp_path, "hanging"))
        second = await start_harness(gateway, task="work")
        assert (await gateway.sessions.wait(second["runId"], 0.2)).status == "queued"
        await gateway.sessions.abort(OWNER, first["childSessionKey"])
        assert (await gateway.sessions.wait(second["runId"], LIMIT_S)).outcome == "ok"


async def test_a_harness_session_is_listed_read_renamed_and_deleted_like_any_other(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        ended = await spawn_and_wait(gateway, task="work", runtime="acp", model="large")
        key = ended["target"]
        listed = await use(gateway, "sessions_list", agentId="stub")
        assert [(row["key"], row["model"]) for row in listed["sessions"]] == [(key, "stub/large")]
        history = await use(gateway, "sessions_history", sessionKey=key, includeTools=True)
        assert [m["role"] for m in history["messages"]] == ["user", "assistant", "toolResult", "assistant"]
        assert (await gateway.sessions.patch(OWNER, key, label="kept")).label == "kept"
        status = await use(gateway, "session_status", sessionKey=key, model="rehearsal/rehearsal")
        assert "chosen when it is spawned" in status["error"]
        assert (await say(gateway, "/model", key)).reply == "The model is stub/large."
        with pytest.raises(BadInput, match="chosen when it is spawned"):
            await say(gateway, "/model rehearsal/rehearsal", key)
        await gateway.sessions.delete(OWNER, key)
        assert key not in await _keys(gateway)


async def test_a_child_that_is_to_be_deleted_is_gone_after_its_report(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        answer = await start_harness(gateway, task="work", cleanup="delete")
        await exchange_ended(gateway, answer["exchangeId"], LIMIT_S)
        async with asyncio.timeout(LIMIT_S):
            while answer["childSessionKey"] in await _keys(gateway):
                await asyncio.sleep(0.02)
        await wait_until_idle(gateway, ANN)
        assert len(await reports(gateway)) == 1


async def test_a_session_whose_harness_is_gone_takes_no_message(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        key = (await spawn_and_wait(gateway, task="work", runtime="acp"))["target"]
    settings = harness_settings(tmp_path)
    settings["acp"]["harnesses"] = {}
    async with rehearse(tmp_path, settings) as gateway:
        answer = await use(gateway, "sessions_send", sessionKey=key, message="hello")
        assert answer["code"] == "agent.unknown"
        assert "no longer configured" in answer["error"]
        assert BOB not in await texts(gateway, key, "user")


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    parts = message["content"] if isinstance(message["content"], list) else []
    return [part for part in parts if part["type"] == "toolCall"]


async def _results(gateway: Any, key: str) -> list[dict[str, Any]]:
    return [m for m in await transcript(gateway, key) if m["role"] == "toolResult"]


async def _keys(gateway: Any) -> list[str]:
    found: list[Session] = await gateway.store.read(sessions.page, limit=100)
    return [session.key for session in found]


async def _schema(gateway: Any, name: str) -> dict[str, Any]:
    from hobnob.tools.sessions import session_tools

    ann = await gateway.store.read(sessions.get, ANN)
    tools = session_tools(gateway.sessions, gateway.config)
    spec = next(tool for tool in tools if tool.name == name).spec(ann)
    return dict(spec.parameters)
