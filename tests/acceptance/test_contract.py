"""The contract test of the session tools: it passes on Hobnob, and finds planted weaknesses."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pyjson5
import pytest
from aiohttp import web
from tests.acceptance.test_cli import Cli
from tests.acceptance.test_serving import free_port
from tests.integration.web import OWNER_TOKEN, web_of
from tests.waiting import LIMIT_S

from hobnob.contract import runner

SETTINGS: dict[str, Any] = pyjson5.decode(runner.SETTINGS)
# Kills the gateway whose pid is in a file, and starts it again.
RESTART = """\
import os, signal, subprocess, sys, time
pid_file, *command = sys.argv[1:]
if os.path.exists(pid_file):
    pid = int(open(pid_file).read())
    os.kill(pid, signal.SIGKILL)
    stat = f"/proc/{pid}/stat"
    while os.path.exists(stat) and open(stat).read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.02)
log = open(pid_file + ".log", "a")
process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
open(pid_file, "w").write(str(process.pid))
"""


@asynccontextmanager
async def fixture_gateway(home: Path) -> AsyncIterator[str]:
    settings = {name: value for name, value in SETTINGS.items() if name != "gateway"}
    async with web_of(home, settings, gateway={"tools": SETTINGS["gateway"]["tools"]}) as site:
        yield site.url


@pytest.mark.promise("contract.holds", "contract.reports")
@pytest.mark.timeout(300)
def test_hobnob_keeps_the_contract_also_when_it_is_killed(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    settings = SETTINGS | {"gateway": SETTINGS["gateway"] | {"port": 0}}
    cli.configure(json.dumps(settings))
    (tmp_path / "restart.py").write_text(RESTART)
    pid_file = tmp_path / "gateway.pid"
    serve = f"{sys.executable} -m hobnob serve --port {free_port()}"
    command = f"{sys.executable} {tmp_path}/restart.py {pid_file} {serve}"
    try:
        subprocess.run(command, shell=True, env=cli.env, check=True)  # noqa: S602 - a command of ours
        _until_it_listens(cli)
        done = cli.run(
            "contract",
            "run",
            "--restart-command",
            command,
            "--markdown",
            str(tmp_path / "report.md"),
            "--json-file",
            str(tmp_path / "report.json"),
        )
        assert "0 failed, 0 skipped" in done.stdout
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["ok"] and report["passed"] == len(report["checks"]) > 30
        assert "| ✓ | `what_was_accepted_survives_a_kill` |" in (tmp_path / "report.md").read_text()
    finally:
        if pid_file.exists():
            os.kill(int(pid_file.read_text()), 9)


def _until_it_listens(cli: Cli) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not (cli.home / "gateway.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- planted weaknesses: a proxy in front of a real gateway that breaks one rule

Plant = Callable[[dict[str, Any], dict[str, Any]], Any]


def details(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (answer.get("result") or {}).get("details") or {}
    return found


def full_keys(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Shows the caller's own main session by its full key."""
    for row in details(answer).get("sessions", []):
        row["key"] = "agent:main:main" if row["key"] == "main" else row["key"]


def oldest_first(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Lists the oldest session first."""
    details(answer).get("sessions", []).reverse()


def limit_ignored(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Counts one row more than it may."""
    found = details(answer)
    if asked["args"].get("limit") == 0 and "sessions" in found:
        found["sessions"], found["count"] = found["sessions"] * 2, 2


def pages_repeat(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Never gives a cursor, though there are more rows."""
    details(answer).pop("nextCursor", None)


def accepts_anything(asked: dict[str, Any], answer: dict[str, Any]) -> Any:
    """Accepts unknown parameters."""
    if "limits" in asked["args"]:
        return {"ok": True, "result": {"details": {"count": 0, "sessions": []}}}
    return None


def leaks_sessions(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Lists a session that the caller may not see."""
    found = details(answer)
    if found.get("sessions"):
        found["sessions"].append({**found["sessions"][0], "key": "agent:outsider:main", "updatedAt": 0})
        found["count"] += 1


def tells_unknown_apart(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Says that a session does not exist where the caller may not know."""
    if asked["args"].get("sessionKey") == "agent:outsider:hook:none":
        answer["error"] = {"message": "There is no session.", "code": "session.not_found"}


def opens_history(asked: dict[str, Any], answer: dict[str, Any]) -> Any:
    """Shows the history of a session that the caller may not see."""
    if asked["args"].get("sessionKey") == "agent:outsider:main":
        return {"ok": True, "result": {"details": {"messages": [], "sessionKey": "x"}}}
    return None


def last_reply_wins(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Answers with another turn's reply."""
    if "reply" in details(answer):
        details(answer)["reply"] = "the latest thing anybody said"


def forgets_the_run(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Accepts without a run id."""
    details(answer).pop("runId", None)


def hides_the_source(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Drops the provenance of messages."""
    for message in details(answer).get("messages", []):
        message.pop("provenance", None)


def newest_first(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Gives history newest first."""
    details(answer).get("messages", []).reverse()


def shows_tool_results(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Adds a tool result that nobody asked for."""
    if "messages" in details(answer):
        details(answer)["messages"].append({"role": "toolResult", "content": "x"})


def invents_children(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Gives a key that is not that of the child."""
    if "childSessionKey" in details(answer):
        details(answer)["childSessionKey"] = f"agent:helper:subagent:{uuid.uuid4()}"


def allows_any_agent(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Names agents that cannot be spawned."""
    if "agents" in details(answer):
        details(answer)["agents"].append({"id": "outsider"})


def repeats_messages(asked: dict[str, Any], answer: dict[str, Any]) -> None:
    """Shows each message twice."""
    found = details(answer)
    if "messages" in found:
        found["messages"] = [message for message in found["messages"] for _ in range(2)]


def ignores_the_policy(asked: dict[str, Any], answer: dict[str, Any]) -> Any:
    """Says that a denied message was accepted."""
    if asked["args"].get("agentId") == "mute":
        return {"ok": True, "result": {"details": {"status": "accepted", "runId": "1"}}}
    return None


PLANTS: list[tuple[Plant, str]] = [
    (full_keys, "own_main_is_main"),
    (oldest_first, "newest_first"),
    (limit_ignored, "limits_are_clamped"),
    (pages_repeat, "pages_cover_all_rows_once"),
    (accepts_anything, "unknown_parameters_are_refused"),
    (leaks_sessions, "invisible_sessions_are_not_listed"),
    (tells_unknown_apart, "invisible_looks_like_unknown"),
    (opens_history, "sessions_of_other_agents_need_permission"),
    (last_reply_wins, "a_reply_is_that_of_its_own_turn"),
    (forgets_the_run, "without_waiting_a_send_is_accepted"),
    (hides_the_source, "a_message_says_where_it_comes_from"),
    (newest_first, "messages_come_oldest_first_and_page_backward"),
    (shows_tool_results, "tool_results_only_when_asked_for"),
    (invents_children, "a_spawn_is_accepted_with_a_receipt"),
    (allows_any_agent, "agents_list_is_what_spawn_accepts"),
    (repeats_messages, "the_same_key_has_one_effect"),
    (ignores_the_policy, "a_denied_session_takes_no_message"),
]


@asynccontextmanager
async def planted(url: str, plant: Plant) -> AsyncIterator[str]:
    """The address of a gateway with one weakness."""

    async def pass_on(request: web.Request) -> web.Response:
        asked = await request.json()
        headers = {"Authorization": request.headers["Authorization"]}
        async with http.post(f"{url}/tools/invoke", json=asked, headers=headers) as response:
            status, answer = response.status, await response.json()
        replaced = plant(asked, answer)
        return (
            web.json_response(replaced, status=200) if replaced else web.json_response(answer, status=status)
        )

    app = web.Application()
    app.router.add_post("/tools/invoke", pass_on)
    app_runner = web.AppRunner(app)
    await app_runner.setup()
    site = web.TCPSite(app_runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession() as http:
        try:
            yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        finally:
            await app_runner.cleanup()


@pytest.mark.promise("contract.finds")
async def test_each_planted_weakness_is_found_by_its_check(tmp_path: Path) -> None:
    """The same checks pass on the same gateway without the plant."""
    async with fixture_gateway(tmp_path) as url:
        wrong = []
        for plant, name in PLANTS:
            [clean] = await runner.run(url, OWNER_TOKEN, only=name)
            async with planted(url, plant) as weak:
                [found] = await runner.run(weak, OWNER_TOKEN, only=name)
            if (clean.state, found.state) != ("passed", "failed"):
                wrong.append((plant.__name__, clean, found))
        assert wrong == []
        assert len({plant for plant, _ in PLANTS}) >= 10


@pytest.mark.promise("contract.finds")
async def test_a_gateway_that_loses_messages_fails_durability(tmp_path: Path) -> None:
    """The same key gives another run after its restart."""
    async with fixture_gateway(tmp_path) as url:
        answers: dict[str, Any] = {}

        def forgetful(asked: dict[str, Any], answer: dict[str, Any]) -> None:
            key = asked.get("idempotencyKey")
            if key in answers and "runId" in details(answer):
                details(answer)["runId"] = str(uuid.uuid4())
            answers[str(key)] = True

        async with planted(url, forgetful) as weak:
            [found] = await runner.run(
                weak, OWNER_TOKEN, only="what_was_accepted_survives_a_kill", restart="true"
            )
        assert found.state == "failed", found


async def test_what_a_gateway_lacks_is_skipped_and_not_failed(tmp_path: Path) -> None:
    settings = {name: value for name, value in SETTINGS.items() if name != "gateway"}
    async with web_of(tmp_path, settings) as site:
        [sent] = await runner.run(site.url, OWNER_TOKEN, only="a_send_is_answered")
        assert (sent.state, "sessions_send is off" in sent.detail) == ("skipped", True)
        [kept] = await runner.run(site.url, OWNER_TOKEN, only="what_was_accepted_survives_a_kill")
        assert kept.state == "skipped"
