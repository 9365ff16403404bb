"""The mistakes of a first hour with Hobnob: what was wrong is said, and what to do about it."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import run_command
from tests.acceptance.test_cli import Cli, findings
from tests.acceptance.test_serving import free_port, read_until
from tests.waiting import LIMIT_S

DOCS = Path(__file__).parent.parent.parent / "docs"
TYPOS = """{
  // What I do not want.
  tools: { deny: ["exek"], agentToAgent: { allow: ["gost"] } },
  agents: { list: [{ id: "main", subagents: { allowAgents: ["ghost"] } }] },
}"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home")


@pytest.fixture
def start(cli: Cli) -> Iterator[Start]:
    """Call it to start a gateway on a port of its own."""
    started: list[subprocess.Popen[str]] = []

    def serve(*flags: str, port: int = 0, until: str = "listens on") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "hobnob", "serve", "--port", str(port), *flags],
            env=cli.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        read_until(process, until)
        return process

    yield serve
    for process in started:
        process.kill()
        process.communicate()


def fail(cli: Cli, *words: str, code: int = 1, **env: str) -> str:
    return cli.run(*words, code=code, **env).stderr


# A typo in a name


def test_doctor_warns_of_names_that_name_nothing_and_does_not_say_all_is_well(cli: Cli) -> None:
    cli.configure(TYPOS)
    said = cli.run("doctor").stdout
    assert "! tools  tools.deny names 'exek', and there is no such tool; did you mean 'exec'?" in said
    assert "! agents  tools.agentToAgent.allow names 'gost'" in said
    assert "! agents  agents.list[main].subagents.allowAgents names 'ghost'" in said
    assert "All is well" not in said
    assert said.endswith("3 warnings.\n")
    (line,) = re.findall(r"To correct it: hobnob (config set .*)", said)
    cli.run(*line.replace("'", "").split(" ", 3))
    assert '// What I do not want.\n  tools: { deny: ["exec"],' in cli.config.read_text()
    assert "exek" not in cli.run("doctor").stdout


def test_serve_warns_of_a_deny_that_denies_nothing(cli: Cli, start: Start) -> None:
    cli.configure(TYPOS)
    process = start(until="tools.deny names 'exek'")
    assert "listens on" in read_until(process, "listens on")


def test_doctor_checks_the_models_that_will_be_used(cli: Cli) -> None:
    cli.configure("{agents: {defaults: {model: 'anthropic/x'}, list: [{id: 'a', model: 'antropic/x'}]}}")
    models = [message for state, message in findings(cli.json("doctor", code=1), "model") if state == "fail"]
    assert models == [
        "agents.defaults.model: The provider 'anthropic' needs an API key.",
        "agents.list[a].model: The model 'antropic/x' cannot be used: there is no provider 'antropic'.",
    ]


def test_doctor_asks_a_model_only_when_told_to(cli: Cli) -> None:
    port = free_port()
    providers = {"mine": {"baseUrl": f"http://127.0.0.1:{port}/v1"}}
    cli.configure(
        json.dumps({"models": {"providers": providers}, "agents": {"defaults": {"model": "mine/x"}}})
    )
    assert findings(cli.json("doctor"), "model") == [("ok", "mine/x")]
    ((state, message),) = findings(
        json.loads(cli.run("doctor", "--online", "--json", code=1).stdout), "model"
    )
    assert state == "fail"
    assert f"mine/x does not answer: mine: 127.0.0.1:{port} cannot be reached: Connection refused" in message
    assert "check that it runs, and baseUrl" in message


def test_doctor_checks_where_the_gateway_would_listen(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        cli.configure(f"{{gateway: {{port: {port}}}}}")
        assert findings(cli.json("doctor", code=1), "address") == [
            ("fail", f"Cannot listen on 127.0.0.1:{port}: another program uses this port.")
        ]
    assert findings(cli.json("doctor"), "address") == [("ok", f"127.0.0.1:{port} is free")]
    cli.configure("{gateway: {bind: 'lan'}}")
    ((state, message),) = findings(cli.json("doctor", code=1), "address")
    assert (state, "no token is set" in message) == ("fail", True)


def test_doctor_knows_the_users_own_tools(cli: Cli) -> None:
    cli.configure("{tools: {modules: ['mine.py'], deny: ['roll']}}")
    assert "There is no Python file" in cli.run("doctor", code=1).stdout
    (cli.home / "mine.py").write_text(
        "from hobnob.tools import tool\n\n@tool\nasync def roll(context):\n    'Roll.'\n    return '6'\n"
    )
    assert "✓ tools  your own: roll" in cli.run("doctor").stdout


# The settings in effect


def test_settings_are_those_of_the_running_gateway_until_it_reloads(cli: Cli, start: Start) -> None:
    start()
    cli.run("config", "set", "tools.deny", '["exec"]')
    shown = cli.run("config", "show", "--changed").stdout
    assert "in effect in the gateway at ws://127.0.0.1:" in shown
    assert "! The file differs: gateway.port" not in shown
    assert "! The file differs: tools.deny. To apply it: hobnob reload" in shown
    asked = cli.run("explain", "main", "use", "exec")
    assert asked.stdout.startswith("May agent:main:main use exec? yes")
    assert "The file differs: tools.deny" in asked.stderr
    assert "By the settings of the running gateway." in asked.stderr
    assert cli.run("explain", "main", "use", "exec", "--config", str(cli.config)).stdout.startswith(
        "May agent:main:main use exec? no"
    )
    assert "Changed: tools.deny" in cli.run("reload").stdout
    assert '["exec"]' in cli.run("config", "show", "--changed").stdout
    assert cli.json("explain", "main", "use", "exec")["code"] == "tools.denied"


def test_reload_says_what_waits_for_a_restart_and_what_is_wrong(cli: Cli, start: Start) -> None:
    start()
    cli.configure("{models: {providers: {mine: {baseUrl: 'http://x'}}}, tools: {deny: ['exek']}}")
    said = cli.run("reload").stdout
    assert "Changed: tools.deny\n" in said
    assert "! After a restart: models.providers" in said
    assert "! tools.deny names 'exek'" in said
    cli.configure("{tools: {denny: []}}")
    assert "tools.denny: there is no setting 'denny' here; did you mean 'deny'?" in fail(
        cli, "reload", code=2
    )
    assert "exek" in cli.run("config", "show", "--changed").stdout


def test_secrets_are_masked_alike_in_the_gateway_and_in_the_file(cli: Cli, start: Start) -> None:
    cli.configure("{gateway: {auth: {token: 'a-token-in-the-file'}}}")
    start()
    shown = [cli.json("config", "show", "--changed", *more) for more in ([], ["--config", str(cli.config)])]
    masked = [row["value"] for one in shown for row in one["settings"] if row["path"] == "gateway.auth.token"]
    assert masked == ["**********"] * 2


def test_what_a_reload_does_not_apply_is_said_to_need_a_restart(cli: Cli, start: Start) -> None:
    start()
    cli.configure("{models: {providers: {mine: {baseUrl: 'http://x'}}}, tools: {deny: ['exec']}}")
    cli.run("reload")
    waiting = "The file differs: models.providers. The gateway uses it after a restart."
    shown = cli.run("config", "show").stdout
    assert f"! {waiting}" in shown
    assert "hobnob reload" not in shown
    assert waiting in cli.run("explain", "main", "use", "exec").stderr
    cli.run("config", "set", "tools.deny", "[]")
    shown = cli.run("config", "show").stdout
    assert "! The file differs: tools.deny. To apply it: hobnob reload\n" in shown
    assert "The file also differs: models.providers. The gateway uses it after a restart." in shown


def test_a_file_with_errors_keeps_nobody_from_asking_a_healthy_gateway(cli: Cli, start: Start) -> None:
    cli.configure("{gateway: {auth: {token: 'a-token-in-the-file'}}}")
    start()
    cli.configure("{gateway: {auth: {token: 'a-token-in-the-file'}, bogus: 1}}")
    done = cli.run("status")
    assert "is up at" in done.stdout
    assert done.stderr.count("has errors") == 1
    assert cli.run("agent", "-m", "say hi").stdout == "hi\n"
    assert cli.json("sessions", "list")["count"] == 1


def test_without_a_gateway_a_file_with_errors_is_an_error(cli: Cli) -> None:
    cli.configure("{gateway: {bogus: 1}}")
    assert "bogus" in fail(cli, "status", code=2)
    assert "No gateway is running" in fail(Cli(cli.home / "other"), "reload")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["main", "send", "agent:gost:main"],
            "There is no agent 'gost'; did you mean 'ghost'? (agent.unknown)",
        ),
        (
            ["agent:gost:main", "send", "main"],
            "There is no agent 'gost'; did you mean 'ghost'? (agent.unknown)",
        ),
        (["main", "history", "hook:none"], "There is no session agent:main:hook:none. (session.not_found)"),
        (["hook:none", "history", "main"], "There is no session agent:main:hook:none. (session.not_found)"),
        (["main", "spawn", "gost"], "There is no agent 'gost'"),
        (["main", "use", "exek"], "There is no tool 'exek'; did you mean 'exec'? (tools.unknown)"),
    ],
)
def test_explain_says_no_for_what_does_not_exist(cli: Cli, words: list[str], says: str) -> None:
    cli.configure("{agents: {list: [{id: 'main'}, {id: 'ghost'}]}}")
    said = cli.run("explain", *words).stdout
    assert said.splitlines()[0].endswith("? no")
    assert says in said


def test_main_is_the_main_session_of_the_default_agent_on_both_sides(cli: Cli) -> None:
    cli.configure("{agents: {list: [{id: 'boss'}, {id: 'b'}]}}")
    verdict = cli.json("explain", "agent:b:main", "send", "main")
    assert (verdict["from"], verdict["to"]) == ("agent:b:main", "agent:boss:main")
    assert cli.json("explain", "main", "send", "main")["from"] == "agent:boss:main"
    assert "There is no session agent:boss:hook:none" in fail(cli, "explain", "hook:none", "--tools")


def test_a_fix_of_explain_can_be_pasted(cli: Cli) -> None:
    cli.configure("// mine\n{agents: {list: [{id: 'main'}, {id: 'b'}]}}")
    for words in (["main", "send", "agent:b:main"], ["main", "spawn", "b"]):
        (line,) = re.findall(r"^  (hobnob .*)$", cli.run("explain", *words).stdout, re.MULTILINE)
        hobnob = f"{sys.executable} -m hobnob"
        subprocess.run(line.replace("hobnob", hobnob, 1), shell=True, env=cli.env, check=True)  # noqa: S602
        assert cli.json("explain", *words)["allowed"] is True
    assert cli.config.read_text().startswith("// mine\n")


def test_a_session_that_takes_no_messages_takes_them_after_the_fix(cli: Cli) -> None:
    cli.run("agent", "-m", "say hi")
    cli.run("sessions", "patch", "main", "--send-policy", "deny")
    command = cli.json("explain", "owner", "send", "main")["command"]
    assert command == "hobnob sessions patch agent:main:main --send-policy inherit"
    cli.run(*command.split()[1:])
    assert cli.json("explain", "owner", "send", "main")["allowed"] is True


def test_a_state_directory_on_a_read_only_disk_is_named_as_such(cli: Cli) -> None:
    cli.configure("{}")
    cli.run("agent", "-m", "say hi")
    read_only = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    if subprocess.run([*read_only, "true"], capture_output=True).returncode != 0:
        pytest.skip("no bubblewrap here")

    def run(*words: str) -> str:
        command = [*read_only, sys.executable, "-m", "hobnob", *words]
        done = subprocess.run(command, env=cli.env, capture_output=True, text=True)
        assert done.returncode == 1, done
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    assert f"✗ state  {cli.home} is on a disk that is mounted read-only" in run("doctor")
    for words in (["serve"], ["agent", "-m", "hi"], ["config", "set", "gateway.port", "5"]):
        assert "mounted read-only: mount it writable, or set HOBNOB_HOME" in run(*words)


# Talking to an agent, and to a gateway


@pytest.mark.parametrize("words", [["agent", "-m", "hi"], ["sessions", "spawn", "hi"]])
def test_a_typing_error_in_an_agent_is_not_answered_with_how_to_add_that_agent(
    cli: Cli, words: list[str]
) -> None:
    cli.configure("{agents: {list: [{id: 'main', subagents: {allowAgents: ['helper']}}, {id: 'helper'}]}}")
    said = fail(cli, *words, "--agent", "helpr")
    assert "There is no agent 'helpr'; did you mean 'helper'?" in said
    assert "config set" not in said
    far = fail(cli, *words, "--agent", "zebra")
    assert "There is no agent 'zebra' (configured: main, helper)" in far
    assert "hobnob config set 'agents.list[zebra].id' zebra" in far


def test_a_message_that_starts_a_session_says_so_once(cli: Cli) -> None:
    for note in ("This starts a new session: shopping\n", ""):
        assert cli.run("agent", "-m", "say hi", "--session", "shopping").stderr == note
    assert cli.run("agent", "-m", "say hi").stderr == ""


def test_agent_prints_the_rule_and_the_fix_of_a_refusal(cli: Cli) -> None:
    cli.configure("{agents: {list: [{id: 'main'}, {id: 'helper'}]}}")
    said = cli.run("agent", "-m", "ask helper: what is 6 * 7?").stderr
    assert "→ sessions_send" in said
    assert "✗ The setting tools.sessions.visibility is tree" in said
    assert "(visibility.tree)" in said
    assert "→ hobnob config set tools.sessions.visibility all tools.agentToAgent.enabled true" in said


def test_agent_waits_for_a_gateway_that_was_killed(cli: Cli, start: Start) -> None:
    slow = {"models": {"rehearsal": {"scripts": {"main": [{"text": "At last.", "delayMs": 600_000}]}}}}
    cli.configure(json.dumps(slow))
    first = start()
    asking = subprocess.Popen(
        [sys.executable, "-m", "hobnob", "agent", "-m", "hi"],
        env=cli.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: cli.json("status")["runningTurns"] == 1)
        first.kill()
        first.wait()
        assert asking.stderr is not None
        assert "waiting for the gateway" in asking.stderr.readline()
        slow["models"]["rehearsal"]["scripts"]["main"][0]["delayMs"] = 0
        cli.configure(json.dumps(slow))
        start()  # on another port
        out, err = asking.communicate(timeout=LIMIT_S)
    finally:
        asking.kill()
        asking.communicate()
    assert (out, asking.returncode) == ("At last.\n", 0), err


def test_one_can_wait_again_for_an_answer(cli: Cli, start: Start) -> None:
    start()
    run = cli.json("agent", "-m", "say hi")["runId"]
    assert cli.run("agent", "--wait", run).stdout == "hi\n"
    assert cli.json("agent", "--wait", run)["reply"] == "hi"
    assert "no-such-run" in fail(cli, "agent", "--wait", "no-such-run")
    assert "Give a message" in fail(cli, "agent", code=2)


def test_a_gateway_elsewhere_is_named_by_url_and_token_file(cli: Cli, start: Start, tmp_path: Path) -> None:
    port = free_port()
    start(port=port)
    other = Cli(tmp_path / "elsewhere")
    token = tmp_path / "token"
    token.write_text((cli.home / "token").read_text())
    token.chmod(0o600)
    for url in (f"ws://127.0.0.1:{port}", f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}"):
        done = other.run("status", "--url", url, "--token-file", str(token))
        assert "is up at" in done.stdout
        assert done.stderr == ""
    where = ["--url", f"ws://127.0.0.1:{port}", "--token-file", str(token)]
    assert other.run("agent", "-m", "say hi", *where).stdout == "hi\n"
    assert other.json("sessions", "list", *where)["count"] == 1
    assert other.json("config", "show", *where)["gateway"] == f"ws://127.0.0.1:{port}"
    assert other.json("explain", "main", "use", "exec", *where)["from"] == "agent:main:main"
    token.chmod(0o644)
    assert f"chmod 600 {token}" in other.run("agents", "list", *where).stderr
    assert not other.home.exists()  # nothing was opened here


def test_only_a_closed_port_of_this_machine_means_that_no_gateway_is_running(
    cli: Cli, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("any")
    token.chmod(0o600)
    closed = fail(cli, "status", "--url", f"ws://127.0.0.1:{free_port()}", "--token-file", str(token))
    assert "connection refused.\nStart one with `hobnob serve`." in closed
    elsewhere = fail(cli, "status", "--url", "wss://gateway.invalid", "--token-file", str(token))
    assert "Check the address, and that a gateway runs there." in elsewhere
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=_answer_404, args=(other,), daemon=True).start()
        port = other.getsockname()[1]
        web = fail(cli, "status", "--url", f"ws://127.0.0.1:{port}", "--token-file", str(token))
    assert "HTTP 404.\nCheck the address" in web


def _answer_404(server: socket.socket) -> None:
    connection, _ = server.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    connection.close()


def test_a_wrong_token_is_reported_with_its_origin(cli: Cli, start: Start, tmp_path: Path) -> None:
    port = free_port()
    start(port=port)
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong-token")
    wrong.chmod(0o600)
    said = fail(cli, "status", "--url", f"ws://127.0.0.1:{port}", "--token-file", str(wrong))
    assert said.startswith("error: unauthorized: the token is wrong.\n")
    assert f"This command took the token from the file {wrong}. The token is in the file token" in said
    assert "from $HOBNOB_TOKEN." in fail(cli, "agent", "-m", "hi", **{"HOBNOB_TOKEN": "wrong-token"})


def test_the_token_of_this_machine_is_not_sent_to_another(cli: Cli) -> None:
    cli.run("agent", "-m", "say hi")
    (cli.home / "token").write_text("a-token-of-this-machine")
    assert "There is no token for wss://gateway.example" in fail(
        cli, "status", "--url", "wss://gateway.example", code=2
    )
    assert "is not the URL" in fail(cli, "status", "--url", "ftp://x", code=2)


def test_serve_takes_tools_of_a_file(cli: Cli, start: Start, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(import random.*?)```", (DOCS / "tools.md").read_text(), re.DOTALL)
    (tmp_path / "my_tools.py").write_text(example)
    start("--tools", str(tmp_path / "my_tools.py"))
    said = cli.run("agent", "-m", 'call roll_dice {"sides": 1}').stdout
    assert said == "roll_dice: main rolled 1\n"
    done = run_command(("serve", "--port", "0", "--tools", "/no/such.py"), Cli(tmp_path / "b").env)
    assert done.returncode == 2
    assert "There is no Python file /no/such.py" in done.stderr


def test_the_program_in_the_documents_works(cli: Cli, start: Start) -> None:
    (program,) = re.findall(r"```python\n(from pathlib.*?)```", (DOCS / "clients.md").read_text(), re.DOTALL)
    port = free_port()
    cli.env["HOBNOB_HOME"] = str(cli.home.parent / ".hobnob")
    start(port=port)
    done = subprocess.run(
        [sys.executable, "-c", program.replace("4626", str(port))],
        env=os.environ | {"HOME": str(cli.home.parent)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "6 * 7 = 42\nagent:main:hook:shop\n", done.stderr


def wait_until(happened: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)
