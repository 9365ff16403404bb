"""The command line as people use it: the real command in a process of its own."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import run_command
from tests.waiting import LIMIT_S

from hobnob.client import open_client
from hobnob.errors import GatewayLost
from hobnob.keys import parse
from hobnob.store import entries, open_store, sessions
from hobnob.types import Session

SECRET = "sk-planted-0123456789"


class Cli:
    """Runs `hobnob` with a state directory of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.config = home / "hobnob.json5"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HOBNOB_")}
        self.env |= {"HOBNOB_HOME": str(home), "NO_COLOR": "1"}

    def configure(self, text: str) -> None:
        self.home.mkdir(mode=0o700, exist_ok=True)
        self.config.write_text(text)
        self.config.chmod(0o600)

    def run(self, *words: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = run_command(words, self.env | env)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code).stdout)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home")


def findings(report: Any, check: str) -> list[tuple[str, str]]:
    return [(f["state"], f["message"]) for f in report["findings"] if f["check"] == check]


def test_doctor_says_all_is_well_on_a_fresh_machine(cli: Cli) -> None:
    done = cli.run("doctor")
    assert done.stdout.endswith("\nAll is well.\n")
    assert "rehearsal" in done.stdout
    assert not cli.home.exists()


def test_doctor_shows_all_problems_of_the_configuration_at_once(cli: Cli) -> None:
    cli.configure("{gatway: {}, session: {scope: 'galaxy'}, agents: {list: [{id: '-'}]}}")
    report = cli.json("doctor", code=1)
    text = json.dumps(report)
    assert report["ok"] is False
    for path in ("gatway", "session.scope", "agents.list[0].id"):
        assert path in text
    assert "did you mean 'gateway'" in text


def test_doctor_reports_older_names_and_what_is_ignored(cli: Cli) -> None:
    cli.configure("{agent: {timeoutSeconds: 9}, telemetry: {on: true}}")
    report = cli.json("doctor")
    assert ("warn", "agent is now called agents.defaults") in findings(report, "config")
    assert any("telemetry" in message for _, message in findings(report, "config"))


def test_doctor_warns_of_settings_without_effect_yet(cli: Cli) -> None:
    cli.configure(
        "{models: {providers: {p: {baseUrl: 'http://127.0.0.1:9', models: [{id: 'm', name: 'M'}]}}}}"
    )
    message = "accepted, but without effect in this version: models.providers.p.models[0].name"
    assert ("warn", message) in findings(cli.json("doctor"), "config")


def test_doctor_says_what_keeps_a_harness_from_running(cli: Cli) -> None:
    cli.configure(
        """{acp: {allowedAgents: ['here', 'gone'], defaultAgent: 'other', harnesses: {
            here: {command: ['sh']}, gone: {command: ['no-such-harness']}, shut: {command: ['sh']}}}}"""
    )
    assert findings(cli.json("doctor", code=1), "acp") == [
        ("ok", "here, permissions: approve-reads"),
        ("fail", "the command of gone cannot be found: no-such-harness"),
        ("warn", "shut is configured, but no agent may run it"),
        ("warn", "acp.defaultAgent is other, which is not a harness"),
    ]


def test_doctor_warns_of_secrets_that_others_can_read(cli: Cli) -> None:
    cli.configure(f"{{gateway: {{auth: {{token: '{SECRET}'}}}}}}")
    cli.config.chmod(0o644)
    cli.home.chmod(0o755)
    done = cli.run("doctor")
    assert f"chmod 600 {cli.config}" in done.stdout
    assert f"chmod 700 {cli.home}" in done.stdout
    assert SECRET not in done.stdout


def test_doctor_checks_that_the_store_is_sound_and_says_who_uses_it(cli: Cli) -> None:
    async def main() -> Any:
        async with open_store(f"sqlite:///{cli.home}/hobnob.db") as store:
            session = await store.write(sessions.create, Session.of(parse("main")))
            for _ in range(200):
                await store.write(entries.append, session.session_id, {"role": "user", "content": "x" * 99})
            return await asyncio.to_thread(cli.json, "doctor")

    used = findings(asyncio.run(main()), "store")
    assert used[0][0] == "ok"
    assert f"in use by process {os.getpid()}" in used[0][1]
    db = cli.home / "hobnob.db"
    data = bytearray(db.read_bytes())
    data[8192:] = b"\xff" * (len(data) - 8192)
    db.write_bytes(data)
    assert findings(cli.json("doctor", code=1), "store")[0][0] == "fail"


def test_config_show_tells_each_value_and_where_it_came_from(cli: Cli) -> None:
    cli.configure("{gateway: {port: 1234, auth: {token: '${TOK}'}}}")
    shown = json.loads(cli.run("config", "show", "--json", TOK=SECRET).stdout)
    rows = {row["path"]: (row["value"], row["origin"]) for row in shown["settings"]}
    assert rows["gateway.port"] == (1234, "hobnob.json5")
    assert rows["gateway.auth.token"] == ("**********", "hobnob.json5, $TOK")
    assert rows["session.scope"] == ("per-sender", "default")
    plain = cli.run("config", "show", "--changed", TOK=SECRET).stdout
    assert "gateway.port" in plain
    assert "session.scope" not in plain
    assert SECRET not in plain + json.dumps(shown)


TWO_AGENTS = "agents: {list: [{id: 'main'}, {id: 'b'}]}"


def test_explain_prints_a_verdict_in_words(cli: Cli) -> None:
    cli.configure(f"{{{TWO_AGENTS}}}")
    said = cli.run("explain", "main", "send", "agent:b:main").stdout
    assert said.startswith("May agent:main:main send agent:b:main? no")
    assert (
        "To allow it:\n  hobnob config set tools.sessions.visibility all tools.agentToAgent.enabled true\n"
        "Or only this, as one more of the list grants:\n" in said
    )


def test_explain_prints_a_verdict_as_json(cli: Cli) -> None:
    cli.configure(
        f"{{{TWO_AGENTS}, tools: {{sessions: {{visibility: 'all'}}, agentToAgent: {{enabled: true}}}}}}"
    )
    assert cli.json("explain", "main", "send", "agent:b:main")["allowed"] is True
    refusal = cli.json("explain", "main", "control", "agent:b:main")
    assert (refusal["allowed"], refusal["code"]) == (False, "control.not_descendant")


@pytest.mark.promise("visibility.tree_is_the_default")
def test_explain_knows_who_spawned_whom(cli: Cli) -> None:
    parent = Session.of(parse("agent:main:main"))
    child = Session.of(parse("agent:b:subagent:1"), spawned_by=parent)

    async def main() -> None:
        async with open_store(f"sqlite:///{cli.home}/hobnob.db") as store:
            for session in (parent, child):
                await store.write(sessions.create, session)

    asyncio.run(main())
    assert cli.json("explain", "main", "history", child.key)["allowed"] is True
    assert cli.json("explain", child.key, "history", "agent:main:main")["code"] == "visibility.tree"


def test_explain_covers_spawning_send_policy_and_narrower_tokens(cli: Cli) -> None:
    cli.configure(
        """{agents: {list: [{id: 'main'}, {id: 'b'}]},
            session: {sendPolicy: {rules: [{match: {chatType: 'group'}, action: 'deny'}]}},
            gateway: {auth: {tokens: [{name: 'ann', token: 't', scopes: ['operator.read']}]}}}"""
    )
    spawn = cli.json("explain", "main", "spawn", "b")
    assert spawn["code"] == "spawn.agent_not_allowed"
    assert spawn["fix"] == [{"path": "agents.list[main].subagents.allowAgents", "value": ["b"]}]
    assert cli.json("explain", "owner", "send", "irc:group:x")["code"] == "send_policy.denied"
    assert cli.json("explain", "token:ann", "send", "main")["code"] == "scope.missing"
    assert cli.json("explain", "token:ann", "history", "main")["allowed"] is True


def test_backup_copies_the_store_while_it_is_in_use(cli: Cli, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"

    async def main() -> None:
        async with open_store(f"sqlite:///{cli.home}/hobnob.db") as store:
            await store.write(sessions.create, Session.of(parse("main"), label="kept"))
            await asyncio.to_thread(cli.run, "backup", str(copy))

    async def restored() -> Session | None:
        async with open_store(f"sqlite:///{copy}") as store:
            return await store.read(sessions.find, str(parse("main")))

    asyncio.run(main())
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert getattr(asyncio.run(restored()), "label", None) == "kept"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["explain", "main", "send", "hook:.."], 2, "must not contain path segments"),
        (["explain", "token:bob", "send", "main"], 2, "no token 'bob'"),
        (["explain", "main", "poke", "main"], 2, "poke"),
        (["backup", "/dev/null/x"], 1, "There is no store"),
        (["config", "show", "--config", "/no/such/file"], 2, "cannot be read"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_errors_go_to_stderr_with_a_sentence_and_an_exit_code(
    cli: Cli, words: list[str], code: int, says: str
) -> None:
    done = cli.run(*words, code=code)
    assert says in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_key_is_printed_as_it_is_and_not_as_a_picture(cli: Cli) -> None:
    said = cli.run("explain", "main", "list", "agent:b:slack:group:x:thread:9").stdout
    assert "agent:b:slack:group:x:thread:9" in said


@pytest.mark.parametrize("key", ["hook:[red]x", "hook:[/x]", "hook:[bold]"])
def test_brackets_in_a_key_are_brackets(cli: Cli, key: str) -> None:
    assert f"agent:main:{key}" in cli.run("explain", "main", "list", key).stdout


def test_a_terminal_that_knows_only_ascii_is_served_too(cli: Cli) -> None:
    assert "All is well." in cli.run("doctor", PYTHONIOENCODING="ascii").stdout


@pytest.mark.parametrize("home", ["~nobody-there/x", "/dev/null/x"])
def test_a_state_directory_that_cannot_be_is_an_error_and_no_traceback(cli: Cli, home: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hobnob", "doctor"],
        env=cli.env | {"HOBNOB_HOME": home},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr


def test_doctor_does_not_call_a_database_damaged_that_is_only_newer_or_elses(cli: Cli) -> None:
    cli.home.mkdir(mode=0o700)
    with contextlib.closing(sqlite3.connect(cli.home / "hobnob.db")) as connection, connection:
        connection.execute("create table theirs (x)")
    (cli.home / "hobnob.db").chmod(0o600)
    (finding,) = findings(cli.json("doctor", code=1), "store")
    assert "not a Hobnob store" in finding[1]
    assert "damaged" not in finding[1]


def test_a_token_for_no_agent_reaches_none(cli: Cli) -> None:
    cli.configure(
        "{gateway: {auth: {tokens: [{name: 'n', token: 't', scopes: ['operator.read'], agents: []}]}}}"
    )
    assert cli.json("explain", "token:n", "history", "main")["code"] == "scope.agent"


def test_a_colour_tag_in_a_value_is_text(cli: Cli) -> None:
    cli.configure("{agents: {list: [{id: 'main', name: '[red]x[/]'}]}}")
    assert "[red]x[/]" in cli.run("config", "show").stdout


def test_agent_answers_without_a_gateway(cli: Cli) -> None:
    assert cli.run("agent", "-m", "what is 6 * 7?").stdout == "6 * 7 = 42\n"
    assert cli.json("agent", "-m", "say hi")["reply"] == "hi"


def test_agent_goes_on_with_its_conversation(cli: Cli) -> None:
    cli.run("agent", "-m", "remember the milk", "--session", "hook:shop")
    said = cli.run("agent", "-m", "what do you remember?", "--session", "hook:shop").stdout
    assert said == "You told me: the milk\n"


def test_agent_says_what_went_wrong(cli: Cli) -> None:
    cli.configure("{agents: {defaults: {model: 'nowhere/x'}}}")
    done = cli.run("agent", "-m", "hi", code=1)
    assert "nowhere/x" in done.stderr
    assert cli.json("agent", "-m", "hi", code=1)["outcome"] == "failed"
    assert "There is no agent 'ghost'" in cli.run("agent", "-m", "hi", "--agent", "ghost", code=1).stderr


@pytest.fixture
def gateway(cli: Cli) -> Any:
    """Call it to start a gateway, and another after that was killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started: list[subprocess.Popen[str]] = []

    def start(delay_ms: int = 0) -> subprocess.Popen[str]:
        steps = [{"text": "At last.", "delayMs": delay_ms}]
        scripts = {"rehearsal": {"scripts": {"hook:slow": steps}}}
        cli.configure(json.dumps({"gateway": {"port": port}, "models": scripts}))
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "hobnob", "serve"],
            env=cli.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert "listens on" in process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_agent_uses_the_gateway_that_is_running(cli: Cli, gateway: Any) -> None:
    gateway()
    assert cli.run("agent", "-m", "what is 6 * 7?").stdout == "6 * 7 = 42\n"
    assert cli.json("agent", "-m", "say hi")["reply"] == "hi"


@pytest.mark.promise("send.wait_again")
def test_a_client_that_waits_is_answered_although_the_gateway_was_killed(cli: Cli, gateway: Any) -> None:
    first = gateway(delay_ms=600_000)
    port = json.loads(cli.config.read_text())["gateway"]["port"]
    token = (cli.home / "token").read_text()

    async def main() -> Any:
        async with open_client(f"ws://127.0.0.1:{port}", token) as client:
            params = {"message": "hi", "sessionKey": "hook:slow", "idempotencyKey": "k"}
            answers = client.answers("agent", **params)
            accepted = await anext(answers)
            while (await client.call("health"))["runningTurns"] == 0:
                pass
            first.kill()
            with pytest.raises(GatewayLost, match="closed the connection"):
                await anext(answers)
        first.wait()
        gateway()
        async with open_client(f"ws://127.0.0.1:{port}", token) as client:
            waited = await client.call("agent.wait", runId=accepted["runId"], timeoutMs=60_000)
            again = await client.call("agent", **params)
            return waited, again

    waited, again = asyncio.run(main())
    assert waited["result"]["payloads"][0]["text"] == "At last."
    assert again["runId"] == waited["runId"] == "k"


def test_a_gateway_that_is_asked_to_stop_ends_cleanly(cli: Cli, gateway: Any) -> None:
    process = gateway()
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    assert "Stopping" in process.stdout.read()


def test_agent_shows_a_long_answer_whole(cli: Cli) -> None:
    words = " ".join(map(str, range(3000)))
    assert cli.run("agent", "-m", f"say {words}").stdout == f"{words}\n"


def test_agent_shows_a_long_answer_of_a_gateway_whole(cli: Cli, gateway: Any) -> None:
    gateway()
    words = " ".join(map(str, range(3000)))
    assert cli.run("agent", "-m", f"say {words}").stdout == f"{words}\n"


def test_agent_finds_a_gateway_on_another_port(cli: Cli) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "hobnob", "serve", "--port", "0"],
        env=cli.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert "listens on" in process.stdout.readline()
        assert cli.run("agent", "-m", "say hi").stdout == "hi\n"
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("timeout", ["0", "-1", "99999999999"])
def test_a_timeout_that_cannot_be_is_refused(cli: Cli, timeout: str) -> None:
    assert "timeout" in cli.run("agent", "-m", "hi", "--timeout", timeout, code=2).stderr


def test_a_message_in_another_encoding_is_taken_as_far_as_it_is_text(cli: Cli) -> None:
    done = subprocess.run(
        [sys.executable.encode(), b"-m", b"hobnob", b"agent", b"-m", b"say caf\xe9"],
        env=cli.env,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"caf")


def test_agent_into_a_pipe_that_closes_is_quiet(cli: Cli) -> None:
    words = " ".join(map(str, range(15000)))
    command = f'{sys.executable} -m hobnob agent -m "say {words}" | head -c 5'
    done = subprocess.run(command, shell=True, env=cli.env, capture_output=True, text=True)  # noqa: S602
    assert done.stdout == "0 1 2"
    assert "Traceback" not in done.stderr


def test_ctrl_c_stops_the_turn_and_says_nothing_odd(cli: Cli) -> None:
    slow = {"models": {"rehearsal": {"scripts": {"main": [{"text": "Late.", "delayMs": 60000}]}}}}
    cli.configure(json.dumps(slow))
    process = subprocess.Popen(
        [sys.executable, "-m", "hobnob", "agent", "-m", "hi"],
        env=cli.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background is deaf to Ctrl-C, and so would be its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        _until_running(cli.home / "hobnob.db")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in said
    with contextlib.closing(sqlite3.connect(cli.home / "hobnob.db")) as connection:
        outcome = connection.execute("select status, outcome, error from turns").fetchall()
    assert outcome == [("ended", "cancelled", "stopped by hand")]


def _until_running(db: Path) -> None:
    """Look from outside until a turn is running."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(sqlite3.OperationalError):  # not there yet
            uri = f"file:{db}?mode=ro"
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5)) as connection:
                if connection.execute("select 1 from turns where status = 'running'").fetchall():
                    return
        time.sleep(0.02)
    raise AssertionError("no turn began")
