"""Several gateways on one database as their operator sees them: list, drain, remove, readiness, metrics."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests import postgres, stores
from tests.integration.helpers import call_method, three_agents
from tests.waiting import LIMIT_S, until

from hobnob.api.server import open_server
from hobnob.cli.doctor_checks import findings
from hobnob.client import Client, open_client
from hobnob.cluster.postgres import PostgresCluster
from hobnob.errors import RpcFailed
from hobnob.gateway import api_services
from hobnob.testing import rehearse

TOKEN = "the-token-of-all-gateways"
HOLD = """
import asyncio, os
from hobnob.tools import Context, tool

@tool(repeatable=True)
async def hold(context: Context) -> str:
    "Wait until the test opens the gate."
    while not os.path.exists(os.environ["TEST_GATE"]):
        await asyncio.sleep(0.02)
    return "through"
"""
needs_own_database = pytest.mark.skipif(stores.ON_POSTGRES, reason="opens databases by itself")


class GatewayProcess:
    """`hobnob serve` with a state directory of its own, and the commands of that machine."""

    def __init__(self, folder: Path, name: str, url: str, **settings: Any) -> None:
        self.name, self.home, self.gate = name, folder / name, folder / "gate"
        self.home.mkdir(mode=0o700)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        (self.home / "hold.py").write_text(HOLD)
        own = {
            "gateway": {"port": self.port, "name": name, "auth": {"token": TOKEN}},
            "store": {"url": url},
            "tools": {"modules": [str(self.home / "hold.py")], "alsoAllow": ["hold"]},
        }
        (self.home / "hobnob.json5").write_text(json.dumps(own | settings))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HOBNOB_")}
        self.env |= {"HOBNOB_HOME": str(self.home), "NO_COLOR": "1", "TEST_GATE": str(self.gate)}
        self.log = self.home / "log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "hobnob", "serve"], env=self.env, stdout=log, stderr=log
            )

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    async def listens(self) -> None:
        await until(lambda: "listens on" in self.log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    async def run(self, *words: str, code: int = 0) -> str:
        """A `hobnob` command on the machine of this gateway, and what it printed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hobnob", *words),
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == code, said.decode()
        return said.decode()

    async def get(self, path: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            async with http.get(f"http://127.0.0.1:{self.port}{path}") as answer:
                return answer.status, await answer.text()

    async def until_metric(self, name: str, value: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while f"\n{name} {value}\n" not in (await self.get("/metrics"))[1]:
                await asyncio.sleep(0.05)

    async def until_readyz(self, status: int) -> str:
        """What it answers, when that has the status."""
        async with asyncio.timeout(LIMIT_S):
            while (answer := await self.get("/readyz"))[0] != status:
                await asyncio.sleep(0.05)
        return answer[1]


Start = Callable[..., Any]


@pytest.fixture
def url() -> str:
    return postgres.new_database()


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    started: list[GatewayProcess] = []

    async def start(*names: str, **settings: Any) -> list[GatewayProcess]:
        found = [GatewayProcess(tmp_path, name, url, **settings) for name in names]
        started.extend(found)
        for gateway in found:
            await gateway.listens()
        return found

    yield start
    for gateway in started:
        gateway.process.send_signal(signal.SIGCONT)
        gateway.process.kill()
        gateway.process.wait(LIMIT_S)


async def listed(client: Client) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in (await client.call("gateways.list"))["gateways"]}


async def until_listed(client: Client, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> Any:
    """The gateways by name, when they are as wanted."""
    async with asyncio.timeout(LIMIT_S):
        while not condition(found := await listed(client)):
            await asyncio.sleep(0.05)
    return found


async def send(client: Client, key: str, message: str) -> str:
    sent = await client.call("chat.send", sessionKey=key, message=message, idempotencyKey=f"{key} {message}")
    return str(sent["runId"])


def claimed_by(url: str, run: str) -> str | None:
    [(gateway_id,)] = postgres.execute(url, f"select claimed_by from turns where turn_id = '{run}'")
    return gateway_id


def ran_on(url: str, run: str) -> str:
    """The gateway of the last claim, also after the turn has ended."""
    found = claimed_by(url, run)
    assert found is not None
    return found


# -- list


@needs_own_database
@pytest.mark.promise("gateways.listed")
async def test_each_gateway_lists_all_of_the_database_and_what_each_does(start: Start) -> None:
    one, two = await start("one", "two")
    async with open_client(one.url, TOKEN) as client, open_client(two.url, TOKEN) as other:
        found = await until_listed(
            client,
            lambda rows: (
                "cron" in rows["one"]["roles"] + rows["two"]["roles"]
                and all(row["url"] is not None for row in rows.values())
            ),
        )
        assert sorted(found) == ["one", "two"]
        roles = found["one"]["roles"] + found["two"]["roles"]
        assert len(roles) == len(set(roles))
        row = found["one"]
        assert row["self"] and row["state"] == "alive" and row["pid"] == one.process.pid
        assert (row["url"], row["host"]) == (one.url, socket.gethostname())
        assert (row["runningTurns"], row["silentSeconds"]) == (0, None)
        elsewhere = await listed(other)
        assert elsewhere["two"]["self"] and not elsewhere["one"]["self"]
        assert elsewhere["one"]["gatewayId"] == row["gatewayId"]
        assert (await client.call("status"))["gateways"] == {"alive": 2, "draining": [], "silent": []}


@needs_own_database
async def test_a_credential_for_some_agents_sees_no_gateways(start: Start) -> None:
    narrow = {
        "name": "narrow",
        "token": "a-narrow-token-of-main",
        "agents": ["main"],
        "scopes": ["operator.read"],
    }
    reader = {"name": "reader", "token": "a-token-that-reads-all", "scopes": ["operator.read"]}
    auth = {"token": TOKEN, "tokens": [narrow, reader]}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    await start("one", gateway={"port": port, "name": "one", "auth": auth})
    async with open_client(f"ws://127.0.0.1:{port}", narrow["token"]) as client:
        with pytest.raises(RpcFailed, match="credential for all agents"):
            await client.call("gateways.list")
        assert "gateways" not in await client.call("status")
    async with open_client(f"ws://127.0.0.1:{port}", reader["token"]) as client:
        assert list(await listed(client)) == ["one"]
        for method in ("gateways.drain", "gateways.remove"):
            with pytest.raises(RpcFailed, match=r"operator\.admin"):
                await client.call(method, gatewayId="one")


@needs_own_database
async def test_a_gateway_is_named_by_its_name_or_the_beginning_of_its_id(start: Start) -> None:
    one, _ = await start("one", "two")
    async with open_client(one.url, TOKEN) as client:
        ids = {name: row["gatewayId"] for name, row in (await listed(client)).items()}
        shared = ids["one"]
        while not ids["two"].startswith(shared):
            shared = shared[:-1]
        with pytest.raises(RpcFailed, match="More than one gateway") as refusal:
            await client.call("gateways.drain", gatewayId=shared)
        assert all(each in refusal.value.message for each in ids.values())
        with pytest.raises(RpcFailed, match="No gateway has the name 'three'"):
            await client.call("gateways.drain", gatewayId="three")
        beginning = ids["two"][: len(shared) + 1].upper()
        done = await client.call("gateways.drain", gatewayId=beginning)
        assert done["gateway"]["name"] == "two" and done["gateway"]["draining"]


@needs_own_database
async def test_a_gateway_under_load_has_no_more_connections_than_the_documents_say(
    start: Start, url: str
) -> None:
    (one,) = await start("one")
    async with open_client(one.url, TOKEN) as client:
        asked = [client.ask("say: hello", f"hook:{number}") for number in range(40)]
        pages = [client.call("sessions.list") for _ in range(40)]
        await asyncio.gather(*asked, *pages)
    [(connections,)] = postgres.execute(
        url,
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()",
    )
    assert 5 < connections <= 15


# -- drain


@needs_own_database
@pytest.mark.promise("gateways.drained")
async def test_a_drained_gateway_starts_no_turn_and_ends_those_it_runs(start: Start, url: str) -> None:
    one, two = await start("one", "two")
    async with open_client(one.url, TOKEN) as client, open_client(two.url, TOKEN) as other:
        ids = {name: row["gatewayId"] for name, row in (await listed(client)).items()}
        running = await send(client, "hook:held", "call hold {}")
        await until(lambda: claimed_by(url, running) is not None)
        home = {v: k for k, v in ids.items()}[ran_on(url, running)]
        drained, taking = (one, two) if home == "one" else (two, one)
        assert (await drained.get("/readyz"))[0] == 200
        await other.call("gateways.drain", gatewayId=home)
        assert "drained" in await drained.until_readyz(503)
        assert (await taking.get("/readyz"))[0] == 200
        found = await until_listed(client, lambda rows: not rows[home]["roles"])
        assert found[home]["state"] == "draining" and found[home]["runningTurns"] == 1
        sender = client if drained is one else other  # connected to the drained one
        for number in range(5):
            run = await send(sender, f"hook:{number}", "say: hello")
            assert (await sender.wait(run))["status"] == "ok"
            assert ran_on(url, run) == ids[taking.name]
        one.gate.touch()
        assert (await sender.wait(running))["status"] == "ok"
        assert ran_on(url, running) == ids[home]
        await other.call("gateways.drain", gatewayId=home, on=False)
        await until_listed(client, lambda rows: rows[home]["state"] == "alive")
        await drained.until_readyz(200)


@needs_own_database
async def test_a_drained_gateway_starts_no_turn_even_if_it_is_the_only_one(start: Start, url: str) -> None:
    [one] = await start("one")
    async with open_client(one.url, TOKEN) as client:
        await client.call("gateways.drain", gatewayId="one")
        await one.until_readyz(503)
        run = await send(client, "hook:later", "say: later")
        [(status,)] = postgres.execute(url, f"select status from turns where turn_id = '{run}'")
        assert status == "queued"
        await client.call("gateways.drain", gatewayId="one", on=False)
        assert (await client.wait(run))["status"] == "ok"


async def test_a_gateway_with_another_setting_for_files_does_not_start(
    start: Start, tmp_path: Path, url: str
) -> None:
    await start("one")
    two = GatewayProcess(tmp_path, "two", url, store={"url": url, "files": "local"})
    assert await asyncio.to_thread(two.process.wait, LIMIT_S) != 0
    assert "store.files is 'local' here, and 'shared' on the gateway one" in two.log.read_text()


async def test_a_gateway_that_joins_again_is_still_drained(start: Start) -> None:
    one, two = await start("one", "two")
    async with open_client(one.url, TOKEN) as client:
        drained = (await client.call("gateways.drain", gatewayId="two"))["gateway"]
        await two.until_readyz(503)
        done = await client.call("gateways.remove", gatewayId="two")  # drained and idle
        assert done["removed"] and done["wasAlive"]

        def is_new(rows: dict[str, dict[str, Any]]) -> bool:
            return "two" in rows and rows["two"]["gatewayId"] != drained["gatewayId"]

        assert (await until_listed(client, is_new))["two"]["draining"]


async def test_a_gateway_that_was_drained_while_it_hung_is_drained_when_it_goes_on(start: Start) -> None:
    one, two = await start("one", "two")
    async with open_client(one.url, TOKEN) as client:
        two.process.send_signal(signal.SIGSTOP)
        await client.call("gateways.drain", gatewayId="two")
        await until_listed(client, lambda rows: "two" not in rows)
        two.process.send_signal(signal.SIGCONT)
        assert (await until_listed(client, lambda rows: "two" in rows))["two"]["draining"]
        await two.until_readyz(503)


# -- remove


@needs_own_database
@pytest.mark.promise("gateways.removed")
async def test_a_gateway_that_is_alive_is_removed_only_by_force(start: Start, url: str) -> None:
    one, two = await start("one", "two")
    async with open_client(one.url, TOKEN) as client:
        before = (await listed(client))["two"]["gatewayId"]
        with pytest.raises(RpcFailed, match="two is alive and takes new turns") as refusal:
            await client.call("gateways.remove", gatewayId="two")
        assert "hobnob nodes drain two --wait" in str(refusal.value.fix)
        with pytest.raises(RpcFailed, match="the one that answers"):
            await client.call("gateways.remove", gatewayId="one", force=True)
        assert (await listed(client))["two"]["gatewayId"] == before
        assert (await client.call("gateways.remove", gatewayId="two", force=True))["removed"]
        found = await until_listed(client, lambda rows: "two" in rows)  # its process still runs
        assert found["two"]["gatewayId"] != before and two.process.poll() is None


@needs_own_database
async def test_the_turns_of_a_gateway_that_hangs_run_elsewhere_at_once_when_it_is_removed(
    start: Start, url: str
) -> None:
    one, two = await start("one", "two")
    async with open_client(one.url, TOKEN) as client:
        hanging = (await listed(client))["two"]["gatewayId"]
        await client.call("gateways.drain", gatewayId="one")
        await one.until_readyz(503)
        run = await send(client, "hook:held", "call hold {}")
        await until(lambda: claimed_by(url, run) == hanging)
        await client.call("gateways.drain", gatewayId="one", on=False)
        await one.until_readyz(200)
        two.process.send_signal(signal.SIGSTOP)
        assert (await client.call("gateways.remove", gatewayId="two", force=True))["removed"]
        await until(lambda: claimed_by(url, run) not in (None, hanging))
        one.gate.touch()
        assert (await client.wait(run))["status"] == "ok"
        two.process.send_signal(signal.SIGCONT)
        found = await until_listed(client, lambda rows: "two" in rows)
        assert found["two"]["gatewayId"] != hanging


@needs_own_database
async def test_a_gateway_that_hangs_is_shown_as_silent_until_it_is_taken_for_dead(start: Start) -> None:
    one, two = await start("one", "two")
    async with open_client(one.url, TOKEN) as client:
        two.process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(LIMIT_S):
            while (row := (await listed(client))["two"])["state"] != "silent":
                await asyncio.sleep(0.05)
            assert row["silentSeconds"] >= 3
            assert (await client.call("status"))["gateways"] == {
                "alive": 1,
                "draining": [],
                "silent": ["two"],
            }
        await until_listed(client, lambda rows: "two" not in rows)


@needs_own_database
def test_doctor_names_a_gateway_without_a_sign_of_life(tmp_path: Path, url: str) -> None:
    postgres.execute(
        url,
        "insert into gateways (gateway_id, instance, name, host, pid, version, started_at_ms, beat_at)"
        " values ('x', 'x', 'ghost', 'elsewhere', 1, '0.0', 0, clock_timestamp() - interval '90 s')",
    )
    found = [
        each for each in findings(_settings_file(tmp_path, url), online=False) if each.check == "gateways"
    ]
    assert [each.state for each in found] == ["ok", "warn"]
    assert "no sign of life from ghost on elsewhere for" in found[1].message


@needs_own_database
def test_doctor_names_who_else_may_use_the_database(tmp_path: Path, url: str) -> None:
    def found() -> list[str]:
        all_found = findings(_settings_file(tmp_path, url), online=False)
        return [each.message for each in all_found if each.check == "store" and each.state == "warn"]

    assert found() == []
    postgres.execute(url, "create role eve login")
    try:
        assert found() == ["other users of the server may connect to the database, and so disturb it: eve"]
        postgres.execute(url, "grant create on schema public to public")
        [warning] = found()
        assert "may create functions in the database, and so read and change it: eve" in warning
    finally:
        postgres.execute(url, "drop role eve")


def _settings_file(folder: Path, url: str) -> Path:
    file = folder / "hobnob.json5"
    file.write_text(json.dumps({"store": {"url": url}}))
    return file


# -- readiness, metrics, stop


@needs_own_database
async def test_a_gateway_that_has_lost_its_database_is_not_ready_until_it_has_joined_again(
    tmp_path: Path,
) -> None:
    postgres.require_server()
    server = postgres.start_server()
    try:
        server.execute("create database d")
        settings = three_agents() | {"store": {"url": server.url("d")}, "gateway": {"port": 0}}
        async with (
            rehearse(tmp_path, settings) as gateway,
            open_server(api_services(gateway)) as address,
            aiohttp.ClientSession(address.replace("ws:", "http:")) as http,
            asyncio.timeout(2 * LIMIT_S),
        ):
            assert (await http.get("/readyz")).status == 200
            await asyncio.to_thread(server.halt)
            assert isinstance(gateway.cluster, PostgresCluster)
            gateway.cluster.fence("the test does not wait six seconds")
            answer = await http.get("/readyz")
            assert answer.status == 503 and "lost its database" in await answer.text()
            assert (await http.get("/healthz")).status == 200
            await asyncio.to_thread(server.start)
            while (await http.get("/readyz")).status != 200:
                await asyncio.sleep(0.1)
    finally:
        server.stop()


@needs_own_database
async def test_metrics_count_the_gateways_and_name_the_roles_of_this_one(start: Start) -> None:
    one, two = await start("one", "two")
    async with open_client(one.url, TOKEN) as client:
        await client.call("gateways.drain", gatewayId="two")
        await until_listed(client, lambda rows: "cron" in rows["one"]["roles"] and not rows["two"]["roles"])
        assert (await client.ask("say: hello")).text == "hello"
    await two.until_readyz(503)
    _, here = await one.get("/metrics")
    _, there = await two.get("/metrics")
    assert "\nhobnob_gateways 2\n" in here and "\nhobnob_gateways 2\n" in there
    assert 'hobnob_gateway_roles{role="cron"} 1' in here and "hobnob_gateway_roles{" not in there
    assert "\nhobnob_gateway_draining 0\n" in here and "\nhobnob_gateway_draining 1\n" in there
    assert 'hobnob_gateway_messages_total{direction="sent"} 0' not in here
    assert 'hobnob_gateway_messages_total{direction="received"} 0' not in there


@needs_own_database
async def test_a_gateway_that_is_stopped_says_that_others_continue_and_they_do(
    start: Start, url: str
) -> None:
    one, two = await start("one", "two")
    async with open_client(one.url, TOKEN) as client:
        await two.until_metric("hobnob_gateways", 2)
        async with open_client(two.url, TOKEN) as other:
            run = await send(other, "hook:held", "call hold {}")  # runs where it is accepted
        await until(lambda: claimed_by(url, run) is not None)
        first = claimed_by(url, run)
        two.process.terminate()
        await until(lambda: claimed_by(url, run) not in (None, first))
        await asyncio.to_thread(two.process.wait, LIMIT_S)
        assert "Stopping: running turns continue on another gateway." in two.log.read_text()
        one.gate.touch()
        assert (await client.wait(run))["status"] == "ok"
    await one.until_metric("hobnob_gateways", 1)
    one.process.terminate()
    await asyncio.to_thread(one.process.wait, LIMIT_S)
    assert "Stopping: running turns have 20 seconds to end." in one.log.read_text()


# -- the command


@needs_own_database
@pytest.mark.promise("gateways.listed")
async def test_the_command_finds_the_gateway_of_its_machine_and_lists_drains_and_removes(
    start: Start, url: str
) -> None:
    one, two = await start("one", "two")
    shown = await two.run("nodes", "list")
    lines = {line.split()[0]: line for line in shown.splitlines()}
    assert "two (this one)" in lines["two"] and one.url in lines["one"]
    assert "alive" in lines["one"] and "(this one)" not in lines["one"]
    assert "2 gateways on this database" in await one.run("status")
    async with open_client(one.url, TOKEN) as client:
        ids = {name: row["gatewayId"] for name, row in (await listed(client)).items()}
        run = await send(client, "hook:held", "call hold {}")
        await until(lambda: claimed_by(url, run) is not None)
        home = {v: k for k, v in ids.items()}[ran_on(url, run)]
        waiting = asyncio.create_task(one.run("nodes", "drain", home, "--wait"))
        await until_listed(client, lambda rows: rows[home]["state"] == "draining")
        with pytest.raises(RpcFailed, match=r"is alive and runs 1 turn\.|the one that answers"):
            await client.call("gateways.remove", gatewayId=home)
        assert not waiting.done()
        one.gate.touch()
        assert f"The gateway {home} runs no turn any more." in await waiting
        assert (await client.wait(run))["status"] == "ok"
    assert f"The gateway {home} starts turns again." in await two.run("nodes", "drain", home, "--off")
    found = json.loads(await one.run("nodes", "list", "--json"))
    assert found["shared"] and [row["draining"] for row in found["gateways"]] == [False, False]
    assert next(row["name"] for row in found["gateways"] if row["self"]) == "one"
    assert "The gateway two is removed" in await one.run("nodes", "remove", "two", "--force")
    assert "No gateway has the name 'three'" in await one.run("nodes", "drain", "three", code=1)


@pytest.mark.parametrize("words", [("sessions", "list"), ("status",)])
async def test_a_command_without_a_gateway_of_its_own_names_those_of_the_database(
    start: Start, words: Sequence[str]
) -> None:
    one, two = await start("one", "two")
    two.process.kill()
    two.process.wait(LIMIT_S)
    said = await two.run(*words, code=1)
    assert f"used by: one ({one.url} on " in said and "--url" in said
    assert await two.run(*words, "--url", one.url)  # with the token of its settings, which is the same


async def test_with_sqlite_there_is_one_gateway_which_is_not_drained(tmp_path: Path) -> None:
    async with rehearse(tmp_path, {"gateway": {"name": "alone"}}) as gateway:
        answer = (await call_method(gateway, "gateways.list"))["payload"]
        if stores.ON_POSTGRES:
            assert answer["shared"]
            return
        assert not answer["shared"] and [row["name"] for row in answer["gateways"]] == ["alone"]
        assert answer["gateways"][0]["gatewayId"] == answer["self"]
        for method in ("gateways.drain", "gateways.remove"):
            refused = await call_method(gateway, method, gatewayId="alone")
            assert not refused["ok"] and "SQLite" in refused["error"]["message"]
            assert "PostgreSQL" in refused["error"]["details"]["fix"]
