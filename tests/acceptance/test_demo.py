"""`hobnob demo`, as somebody runs it who has never heard of Hobnob."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.known_tools import SESSION_TOOLS
from tests.waiting import LIMIT_S


def run(tmp: Path, **env: str) -> subprocess.CompletedProcess[str]:
    (tmp / "scratch").mkdir()
    own = {k: v for k, v in os.environ.items() if not k.startswith("HOBNOB_")}
    return subprocess.run(
        [sys.executable, "-m", "hobnob", "demo"],
        env=own | {"TMPDIR": str(tmp / "scratch")} | env,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One run of the demo, for the tests that only read what it printed."""
    return run(tmp_path_factory.mktemp("demo"))


def test_the_demo_shows_every_session_tool_and_a_refusal(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for tool in SESSION_TOOLS:
        assert f"→ {tool}" in done.stdout, tool
    for words in (
        "Hobnob is a gateway where AI agents live in sessions",
        "ok: Dry until five",  # the answer to sessions_send
        "Gladly. I bring six.",  # the reply-back loop
        "posted to the people in Bo's chat",  # the announcement
        "yielded",
        "gets a report: Status: completed",
        "Two chairs are missing. I will borrow them.",  # woken by the report
        'ok: elm {"tables":4}, oak {"tables":4}, ash {"tables":4}',  # the join
        "hobnob config set tools.agentToAgent.allow",  # the refusal explains itself
        "The conversation ended because Ada had nothing to add",
        "Done: the announcement was delivered",
        "hobnob serve",
        "hobnob agent -m",
    ):
        assert words in " ".join(done.stdout.split()), words


def test_the_demo_leaves_nothing_behind_and_needs_no_home(tmp_path: Path) -> None:
    done = run(tmp_path, HOME="/dev/null/nowhere", HOBNOB_CONFIG="/no/such/file", HOBNOB_PORT="nonsense")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_demo_in_a_pipe_is_plain_text_of_ordinary_width(done: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert not re.search(r"[ \t]$", done.stdout, re.MULTILINE)


def test_the_demo_is_shown_on_any_terminal(tmp_path: Path) -> None:
    assert run(tmp_path, PYTHONIOENCODING="ascii").returncode == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_leaves_nothing_behind(tmp_path: Path, how: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "hobnob", "demo"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background is deaf to Ctrl-C, and so would be its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    while "sessions_list" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(how)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_demo_whose_reader_has_had_enough_is_quiet(tmp_path: Path) -> None:
    command = f"{sys.executable} -m hobnob demo | head -n 2"
    done = subprocess.run(  # noqa: S602 - the shell makes the pipe
        command, shell=True, env=os.environ | {"TMPDIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert "Hobnob is a gateway" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
