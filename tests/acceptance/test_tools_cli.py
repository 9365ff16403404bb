"""Tools, sandbox and approvals as people meet them at the command line: a real gateway, real commands."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.acceptance.conftest import run_command
from tests.integration.sandboxed import needs_sandbox
from tests.waiting import LIMIT_S

from hobnob.cli.doctor import doctor
from hobnob.sandbox import syscalls

SETTINGS: dict[str, Any] = {
    "gateway": {"port": 0},
    "agents": {
        "list": [
            {"id": "main", "sandbox": {"mode": "all"}, "subagents": {"allowAgents": ["*"]}},
            {"id": "free"},
        ]
    },
    "tools": {"exec": {"ask": "always"}, "deny": ["web_fetch"]},
}


class Command:
    def __init__(self, home: Path, **env: str) -> None:
        self.home = home
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "hobnob.json5").write_text(json.dumps(SETTINGS))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HOBNOB_")}
        self.env |= {"HOBNOB_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200"} | env

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        argv = [sys.executable, "-u", "-m", "hobnob", *words]
        return subprocess.Popen(argv, env=self.env, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def run(self, *words: str, code: int = 0) -> str:
        done = run_command(words, self.env)
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "Traceback" not in said
        return said


@pytest.fixture
def hobnob(tmp_path: Path) -> Command:
    return Command(tmp_path / "home")


@contextmanager
def serving(hobnob: Command) -> Iterator[None]:
    with hobnob.start("serve") as process:
        assert process.stdout is not None
        try:
            assert "listens on" in process.stdout.readline()
            yield
        finally:
            process.terminate()
            process.communicate()


@needs_sandbox
@pytest.mark.promise("exec.asks_first", "exec.asks_with_context")
def test_a_person_says_yes_at_the_command_line(hobnob: Command) -> None:
    with serving(hobnob), hobnob.start("agent", "-m", 'call exec {"command": "id -u; ls /home"}') as asking:
        deadline = time.monotonic() + LIMIT_S
        while "id -u; ls /home" not in (said := hobnob.run("approvals", "list")):
            assert time.monotonic() < deadline
        assert "in the sandbox" in said
        assert "agent:main:main" in said
        assert "allowed" in hobnob.run("approvals", "allow", said.split()[0])
        answer, _ = asking.communicate()
        assert asking.returncode == 0
        assert "1000" in answer


@pytest.mark.promise("toolsets.explained")
def test_explain_says_which_tools_a_session_has_and_by_which_rule(hobnob: Command) -> None:
    said = hobnob.run("explain", "main", "--tools")
    assert "agent:main:main must run in a sandbox; its commands run in one; profile full." in said
    assert "✗ web_fetch" in said
    assert "tools.deny names web_fetch. (tools.denied)" in said
    assert "→ hobnob config set tools.deny '[]'" in said
    assert "✓ read" in said
    assert "FROM and --tools" in hobnob.run("explain", "main", code=2)


@needs_sandbox
@pytest.mark.promise("sandbox.same_on_every_path")
def test_a_sandboxed_session_gets_no_unsandboxed_child_from_the_command_line(hobnob: Command) -> None:
    hobnob.run("agent", "-m", "hello")
    said = hobnob.run("sessions", "spawn", "say hi", "--agent", "free", code=1)
    assert "runs outside a sandbox" in said


@pytest.mark.promise("sandbox.never_outside")
def test_doctor_says_when_a_sandbox_is_needed_and_does_not_work(tmp_path: Path) -> None:
    hobnob = Command(tmp_path / "home", PATH="/nowhere")
    said = hobnob.run("doctor", code=1)
    assert "bubblewrap (bwrap) is not installed. Without it sessions that must run in it are refused" in said
    refused = hobnob.run("agent", "-m", "hello", code=1)
    assert "It must run in a sandbox" in refused


@needs_sandbox
@pytest.mark.promise("sandbox.not_as_root", "sandbox.kernel_is_out_of_reach")
def test_doctor_says_as_whom_sandboxed_programs_run_and_whether_system_calls_are_filtered(
    tmp_path: Path,
) -> None:
    def report(run_as_root: bool) -> set[tuple[str, str]]:
        hobnob = Command(tmp_path / "home")
        rules = {"agents": {"defaults": {"sandbox": {"runAsRoot": run_as_root}}}}
        (tmp_path / "home" / "hobnob.json5").write_text(json.dumps(rules))
        found = json.loads(hobnob.run("doctor", "--json"))["findings"]
        return {(f["state"], f["message"]) for f in found if f["check"] == "sandbox"}

    filtered = {("ok", f"system calls are filtered ({syscalls.ARCHITECTURE})")}
    if os.geteuid() == 0:
        user = "its programs run as the unprivileged user 65529, not as root"
        as_root = ("warn", "its programs run as root, without capabilities")
        assert report(run_as_root=True) >= filtered | {as_root}
    else:
        user = f"its programs run as the user of the gateway ({os.geteuid()})"
    assert report(run_as_root=False) >= filtered | {("ok", user)}


def test_doctor_says_that_an_unknown_architecture_has_no_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOBNOB_HOME", str(tmp_path))
    monkeypatch.setattr(syscalls, "ARCHITECTURE", None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(typer.Exit):
        doctor()
    assert "system calls are not filtered" in " ".join(capsys.readouterr().out.split())
