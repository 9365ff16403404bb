"""`hobnob serve` as a process: how it stops, how it takes a changed configuration, what it logs."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LIMIT_S

from hobnob.client import Client, open_client
from hobnob.errors import RpcFailed

TOKEN = "the-token-of-this-gateway"
SLOW = {
    "hook:slow": [{"text": "At last.", "delayMs": 1200}],
    "hook:stuck": [{"text": "Never.", "delayMs": 600_000}],
}
Start = Callable[..., subprocess.Popen[str]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class GatewayHome:
    """A state directory and the port its gateway listens on."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"ws://127.0.0.1:{self.port}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HOBNOB_")}
        self.env |= {"HOBNOB_HOME": str(home), "NO_COLOR": "1"}
        self.configure()

    def configure(self, **settings: Any) -> None:
        gateway = {"port": self.port, "auth": {"token": TOKEN}} | settings.pop("gateway", {})
        document = {"gateway": gateway, "models": {"rehearsal": {"scripts": SLOW}}} | settings
        (self.home / "hobnob.json5").write_text(json.dumps(document))


@pytest.fixture
def gateway_home(tmp_path: Path) -> GatewayHome:
    tmp_path.chmod(0o700)
    return GatewayHome(tmp_path)


@pytest.fixture
def start(gateway_home: GatewayHome) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def serve(*flags: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "hobnob", "serve", *flags],
            env=gateway_home.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        read_until(process, "listens on")
        return process

    yield serve
    for process in started:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(f"it never said {words!r}")


async def start_turn(client: Client, key: str) -> str:
    """A turn that is running."""
    sent = await client.call("chat.send", sessionKey=key, message="go", idempotencyKey=key)
    while (await client.call("health"))["runningTurns"] == 0:
        await asyncio.sleep(0.01)
    return str(sent["runId"])


def test_whoever_waits_is_answered_before_the_gateway_stops(gateway_home: GatewayHome, start: Start) -> None:
    process = start()

    async def main() -> tuple[Any, Any]:
        async with open_client(gateway_home.url, TOKEN) as client:
            run = await start_turn(client, "hook:slow")
            waiting = asyncio.create_task(client.wait(run))
            await client.call("health")  # so that the gateway has heard that we wait
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(LIMIT_S):
                while (event := await client.events.get()) and event["event"] != "shutdown":
                    pass
            return await waiting, event

    answer, shutdown = asyncio.run(main())
    assert answer["result"]["payloads"][0]["text"] == "At last."
    assert shutdown is not None  # the client was told before the connection was closed
    rest, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, rest


def test_asked_twice_it_stops_at_once_and_goes_on_at_the_next_start(
    gateway_home: GatewayHome, start: Start
) -> None:
    process = start()

    async def begin() -> str:
        async with open_client(gateway_home.url, TOKEN) as client:
            return await start_turn(client, "hook:stuck")

    run = asyncio.run(begin())
    process.send_signal(signal.SIGTERM)
    read_until(process, "Stopping: running turns")
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0
    start()

    async def look() -> Any:
        async with open_client(gateway_home.url, TOKEN) as client:
            status = await client.call("sessions.status", key="hook:stuck")
            await client.call("sessions.abort", key="hook:stuck", runId=run)
            return status

    assert asyncio.run(look())["openTurns"] == 1


def test_a_changed_configuration_is_taken_over_where_that_is_safe(
    gateway_home: GatewayHome, start: Start
) -> None:
    process = start()
    more = {"name": "ci", "token": "another-token-for-ci", "scopes": ["operator.read"]}
    gateway_home.configure(
        gateway={"auth": {"token": TOKEN, "tokens": [more]}, "port": gateway_home.port + 1},
        agents={"list": [{"id": "main"}, {"id": "fresh"}]},
    )
    process.send_signal(signal.SIGHUP)
    taken = read_until(process, "settings reloaded")
    assert "agents.list" in taken
    assert "gateway.auth.tokens" in taken
    assert "gateway.port" in read_until(process, "need a restart")

    async def use() -> Any:
        async with open_client(gateway_home.url, "another-token-for-ci") as reader:
            agents = await reader.call("agents.list")
        async with open_client(gateway_home.url, TOKEN) as owner:
            return agents, await owner.ask("say hi", "agent:fresh:main")

    agents, answer = asyncio.run(use())
    assert [agent["id"] for agent in agents["agents"]] == ["main", "fresh"]
    assert answer.text == "hi"


def test_a_broken_configuration_changes_nothing(gateway_home: GatewayHome, start: Start) -> None:
    process = start()
    (gateway_home.home / "hobnob.json5").write_text("{gateway: {bogus: 1}}")
    process.send_signal(signal.SIGHUP)
    assert "bogus" in read_until(process, "settings not reloaded")

    async def use() -> Any:
        async with open_client(gateway_home.url, TOKEN) as client:
            return await client.call("health")

    assert asyncio.run(use())["ok"] is True


def test_a_token_that_was_taken_away_lets_nobody_in_any_more(gateway_home: GatewayHome, start: Start) -> None:
    more = {"name": "ci", "token": "another-token-for-ci", "scopes": ["operator.read"]}
    gateway_home.configure(gateway={"auth": {"token": TOKEN, "tokens": [more]}})
    process = start()

    async def use() -> None:
        async with open_client(gateway_home.url, "another-token-for-ci", patience_s=0) as inside:
            await inside.call("health")
            gateway_home.configure()
            process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(LIMIT_S):
                while await inside.events.get() is not None:
                    pass  # until the connection is closed
        async with open_client(gateway_home.url, "another-token-for-ci"):
            pass

    with pytest.raises(RpcFailed, match="unauthorized"):
        asyncio.run(use())
    assert "no longer valid: 1" in read_until(process, "connections closed")


def test_the_log_can_be_one_json_object_per_line(gateway_home: GatewayHome, start: Start) -> None:
    process = start("--log-json")

    async def use() -> Any:
        async with open_client(gateway_home.url, TOKEN) as client:
            return await client.ask("say something private")

    answer = asyncio.run(use())
    line = json.loads(read_until(process, "turn ended"))
    assert (line["run"], line["session"], line["outcome"]) == (answer.run_id, "agent:main:main", "ok")
    assert line["level"] == "info"
    assert "private" not in json.dumps(line)


@pytest.mark.parametrize("flags", [[], ["--log-json"]])
def test_times_in_the_log_have_a_zone(gateway_home: GatewayHome, start: Start, flags: list[str]) -> None:
    process = start(*flags)

    async def use() -> Any:
        async with open_client(gateway_home.url, TOKEN) as client:
            await client.ask("say hi")
            return (await client.call("logs.tail"))["lines"]

    lines = asyncio.run(use())
    lines.append(read_until(process, "turn ended"))
    assert all(re.search(r"T[\d:.]+(Z|[+-]\d\d:\d\d)\b", line) for line in lines), lines


def test_a_port_that_is_taken_is_one_sentence_and_what_to_do(gateway_home: GatewayHome) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", gateway_home.port))
        taken.listen()
        done = subprocess.run(
            [sys.executable, "-m", "hobnob", "serve"], env=gateway_home.env, capture_output=True, text=True
        )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"error: Cannot listen on 127.0.0.1:{gateway_home.port}: another program uses this port.",
        f"Stop that program, or choose another port: hobnob config set gateway.port {gateway_home.port + 1}",
    ]


def test_it_makes_room_for_many_connections_where_that_takes_asking(start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        process = start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] == min(hard, 65_536)
