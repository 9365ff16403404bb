"""Harnesses as processes: whatever they do, the turn ends, says how, and nothing of them survives."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import stores
from tests.integration.harnesses import (
    harness_log,
    harness_settings,
    is_alive,
    reports,
    set_grace,
    start_harness,
)
from tests.integration.helpers import spawn_and_wait, texts, transcript, use
from tests.waiting import LIMIT_S, TimeLimit, until

from hobnob.runtimes.acp import updates
from hobnob.testing import exchange_ended, rehearse

PROGRAM = Path(__file__).parent.parent / "programs" / "spawn_harness.py"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that ends when it is asked gets the time a slow machine needs for it."""
    set_grace(monkeypatch, LIMIT_S)


@pytest.fixture
def hurried(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a harness that does not end by itself."""
    set_grace(monkeypatch, 0.3)


def all_gone(home: Path) -> bool:
    pids = [*harness_log(home, "pid"), *harness_log(home, "child")]
    return bool(pids) and not any(is_alive(pid) for pid in pids) and not list((home / "processes").iterdir())


@pytest.mark.parametrize(
    ("arguments", "task", "reply"),
    [
        (["--loud"], "echo loudly", "You said: loudly"),
        (["--stubborn"], "echo stubbornly", "You said: stubbornly"),
        ([], "noise", "through the noise"),
        ([], "daemon", "left one"),
    ],
)
async def test_a_harness_with_bad_manners_does_its_work_and_is_gone(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    task: str,
    reply: str,
) -> None:
    if arguments == ["--stubborn"]:
        set_grace(monkeypatch, 0.3)
    async with rehearse(tmp_path, harness_settings(tmp_path, *arguments)) as gateway:
        ended = await spawn_and_wait(gateway, task=task, runtime="acp")
        assert (ended["outcome"], ended["steps"][0].get("text")) == ("ok", reply)
        assert all_gone(tmp_path)
    assert caplog.messages == []


async def test_a_harness_that_dies_fails_its_turn_with_its_last_words_and_without_its_secrets(
    tmp_path: Path,
) -> None:
    settings = harness_settings(tmp_path)
    settings["acp"]["harnesses"]["stub"]["env"]["API_KEY"] = "a very private word"
    async with rehearse(tmp_path, settings) as gateway:
        ended = await spawn_and_wait(gateway, task="die", runtime="acp")
        assert ended["outcome"] == "failed"
        assert "famous last" in ended["report"]
        assert "exit code 3" in ended["report"] and "panic with ***" in ended["report"]
        assert "private" not in ended["report"]


async def test_a_child_that_holds_the_output_open_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        ended = await spawn_and_wait(gateway, task="orphan", runtime="acp")
        assert ended["outcome"] == "failed"
        assert "exit code 4" in ended["report"]
        assert len(harness_log(tmp_path, "child")) == 1 and all_gone(tmp_path)


async def test_a_harness_that_says_too_much_is_stopped(
    tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "TURN_CHARS", 500_000)
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        ended = await spawn_and_wait(gateway, task="flood", runtime="acp")
        assert ended["outcome"] == "failed"
        assert "more than 500,000 characters" in ended["report"]
        assert all_gone(tmp_path)


async def test_a_command_that_is_not_there_fails_the_turn_and_names_the_setting(tmp_path: Path) -> None:
    async with rehearse(
        tmp_path, harness_settings(tmp_path, more={"command": ["no-such-harness"]})
    ) as gateway:
        ended = await spawn_and_wait(gateway, task="work", runtime="acp")
        assert ended["outcome"] == "failed"
        assert "acp.harnesses.stub.command" in ended["report"]


async def test_without_the_protocols_package_a_turn_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "acp", None)
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        ended = await spawn_and_wait(gateway, task="work", runtime="acp")
        assert "pip install 'hobnob[acp]'" in ended["report"]
    assert harness_log(tmp_path) == []


async def test_cancelling_calls_the_harness_off_and_keeps_what_it_said(tmp_path: Path) -> None:
    async with rehearse(tmp_path, harness_settings(tmp_path)) as gateway:
        answer = await start_harness(gateway, task="hang")
        await until(lambda: harness_log(tmp_path, "hanging"))
        cancelled = await use(gateway, "subagents", action="cancel", target="last")
        assert cancelled["runIds"] == [answer["runId"]]
        ended = await exchange_ended(gateway, answer["exchangeId"], LIMIT_S)
        assert ended["outcome"] == "cancelled"
        assert "half of it" in await texts(gateway, answer["childSessionKey"], "assistant")
        assert harness_log(tmp_path, "cancel") == [""] and all_gone(tmp_path)
        assert len(await reports(gateway)) == 1


async def test_a_harness_that_is_deaf_to_everything_is_ended_when_its_time_is_up(
    tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = TimeLimit(monkeypatch)
    async with rehearse(tmp_path, harness_settings(tmp_path, "--stubborn")) as gateway:
        spawning = asyncio.create_task(
            spawn_and_wait(gateway, task="hang deaf", runtime="acp", runTimeoutSeconds=limit.SECONDS)
        )
        await until(lambda: harness_log(tmp_path, "hanging") and "half of it" in said_on_disk(tmp_path))
        limit.expire()
        ended = await spawning
        assert ended["outcome"] == "timed_out"
        assert ended["report"].startswith("Status: timed out\n")
        assert "half of it" in await texts(gateway, ended["target"], "assistant")
        assert all_gone(tmp_path)


async def test_a_harness_that_never_speaks_the_protocol_is_ended_when_its_time_is_up(
    tmp_path: Path, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = TimeLimit(monkeypatch)
    mute = "import os, time; open(os.environ['STUB_LOG'], 'w').write(f'pid {os.getpid()}'); time.sleep(600)"
    async with rehearse(
        tmp_path, harness_settings(tmp_path, more={"command": [sys.executable, "-c", mute]})
    ) as gateway:
        spawning = asyncio.create_task(
            spawn_and_wait(gateway, task="work", runtime="acp", runTimeoutSeconds=limit.SECONDS)
        )
        await until(lambda: harness_log(tmp_path, "pid"))
        limit.expire()
        ended = await spawning
        assert ended["outcome"] == "timed_out"
        assert all_gone(tmp_path)


async def test_harnesses_are_killed_at_once_when_other_gateways_are_about_to_run_their_turns(
    tmp_path: Path,
) -> None:
    """Without that, one that is cancelled has some seconds to stop."""
    async with rehearse(tmp_path, harness_settings(tmp_path, "--stubborn")) as gateway:
        await start_harness(gateway, task="hang deaf")
        await until(lambda: harness_log(tmp_path, "hanging"))
        gateway.runner.fence()
        gateway.harnesses.kill_all()
        async with asyncio.timeout(LIMIT_S / 2):  # less than the grace period in these tests
            while not all_gone(tmp_path):
                await asyncio.sleep(0.01)


@pytest.mark.promise("outcome.lost")
async def test_a_gateway_that_stops_ends_its_harnesses_and_does_not_ask_them_again(tmp_path: Path) -> None:
    settings = harness_settings(tmp_path)
    async with rehearse(tmp_path, settings) as gateway:
        answer = await start_harness(gateway, task="hang")
        await until(lambda: harness_log(tmp_path, "hanging"))
    assert all_gone(tmp_path)
    async with rehearse(tmp_path, settings) as gateway:
        ended = await exchange_ended(gateway, answer["exchangeId"], LIMIT_S)
        assert ended["outcome"] == "lost"
        (report,) = await reports(gateway)
        assert report.startswith("Status: lost\n") and "not asked again" in report
    assert len(harness_log(tmp_path, "prompt")) == 1


def said_on_disk(home: Path) -> str:
    """What a gateway in another process has committed of its transcripts."""
    return "".join(body for (body,) in stores.execute(home / "hobnob.db", "select body from entries"))


@pytest.mark.promise("exchange.survives_a_kill")
@pytest.mark.parametrize("how", ["mid-turn", "after-model"])
async def test_a_gateway_that_is_killed_leaves_no_harness_and_no_prompt_is_sent_twice(
    tmp_path: Path, how: str
) -> None:
    settings = harness_settings(tmp_path, "--stubborn")
    settings["agents"]["list"][0]["id"] = "main"
    env = os.environ | ({"HOBNOB_CRASH_AT": "after-model:2"} if how == "after-model" else {})
    task = "hang" if how == "mid-turn" else "work"
    with subprocess.Popen(
        [sys.executable, PROGRAM, tmp_path, json.dumps(settings), task], stdout=subprocess.PIPE, env=env
    ) as gateway:
        assert gateway.stdout is not None
        receipt: dict[str, Any] = json.loads(await asyncio.to_thread(gateway.stdout.readline))
        if how == "mid-turn":
            await until(lambda: "half of it" in said_on_disk(tmp_path))
            gateway.kill()
    (pid,) = harness_log(tmp_path, "pid")
    assert is_alive(pid)  # it ignores that its input has ended
    async with rehearse(tmp_path, settings) as again:
        assert all_gone(tmp_path)
        ended = await exchange_ended(again, receipt["exchange_id"], LIMIT_S)
        assert ended["outcome"] == "lost"
        roles = [m["role"] for m in await transcript(again, ended["target"])]
        assert roles[:2] == ["user", "assistant"]
        told = [t for t in await texts(again, "agent:main:main", "user") if t.startswith("Status:")]
        assert len(told) == 1 and told[0].startswith("Status: lost\n")
    assert len(harness_log(tmp_path, "prompt")) == 1
