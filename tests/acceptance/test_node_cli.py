"""`hobnob node` as people use it: a second machine, its approval, and the first command on it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import run_command
from tests.acceptance.test_serving import TOKEN, GatewayHome, Start, read_until
from tests.acceptance.test_serving import gateway_home as gateway_home
from tests.acceptance.test_serving import start as start


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory, gateway_home: GatewayHome) -> Iterator[Any]:
    """Starts `hobnob node run` on a machine of its own: another state directory."""
    home = tmp_path_factory.mktemp("machine")
    home.chmod(0o700)
    (home / "hobnob.json5").write_text(json.dumps({"nodeHost": {"exec": {"host": "host"}}}))
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOBNOB_")}
    env |= {"HOBNOB_HOME": str(home), "HOBNOB_TOKEN": TOKEN, "NO_COLOR": "1"}
    started: list[subprocess.Popen[str]] = []

    def run_node(*more: str) -> subprocess.Popen[str]:
        words = ["node", "run", "--url", gateway_home.url, "--name", "workshop", *more]
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "hobnob", *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield run_node
    for process in started:
        process.kill()
        process.communicate()


def run(home: GatewayHome, *words: str, code: int = 0) -> str:
    done = run_command(("node", *words), home.env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_from_nothing_to_the_first_command_on_a_second_machine(
    gateway_home: GatewayHome, start: Start, machine: Any
) -> None:
    start()
    assert "hobnob node run --url" in run(gateway_home, "list")
    node = machine()
    read_until(node, "Connected to")
    listed = run(gateway_home, "list")
    assert "waits for approval" in listed and "hobnob node approve" in listed
    assert "workshop is approved, with system.notify, system.run" in run(gateway_home, "approve", "workshop")
    read_until(node, "An owner decided: approved")
    found = json.loads(
        run(gateway_home, "invoke", "workshop", "system.which", "--params", '{"bins": ["sh"]}')
    )
    assert Path(found["bins"]["sh"]).exists()
    run(gateway_home, "rename", "workshop", "Shed")
    assert "connected  true" in run(gateway_home, "describe", "shed")
    params = json.dumps({"command": ["echo", "from afar"]})
    answer = json.loads(run(gateway_home, "invoke", "shed", "system.run", "--params", params, "--json"))
    assert answer["payload"]["stdout"] == "from afar\n"
    run(gateway_home, "remove", "shed")
    read_until(node, "the node was removed")
    read_until(node, "Waiting for approval")
    run(gateway_home, "reject", "Shed")


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("approve", "nobody"), "No node asks", 2),
        (("describe", "nobody"), "There is no node 'nobody'", 1),
        (("invoke", "nobody", "system.which", "--params", "{"), "--params is not JSON", 2),
        (("run", "--url", "ftp://x"), "is not the URL of a gateway", 2),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    gateway_home: GatewayHome, words: tuple[str, ...], said: str, code: int
) -> None:
    assert said in run(gateway_home, *words, code=code)


def test_a_wrong_token_ends_the_node_with_a_reason(
    gateway_home: GatewayHome, start: Start, machine: Any, tmp_path: Path
) -> None:
    start()
    (tmp_path / "wrong").write_text("not-the-token")
    (tmp_path / "wrong").chmod(0o600)
    node = machine("--token-file", str(tmp_path / "wrong"))
    read_until(node, "token is wrong")
    assert node.wait(60) == 1
