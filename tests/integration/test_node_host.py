"""Our own node host: its sandbox and policy, its key, and how it connects again."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.node_client import NodeKey, approve
from tests.integration.sandboxed import needs_sandbox
from tests.integration.test_wire import served
from tests.waiting import LIMIT_S, until
from websockets.asyncio.server import ServerConnection, serve

from hobnob import config
from hobnob.client import Client, open_client
from hobnob.errors import BadInput, RpcFailed, Unauthenticated
from hobnob.node_host import link, service
from hobnob.node_host.identity import KEY_FILE, Identity
from hobnob.types import new_id

ON_HOST = {"exec": {"host": "host"}}


class Host:
    """A node host of this process, in a state directory of its own."""

    def __init__(self, home: Path, **settings: Any) -> None:
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "hobnob.json5").write_text(json.dumps({"nodeHost": settings}))
        self.config = config.load(home / "hobnob.json5", env={"HOBNOB_HOME": str(home)})
        self.said: list[str] = []
        self.key = NodeKey()
        self.key.id = Identity.kept(home / "node").node_id

    @asynccontextmanager
    async def running(self, url: str, token: str | None) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.ensure_future(
            service.run(self.config, url, token, name="Workshop", say=self.said.append)
        )
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, Unauthenticated):
                await task

    async def connected(self, times: int = 1) -> None:
        await until(lambda: sum(line.startswith("Connected") for line in self.said) >= times)


@asynccontextmanager
async def working(home: Path, **settings: Any) -> AsyncIterator[tuple[Client, Host]]:
    """A gateway with an approved host."""
    (home / "gateway").mkdir()
    host = Host(home / "machine", **settings)
    async with served(home / "gateway") as (url, token), open_client(url, token) as owner:
        async with host.running(url, token):
            await host.connected()
            await approve(owner, host.key)
            yield owner, host


async def invoke(owner: Client, command: str, /, **params: Any) -> Any:
    answer = await owner.call(
        "node.invoke",
        nodeId="Workshop",
        command=command,
        params=params,
        timeoutMs=LIMIT_S * 1000,
        idempotencyKey=new_id(),
    )
    return answer["payload"]


@needs_sandbox
@pytest.mark.promise("nodes.host_policy")
async def test_a_command_runs_in_the_sandbox_of_the_node(tmp_path: Path) -> None:
    async with working(tmp_path) as (owner, host):
        done = await invoke(
            owner, "system.run", command=["/bin/sh", "-c", "pwd; ls /root /home; echo x > made"]
        )
        assert done["stdout"].startswith("/workspace\n")
        assert "cannot access" in done["stdout"]
        assert (done["success"], done["timedOut"]) == (True, False)
        made = host.config.home / "node" / "workspace" / "made"
        assert made.read_text() == "x\n"
        failed = await invoke(owner, "system.run", command=["/bin/sh", "-c", "exit 3"])
        assert (failed["exitCode"], failed["success"]) == (3, False)


@pytest.mark.promise("nodes.host_policy")
async def test_without_a_sandbox_nothing_runs_outside_of_it_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(tmp_path) as (owner, _):
        monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap there
        with pytest.raises(RpcFailed, match="none works on this node"):
            await invoke(owner, "system.run", command=["/bin/sh", "-c", "touch escaped"])


@pytest.mark.promise("nodes.host_policy")
async def test_a_node_that_denies_runs_nothing(tmp_path: Path) -> None:
    async with working(tmp_path, exec={"security": "deny"}) as (owner, _):
        for command in ("system.run", "system.run.prepare"):
            with pytest.raises(RpcFailed, match=r"nodeHost\.exec\.security is deny"):
                await invoke(owner, command, command=["true"])


@pytest.mark.promise("nodes.host_policy")
@pytest.mark.parametrize(
    "command",
    [
        ["cat", "/etc/hostname"],
        ["/bin/sh", "-c", "echo hi; cat /etc/hostname"],
        ["/bin/sh", "-c", "echo $(id)"],
        ["/bin/sh", "-lc", "cat /etc/hostname"],
        ["bash", "-c", "echo\nid"],
        ["./echo", "hi"],
        ["/opt/echo", "hi"],
        ["sh", "-x", "-c", "echo hi"],
    ],
)
async def test_an_allowlist_lets_through_its_programs_and_no_shell(tmp_path: Path, command: Any) -> None:
    rules = {"security": "allowlist", "allow": ["echo"], "host": "host"}
    async with working(tmp_path, exec=rules) as (owner, _):
        allowed = await invoke(owner, "system.run", command=["/bin/sh", "-lc", "echo 'a  b' c"])
        assert allowed["stdout"] == "a  b c\n"
        with pytest.raises(RpcFailed, match=r"nodeHost\.exec\.allow|plain commands only"):
            await invoke(owner, "system.run", command=command)


@pytest.mark.promise("nodes.exec_plan")
async def test_what_runs_must_be_what_was_approved(tmp_path: Path) -> None:
    async with working(tmp_path, **ON_HOST) as (owner, _):
        prepared = await invoke(owner, "system.run.prepare", command=["echo", "hi"])
        plan = prepared["plan"]
        assert plan["argv"][0].startswith("/") and plan["commandText"] == "echo hi"
        done = await invoke(owner, "system.run", command=["echo", "hi"], systemRunPlan=plan)
        assert done["stdout"] == "hi\n"
        with pytest.raises(RpcFailed, match="not what would run now"):
            await invoke(owner, "system.run", command=["echo", "other"], systemRunPlan=plan)


async def test_variables_that_change_which_program_runs_are_left_out(tmp_path: Path) -> None:
    async with working(tmp_path, **ON_HOST) as (owner, _):
        env = {"PATH": "/nowhere", "LD_PRELOAD": "/evil.so", "BASH_ENV": "/evil", "WORD": "kept"}
        done = await invoke(owner, "system.run", command=["env"], env=env)
        assert "WORD=kept" in done["stdout"]
        assert "evil" not in done["stdout"] and "/nowhere" not in done["stdout"]


@pytest.mark.parametrize(
    "params, problem",
    [
        ({}, "command is a list"),
        ({"command": []}, "command is a list"),
        ({"command": [1]}, "command is a list"),
        ({"command": [""]}, "empty, too long"),
        ({"command": ["no-such-program-anywhere"]}, "There is no program"),
        ({"command": ["echo"], "cwd": "../.."}, "without `..`"),
        ({"command": ["echo"], "cwd": "no/such/folder"}, "There is no folder"),
        ({"command": ["echo"], "env": {"A B": "1"}}, "invalid name"),
    ],
)
async def test_bad_parameters_are_refused_in_a_sentence(tmp_path: Path, params: Any, problem: str) -> None:
    async with working(tmp_path, **ON_HOST) as (owner, _):
        with pytest.raises(RpcFailed, match=problem):
            await invoke(owner, "system.run", **params)


async def test_a_command_beyond_its_time_is_stopped(tmp_path: Path) -> None:
    async with working(tmp_path, **ON_HOST) as (owner, _):
        done = await invoke(owner, "system.run", command=["sleep", "600"], timeoutMs=100)
        assert (done["timedOut"], done["success"]) == (True, False)


async def test_a_cancelled_command_is_stopped_on_the_node(tmp_path: Path) -> None:
    async with working(tmp_path, **ON_HOST) as (owner, host):
        pid_file = host.config.home / "node" / "workspace" / "pid"
        command = ["/bin/sh", "-c", "echo $$ > pid.new; mv pid.new pid; exec sleep 600"]
        params = {"nodeId": "Workshop", "command": "system.run", "params": {"command": command}}
        asking = asyncio.ensure_future(owner.call("node.invoke", **params, idempotencyKey="k"))
        await until(pid_file.exists)
        process = Path("/proc") / pid_file.read_text().strip()
        await owner.call("node.invoke.cancel", idempotencyKey="k")
        with pytest.raises(RpcFailed, match="cancelled"):
            await asking
        await until(lambda: not process.exists())


async def test_output_comes_while_the_command_runs(tmp_path: Path) -> None:
    async with working(tmp_path, **ON_HOST) as (owner, host):
        command = ["/bin/sh", "-c", "echo first; while ! test -e go; do sleep 0.02; done; echo second"]
        asking = asyncio.ensure_future(invoke(owner, "system.run", command=command))
        async with asyncio.timeout(LIMIT_S):
            while True:
                event = await owner.events.get()
                if event and event["event"] == "node.invoke.progress":
                    break
        assert event["payload"]["chunk"] == "first\n"
        (host.config.home / "node" / "workspace" / "go").touch()
        assert (await asking)["stdout"] == "first\nsecond\n"


async def test_which_and_notify_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    async with working(tmp_path, **ON_HOST) as (owner, host):
        found = (await invoke(owner, "system.which", bins=["sh", "no-such-program", "../sh"]))["bins"]
        assert list(found) == ["sh"]
        shown = await invoke(owner, "system.notify", title="Done", body="The \x1b[31mtests\x1b[0m are green.")
        assert shown["shown"] == "log"
        assert "Done - The  [31mtests" in host.said[-1] and "\x1b" not in host.said[-1]


@pytest.mark.promise("nodes.host_reconnects")
async def test_it_keeps_its_key_and_comes_back_after_a_restart_of_the_gateway_with_its_own_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_PAUSE_S", 0.5)
    (tmp_path / "gateway").mkdir()
    host, port = Host(tmp_path / "machine", **ON_HOST), 0
    async with served(tmp_path / "gateway") as (url, token), open_client(url, token) as owner:
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        running = host.running(url, token)
        await running.__aenter__()
        await host.connected()
        await approve(owner, host.key)
    again = {"gateway": {"port": port}}
    async with served(tmp_path / "gateway", again) as (url, token), open_client(url, token) as owner:
        await host.connected(times=2)
        assert (await invoke(owner, "system.which", bins=["sh"]))["bins"]
        await running.__aexit__(None, None, None)
        async with host.running(url, None):  # without the token of the gateway
            await host.connected(times=3)
    assert (host.config.home / "node" / KEY_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.promise("nodes.host_reconnects")
async def test_it_waits_until_it_is_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "APPROVAL_PAUSE_S", 0.05)
    (tmp_path / "gateway").mkdir()
    host = Host(tmp_path / "machine")
    careful = {"gateway": {"port": 0, "nodes": {"pairing": {"autoApproveLocal": False}}}}
    async with served(tmp_path / "gateway", careful) as (url, token), open_client(url, token) as owner:
        async with host.running(url, token):
            await until(lambda: any("hobnob node approve" in line for line in host.said))
            assert not any(line.startswith("Connected") for line in host.said)
            await approve(owner, host.key)
            await host.connected()
    assert sum("hobnob node approve" in line for line in host.said) == 1  # said once, however long it waits


async def test_a_wrong_token_ends_it_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    host = Host(tmp_path / "machine")
    async with served(tmp_path / "gateway") as (url, _), host.running(url, "wrong") as task:
        with pytest.raises(Unauthenticated, match="token is wrong"):
            async with asyncio.timeout(LIMIT_S):
                await task


@pytest.mark.parametrize("frame", ["[]", "nonsense", '{"type": "event", "event": "x"}', '{"payload": {}}'])
async def test_a_server_that_is_no_gateway_does_not_end_it(tmp_path: Path, frame: str) -> None:
    async def greet(socket: ServerConnection) -> None:
        await socket.send(frame)
        await socket.wait_closed()

    host = Host(tmp_path / "machine")
    async with serve(greet, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with host.running(f"ws://127.0.0.1:{port}", "token") as task:
            await until(lambda: any("Trying again" in line for line in host.said))
            assert not task.done()


def test_a_broken_key_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_text("nonsense")
    with pytest.raises(BadInput, match="is not a device key"):
        Identity.kept(tmp_path)
