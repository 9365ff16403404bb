"""`hobnob sessions` with gateways that have disks of their own: what a session needs, and moving it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import postgres, stores
from tests.acceptance.conftest import run_command

from hobnob.testing import rehearse, say

pytestmark = pytest.mark.skipif(stores.ON_POSTGRES, reason="opens a database by itself")
MAIN = "agent:main:main"
Run = Callable[..., str]


async def _talk(home: Path, settings: dict[str, Any]) -> None:
    async with rehearse(home, settings) as gateway:
        await say(gateway, "remember the milk")


def environment(home: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOBNOB_")}
    return env | {"HOBNOB_HOME": str(home), "NO_COLOR": "1"}


@pytest.fixture
def url() -> str:
    return postgres.new_database()


@pytest.fixture
def run(tmp_path: Path, url: str) -> Run:
    """Commands on the machine `two`, after a session ran on `one`, which is gone."""
    store = {"url": url, "files": "local"}
    for name in ("one", "two"):
        home = tmp_path / name
        home.mkdir(mode=0o700)
        settings = {"store": store, "gateway": {"name": name, "port": 0}}
        (home / "hobnob.json5").write_text(json.dumps(settings))
        if name == "one":
            asyncio.run(_talk(home, settings))
    env = environment(tmp_path / "two")

    def command(*words: str, code: int = 0) -> str:
        done = run_command(words, env)
        assert done.returncode == code, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())

    return command


@pytest.mark.promise("store.gone_home_said")
def test_list_show_and_status_name_a_home_that_is_gone(run: Run) -> None:
    for command in (["list"], ["show", "main"], ["status", "main"]):
        assert "one (gone; see `hobnob sessions move`)" in run("sessions", *command)
    assert json.loads(run("sessions", "show", "main", "--json"))["homeState"] == "gone"


@pytest.mark.promise("store.gone_home_said")
def test_agent_says_what_its_message_waits_for_and_so_does_wait(run: Run, url: str, tmp_path: Path) -> None:
    run_ids = []
    for options in (["-m", "say hello"], ["--wait"]):
        words = [sys.executable, "-m", "hobnob", "agent", *options, *run_ids]
        process = subprocess.Popen(
            words, env=environment(tmp_path / "two"), stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        said = ""
        while "hobnob sessions move" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        process.kill()
        process.communicate()
        assert "on the gateway one, which does not run" in " ".join(said.split())
        [(run_id,)] = postgres.execute(url, "select turn_id from turns where status = 'queued'")
        run_ids = [run_id]


@pytest.mark.promise("store.sessions_can_be_moved")
def test_a_session_is_moved_and_answers_there(run: Run) -> None:
    said = run("sessions", "move", "main", "two", code=2)
    assert "No gateway with the name 'two' runs." in said
    said = run("sessions", "move", "main", "two", "--force")
    assert f"The home of {MAIN} is two now." in said
    assert "files were not copied: they are on one, in $HOBNOB_HOME/agents/main/workspace." in said
    assert "gone" not in run("sessions", "list")
    assert run("agent", "-m", "say hello") == "hello"


def test_move_needs_a_name_or_anywhere_and_not_both(run: Run) -> None:
    for words in ([], ["two", "--anywhere"]):
        assert "Name a gateway, or give --anywhere." in run("sessions", "move", "main", *words, code=2)
    assert "the next gateway that runs it" in run("sessions", "move", "main", "--anywhere")
    assert run("agent", "-m", "say hello") == "hello"
