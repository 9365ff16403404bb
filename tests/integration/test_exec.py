"""Commands: how they run, go on in the background, and end with all they started."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import three_agents, use
from tests.integration.sandboxed import needs_sandbox, run, running, without_sandbox
from tests.waiting import LIMIT_S, until

from hobnob.gateway import Gateway
from hobnob.requests import HistoryQuery
from hobnob.testing import OWNER, calls, rehearse, say, script

HOST: dict[str, Any] = {"tools": {"exec": {"host": "gateway"}}}
PLACES = [pytest.param({}, id="sandbox", marks=needs_sandbox), pytest.param(HOST, id="host")]
PROGRAM = Path(__file__).parent.parent / "programs" / "leave_running.py"


@pytest.fixture
def word() -> str:
    """A number of seconds to sleep by which the process can be told from all others."""
    return f"7{os.getpid()}.{os.urandom(3).hex().translate(str.maketrans('abcdef', '123456'))}"


@pytest.mark.parametrize("settings", PLACES)
async def test_a_command_gives_its_output_and_exit_code(tmp_path: Path, settings: Any) -> None:
    async with rehearse(tmp_path, settings) as gateway:
        await use(gateway, "write", "main", path="sub/a", content="x")
        answer = await run(gateway, "ls; echo oops >&2; exit 3", workdir="sub")
        assert (answer["status"], answer["exitCode"], answer["output"]) == ("failed", 3, "a\noops\n")
        fine = await run(gateway, 'printf %s "$WHAT"', env={"WHAT": "said"})
        assert (fine["status"], fine["output"]) == ("ok", "said")


async def test_on_the_host_a_command_gets_no_keys_of_model_providers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")
    async with rehearse(tmp_path, HOST) as gateway:
        answer = await run(gateway, "env; pwd")
        assert "very-secret" not in answer["output"]
        assert answer["output"].endswith(f"{tmp_path}/agents/main/workspace\n")
        assert answer["sandbox"] is False


async def test_host_commands_need_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_sandbox(monkeypatch)
    async with rehearse(tmp_path, HOST) as gateway:
        assert (await run(gateway, "echo on the host"))["output"] == "on the host\n"


@pytest.mark.promise("exec.nothing_survives")
@pytest.mark.parametrize("settings", PLACES)
@pytest.mark.parametrize(
    "command",
    ["sleep {w}", "trap '' TERM HUP; sleep {w}; sleep {w}", "(setsid nohup sleep {w} &); sleep {w}"],
)
async def test_at_its_time_limit_a_command_ends_with_all_it_started(
    tmp_path: Path, settings: Any, command: str, word: str
) -> None:
    async with rehearse(tmp_path, settings) as gateway:
        answer = await run(gateway, command.format(w=word), timeout=0.5)
        assert answer["status"] == "timeout"
        await until(lambda: not running(word))


@pytest.mark.promise("exec.nothing_survives")
@pytest.mark.parametrize("settings", PLACES)
async def test_what_a_command_leaves_in_the_background_ends_with_it(
    tmp_path: Path, settings: Any, word: str
) -> None:
    async with rehearse(tmp_path, settings) as gateway:
        answer = await run(
            gateway, f"(setsid nohup sleep {word} >/dev/null 2>&1 &); sleep {word} & echo done"
        )
        assert (answer["status"], answer["output"]) == ("ok", "done\n")
        await until(lambda: not running(word))


@pytest.mark.promise("exec.nothing_survives")
@pytest.mark.parametrize("settings", PLACES)
async def test_an_abort_ends_a_command_and_what_the_turn_left_in_the_background(
    tmp_path: Path, settings: Any, word: str
) -> None:
    steps = script(
        calls("exec", command=f"trap '' TERM; setsid sleep {word}; sleep {word}", background=True),
        calls("exec", command=f"sleep {word}"),
    )
    async with rehearse(tmp_path, settings | steps) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", "go")
        await until(lambda: len(gateway.processes.of(turn.session_key)) == 2)
        await until(lambda: len(running(word)) == 2)
        await gateway.sessions.abort(OWNER, "main")
        assert (await gateway.sessions.wait(turn.turn_id, LIMIT_S)).outcome == "cancelled"
        await until(lambda: not running(word))
        assert gateway.processes.of(turn.session_key) == [] or all(
            not program.running for program in gateway.processes.of(turn.session_key)
        )


@pytest.mark.promise("exec.nothing_survives")
@pytest.mark.parametrize("settings", PLACES)
async def test_a_time_limit_of_the_turn_ends_its_commands(tmp_path: Path, settings: Any, word: str) -> None:
    async with rehearse(tmp_path, settings) as gateway:
        turn = await say(gateway, f'call exec {{"command": "sleep {word}"}}', timeout_s=1)
        assert turn.outcome == "timed_out"
        await until(lambda: not running(word))


@pytest.mark.promise("exec.nothing_survives")
@pytest.mark.parametrize("settings", PLACES)
async def test_a_gateway_that_stops_takes_its_commands_with_it(
    tmp_path: Path, settings: Any, word: str
) -> None:
    async with rehearse(tmp_path, settings) as gateway:
        answer = await run(gateway, f"setsid sleep {word}; sleep {word}", background=True)
        assert answer["status"] == "running"
        await until(lambda: running(word))
    assert not running(word)
    assert list((tmp_path / "processes").iterdir()) == []


@needs_sandbox
async def test_commands_end_with_their_session(tmp_path: Path, word: str) -> None:
    async with rehearse(tmp_path) as gateway:
        await run(gateway, f"sleep {word}", "hook:1", background=True)
        await until(lambda: running(word))
        await gateway.sessions.delete(OWNER, "hook:1")
        await until(lambda: not running(word))
        await until(lambda: not gateway.processes.of("agent:main:hook:1"))


@pytest.mark.promise("exec.leftovers_are_ended")
@pytest.mark.parametrize("settings", PLACES)
async def test_what_a_killed_gateway_left_running_is_ended_at_the_next_start(
    tmp_path: Path, settings: Any, word: str
) -> None:
    host = "host" if settings else "sandbox"
    with subprocess.Popen([sys.executable, PROGRAM, tmp_path, host, word], stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        assert gateway.stdout.readline() == b"started\n"
        await until(lambda: running(word))
        gateway.send_signal(signal.SIGKILL)
    if host == "host":
        assert running(word)
    async with rehearse(tmp_path, settings):
        await until(lambda: not running(word))
        await until(lambda: not list((tmp_path / "processes").iterdir()))


@pytest.mark.promise("exec.background")
@needs_sandbox
async def test_a_command_in_the_background_is_polled_and_ended_by_its_own_session_only(
    tmp_path: Path,
) -> None:
    async with rehearse(tmp_path) as gateway:
        go_on = tmp_path / "agents/main/workspace/go-on"
        command = "echo one; until test -e go-on; do sleep 0.05; done; echo two; sleep 600"
        started = await run(gateway, command, yieldMs=1)
        assert started["status"] == "running"
        own = {"processId": started["processId"]}
        assert await _read(gateway, own, started["output"]) == "one\n"
        other = await use(gateway, "process", "hook:other", action="poll", **own)
        assert other["code"] == "not_found"
        assert (await use(gateway, "process", "hook:other"))["processes"] == []
        go_on.touch()
        assert await _read(gateway, own) == "two\n"
        killed = await use(gateway, "process", "main", action="kill", **own)
        assert killed["status"] == "killed"
        assert (await use(gateway, "process", "main"))["processes"] == []


async def _read(gateway: Gateway, own: dict[str, str], output: str = "") -> str:
    """What a running command prints next, up to the end of a line."""
    while not output.endswith("\n"):
        news = await use(gateway, "process", "main", action="poll", waitMs=20, **own)
        assert news["status"] == "running"
        output += news["output"]
    return output


@needs_sandbox
async def test_a_session_runs_only_so_many_commands_at_a_time(tmp_path: Path) -> None:
    async with rehearse(tmp_path, {"tools": {"exec": {"maxRunning": 1}}}) as gateway:
        await run(gateway, "sleep 600", background=True)
        answer = await run(gateway, "echo second")
        assert (answer["status"], answer["code"]) == ("forbidden", "exec.max_running")


@needs_sandbox
async def test_fifty_commands_at_a_time_do_not_starve_turns(tmp_path: Path) -> None:
    settings = three_agents() | {"agents": {"defaults": {"maxConcurrent": 64}}}
    async with rehearse(tmp_path, settings) as gateway:
        go_on = tmp_path / "agents/main/workspace/go-on"
        commands = ["until test -e go-on; do sleep 0.05; done; echo done"] + ["sleep 1; echo done"] * 49
        many = [
            asyncio.create_task(run(gateway, command, f"hook:{n}", yieldMs=60_000))
            for n, command in enumerate(commands)
        ]
        await until(lambda: any(gateway.processes.of(f"agent:main:hook:{n}") for n in range(50)))
        turn = await say(gateway, "what is 6 * 7?", "hook:other")
        assert turn.reply == "6 * 7 = 42"
        assert not many[0].done()
        go_on.touch()
        assert [(await task)["output"] for task in many] == ["done\n"] * 50


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"command": "  "}, "empty"),
        ({"command": "x" * 200_000}, "100,000 characters"),
        ({"command": "true", "env": {"A=B": "1"}}, "not a valid variable name"),
        ({"command": "true", "workdir": "../.."}, "outside the workspace"),
        ({"command": "true", "workdir": "nowhere"}, "nowhere"),
    ],
)
async def test_a_command_that_cannot_be_run_is_explained(tmp_path: Path, arguments: Any, said: str) -> None:
    async with rehearse(tmp_path, HOST) as gateway:
        answer = await use(gateway, "exec", "main", **arguments)
        assert said in answer.get("error", "") + answer.get("output", "")


@needs_sandbox
async def test_a_command_that_was_under_way_at_a_crash_is_reported_as_interrupted(tmp_path: Path) -> None:
    """It is not run a second time."""
    steps = script(calls("exec", command="echo ran >> log; sleep 600"), "I see.")
    async with rehearse(tmp_path, steps) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", "go")
        log = tmp_path / "agents/main/workspace/log"
        await until(log.exists)
    async with rehearse(tmp_path, steps) as gateway:
        ended = await gateway.sessions.wait(turn.turn_id, LIMIT_S)
        assert ended.reply == "I see."
        history = await gateway.sessions.queries.history(OWNER, "main", HistoryQuery(include_tools=True))
        assert "Interrupted" in str(history["messages"])
    assert log.read_text() == "ran\n"
