"""The sandbox, by real commands in it: what they cannot reach, and what they cannot do."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import (
    ANN,
    BOB,
    call_method,
    spawn_and_wait,
    spawning_agents,
    three_agents,
    use,
)
from tests.integration.sandboxed import needs_sandbox, open_folder, run, running, without_sandbox
from tests.integration.web import HOOK_TOKEN, HOOKS, web_of
from tests.waiting import LIMIT_S, until

import hobnob
from hobnob.policy import Confinement
from hobnob.requests import HistoryQuery, SessionQuery
from hobnob.sandbox import bubblewrap, python
from hobnob.testing import OWNER, exchange_ended, rehearse, say
from hobnob.tools import Context

pytestmark = needs_sandbox
ALL = {"agents": {"defaults": {"sandbox": {"mode": "all"}}}}


def with_sandbox(**rules: Any) -> dict[str, Any]:
    return {"agents": {"defaults": {"sandbox": {"mode": "all"} | rules}}}


@pytest.mark.promise("sandbox.host_is_out_of_reach")
async def test_the_files_of_the_machine_are_not_there(tmp_path: Path) -> None:
    home = Path.home()
    (tmp_path / "agents" / "bob" / "workspace").mkdir(parents=True)
    (tmp_path / "agents" / "bob" / "workspace" / "diary").write_text("bob's secret")
    async with rehearse(
        tmp_path, three_agents(agents={**three_agents()["agents"], **ALL["agents"]})
    ) as gateway:
        for path in (
            home,
            tmp_path,
            tmp_path / "hobnob.db",
            tmp_path / "agents",
            "/etc/shadow",
            "/root",
            "/home",
        ):
            answer = await run(gateway, f"ls -a {path}", ANN)
            assert answer["exitCode"] != 0, answer["output"]
            assert "No such file" in answer["output"]
        found = await run(gateway, "find / -xdev -name diary -o -name hobnob.db 2>/dev/null; true", ANN)
        assert found["output"] == ""


@pytest.mark.promise("sandbox.host_is_out_of_reach")
async def test_a_server_on_the_loopback_of_the_machine_cannot_be_reached(tmp_path: Path) -> None:
    knocked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knocked.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        knock = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo in"
        async with rehearse(tmp_path, ALL) as gateway:
            answer = await run(gateway, knock)
            assert (answer["status"], knocked.is_set()) == ("failed", False)
            links = await run(gateway, "tail -n +3 /proc/net/dev | cut -d: -f1")
            assert links["output"].split() == ["lo"]
        async with rehearse(tmp_path, with_sandbox(network=True)) as gateway:
            assert (await run(gateway, knock))["status"] == "ok"  # so the test can fail


@pytest.mark.promise("sandbox.no_rights")
async def test_there_is_no_capability_and_no_way_to_get_one(tmp_path: Path) -> None:
    async with rehearse(tmp_path, ALL) as gateway:
        status = await run(gateway, "grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
        rights = dict(line.split(":\t") for line in status["output"].splitlines())
        assert {rights[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert rights["NoNewPrivs"] == "1"
        for command in ("unshare -U true", "unshare -r mount -t tmpfs x /tmp", "mount -o remount,rw /usr"):
            assert (await run(gateway, command))["status"] == "failed", command
        assert (await run(gateway, "id -u"))["output"] == "1000\n"


@pytest.mark.promise("sandbox.nothing_leaks_in")
async def test_the_environment_of_the_gateway_cannot_be_read_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-very-secret")
    async with rehearse(tmp_path, ALL) as gateway:
        answer = await run(
            gateway, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'; env", env={"MINE": "1"}
        )
        assert "very-secret" not in answer["output"]
        assert str(tmp_path) not in answer["output"]
        assert "MINE=1" in answer["output"]


@pytest.mark.promise("sandbox.limits_hold")
async def test_what_is_set_for_a_command_does_not_get_around_the_limits(tmp_path: Path) -> None:
    """A library that is loaded into whatever sets the limits would run before they hold."""
    async with rehearse(tmp_path, with_sandbox(maxFileMb=1)) as gateway:
        answer = await run(
            gateway, "ulimit -f", env={"LD_PRELOAD": "/workspace/missing.so", "A": "it's $HOME"}
        )
        assert answer["output"].count("missing.so") == 1  # by bash, and by nothing before it
        assert answer["output"].splitlines()[-1] == "1024"


async def test_only_the_workspace_and_short_lived_places_can_be_written_to(tmp_path: Path) -> None:
    places = "/ /usr /etc /bin /dev /proc /workspace /tmp /dev/shm"
    async with rehearse(tmp_path, ALL) as gateway:
        answer = await run(gateway, f"for d in {places}; do touch $d/x 2>/dev/null && echo $d; done")
        assert answer["output"].split() == places.split()[-3:]
    assert (tmp_path / "agents/main/workspace/x").stat().st_uid == os.geteuid()


async def test_processes_of_the_machine_are_out_of_sight(tmp_path: Path) -> None:
    async with rehearse(tmp_path, ALL) as gateway:
        answer = await run(gateway, "ls -d /proc/[0-9]* | wc -l; kill -9 -1; kill -9 1; echo alive")
        assert int(answer["output"].split()[0]) < 10
        again = await run(gateway, "echo still here")
        assert again["output"] == "still here\n"


@pytest.mark.promise("sandbox.limits_hold")
async def test_memory_and_the_size_of_files_are_limited(tmp_path: Path) -> None:
    async with rehearse(tmp_path, with_sandbox(memoryMb=64, maxFileMb=1)) as gateway:
        hungry = await run(gateway, "head -c 200000000 /dev/zero | tail -c 190000000 | wc -c")
        assert int(hungry["output"].split()[-1]) < 190_000_000
        large = await run(gateway, "head -c 3000000 /dev/zero > big; stat -c %s big")
        assert int(large["output"].split()[-1]) <= 1024 * 1024


@pytest.mark.promise("sandbox.limits_hold")
async def test_memory_is_limited_for_all_processes_of_a_command_together(tmp_path: Path) -> None:
    async with rehearse(tmp_path, with_sandbox(memoryMb=100)) as gateway:
        alone = await run(gateway, "head -c 40000000 /dev/zero | tail -c 30000000 | wc -c")
        assert alone["output"].strip() == "30000000"
        hold = "head -c 45000000 /dev/zero | tail -c 40000000 | sleep 600"  # nobody reads what tail has
        together = await run(gateway, f"{hold} & {hold} & {hold} & wait", yieldMs=60_000)
        assert "more than 100 MB of memory" in together["error"]


@pytest.mark.promise("sandbox.limits_hold")
async def test_memory_that_processes_share_counts_once(tmp_path: Path) -> None:
    async with rehearse(tmp_path, with_sandbox(memoryMb=100)) as gateway:
        # Each of the three has the 70 MB that were there before they were made.
        command = (
            'x=$(head -c 40000000 /dev/zero | tr "\\0" x); for i in 1 2 3; do (sleep 1.5; :) & done; wait'
        )
        answer = await run(gateway, f"{command}; echo ${{#x}}", yieldMs=60_000)
        assert answer["output"] == "40000000\n", answer


@pytest.mark.promise("sandbox.limits_hold")
@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="it takes a program that shares memory")
async def test_shared_memory_counts_too(tmp_path: Path) -> None:
    code = "import mmap, time; m = mmap.mmap(-1, 300_000_000); m.write(bytes(300_000_000)); time.sleep(600)"
    async with rehearse(tmp_path, with_sandbox(memoryMb=400)) as gateway:
        one = f"/usr/bin/python3 -c '{code}'"
        answer = await run(gateway, f"{one} & {one} & wait", yieldMs=60_000)
        assert "more than 400 MB of memory" in answer["error"]


@pytest.mark.promise("sandbox.limits_hold")
@pytest.mark.parametrize("as_root", [False, True])
async def test_a_fork_bomb_comes_to_its_end(tmp_path: Path, as_root: bool) -> None:
    async with rehearse(tmp_path, with_sandbox(maxProcesses=40, runAsRoot=as_root)) as gateway:
        word = f"9{os.getpid()}.25"
        bomb = f"for i in $(seq 300); do sleep {word} & done; wait"
        answer = await run(gateway, bomb, timeout=30, yieldMs=60_000)
        assert answer["status"] in ("failed", "timeout")
        if os.geteuid() == 0 and as_root:  # the kernel does not limit root, so we count
            assert "more than 40 processes" in answer["error"]
        await until(lambda: not running(word))
        assert (await run(gateway, "echo well"))["output"] == "well\n"


@pytest.mark.promise("sandbox.limits_hold")
async def test_a_flood_of_output_is_cut_and_starves_nobody(tmp_path: Path) -> None:
    async with rehearse(tmp_path, ALL) as gateway:
        flood = asyncio.create_task(run(gateway, "echo begin; yes flood", yieldMs=60_000))
        await until(lambda: any(p.output.total > 1_000_000 for p in gateway.processes.of("agent:main:main")))
        [program] = gateway.processes.of("agent:main:main")
        for n in range(5):
            assert (await say(gateway, "say: here", f"hook:{n}")).reply == "here"
        assert program.running
        program.stop()
        answer = await flood
        assert answer["status"] == "killed"
        assert answer["outputBytes"] > 1_000_000
        assert len(answer["output"]) < 70_000
        assert answer["output"].startswith("begin\n")
        assert "bytes left out" in answer["output"]


@pytest.mark.promise("exec.runs_in_sandbox")
async def test_without_any_setting_a_command_runs_in_the_sandbox(tmp_path: Path) -> None:
    async with rehearse(tmp_path) as gateway:
        answer = await run(gateway, "pwd; id -u")
        assert (answer["sandbox"], answer["output"]) == (True, "/workspace\n1000\n")


async def test_a_session_that_must_be_sandboxed_is_so_also_when_commands_run_on_the_host(
    tmp_path: Path,
) -> None:
    async with rehearse(tmp_path, ALL | {"tools": {"exec": {"host": "gateway"}}}) as gateway:
        assert (await run(gateway, "pwd"))["output"] == "/workspace\n"


@pytest.mark.parametrize(("access", "tools"), [("ro", {"read", "ls", "grep"}), ("none", set())])
async def test_the_sandbox_gets_no_more_of_the_workspace_than_it_was_given(
    tmp_path: Path, access: str, tools: set[str]
) -> None:
    place = tmp_path / "agents" / "main" / "workspace"
    place.mkdir(parents=True)
    (place / "kept").write_text("kept")
    async with rehearse(tmp_path, with_sandbox(workspaceAccess=access)) as gateway:
        session = await gateway.sessions.resolve_or_new(OWNER, "main")
        held = {
            name
            for name, verdict in (await gateway.sessions.capabilities.tools(session)).items()
            if verdict.allowed
        }
        assert held & {"read", "write", "edit", "ls", "grep"} == tools
        answer = await run(gateway, "touch new; ls")
        assert "Read-only file system" in answer["output"]
        assert ("kept" in answer["output"]) == (access == "ro")
    assert os.listdir(place) == ["kept"]


@pytest.mark.promise("sandbox.at_least_as_confined")
async def test_a_child_may_write_no_more_than_its_sandboxed_requester(tmp_path: Path) -> None:
    settings = spawning_agents({"*": ["done"]})
    ann, bob, _ = settings["agents"]["list"]
    ann["sandbox"] = {"mode": "all", "workspaceAccess": "ro"}
    bob["sandbox"] = {"mode": "all"}
    async with rehearse(tmp_path, settings) as gateway:
        answer = await use(gateway, "sessions_spawn", task="x", agentId="bob")
        await exchange_ended(gateway, answer["exchangeId"])
        child = await gateway.sessions.resolve(OWNER, answer["childSessionKey"])
        assert (await gateway.sessions.capabilities.confinement(child)).access == "ro"
        assert "write" not in answer["tools"]
        grown = await gateway.sessions.resolve_or_new(OWNER, BOB)
        assert (await gateway.sessions.capabilities.confinement(grown)).access == "rw"


@pytest.mark.promise("sandbox.same_on_every_path")
async def test_a_sandboxed_requester_gets_no_unsandboxed_child_by_tool_or_rpc(tmp_path: Path) -> None:
    settings = spawning_agents()
    ann, bob, _ = settings["agents"]["list"]
    ann["sandbox"], bob["sandbox"] = {"mode": "all"}, {"mode": "off"}
    async with rehearse(tmp_path, settings) as gateway:
        by_tool = await use(gateway, "sessions_spawn", task="x", agentId="bob")
        assert (by_tool["status"], by_tool["code"]) == ("forbidden", "spawn.sandbox")
        by_rpc = await call_method(
            gateway, "sessions.spawn", key=ANN, task="x", agentId="bob", idempotencyKey="k"
        )
        assert by_rpc["error"]["details"]["code"] == "spawn.sandbox"


@pytest.mark.promise("sandbox.same_on_every_path")
async def test_a_sandboxed_requester_gets_no_unsandboxed_child_over_http_or_by_a_hook(tmp_path: Path) -> None:
    settings = spawning_agents()
    ann, bob, _ = settings["agents"]["list"]
    ann["sandbox"], bob["sandbox"] = {"mode": "all"}, {"mode": "off"}
    settings |= {"hooks": HOOKS}
    spawn = {"task": "x", "agentId": "bob"}
    async with web_of(tmp_path, settings, gateway={"tools": {"allow": ["sessions_spawn"]}}) as web:
        await say(web.gateway, "hello", ANN)
        body = {"tool": "sessions_spawn", "args": spawn, "sessionKey": ANN}
        by_tool = await web.ask("POST", "/tools/invoke", body)
        assert "runs outside a sandbox" in str(by_tool.json)
        params = {"key": ANN, "idempotencyKey": "k", **spawn}
        by_method = await web.ask("POST", "/rpc/sessions.spawn", {"params": params})
        assert by_method.json["error"]["code"] == "spawn.sandbox"
        message = f"call sessions_spawn {json.dumps(spawn)}"
        by_hook = await web.ask(
            "POST", "/hooks/agent", {"message": message, "agentId": "ann"}, token=HOOK_TOKEN
        )
        await web.gateway.sessions.wait(by_hook.json["runId"], LIMIT_S)
        said = await web.gateway.sessions.queries.history(
            OWNER, by_hook.json["sessionKey"], HistoryQuery(include_tools=True)
        )
        assert "spawn.sandbox" in str(said["messages"])
        found = await web.gateway.sessions.queries.list(OWNER, SessionQuery(agent_id="bob"))
        assert found["sessions"] == []


async def test_what_a_child_runs_stays_in_the_sandbox_too(tmp_path: Path) -> None:
    step = {"toolCalls": [{"name": "exec", "arguments": {"command": "pwd; ls /root /home"}}]}
    settings = spawning_agents({"*": [step, "done", "Done."]})
    settings["agents"]["list"][0]["sandbox"] = {"mode": "all"}
    settings["tools"]["exec"] = {"host": "gateway"}
    async with rehearse(tmp_path, settings) as gateway:
        ended = await spawn_and_wait(gateway, task="look around")
        history = await gateway.sessions.queries.history(
            OWNER, ended["target"], HistoryQuery(include_tools=True)
        )
        said = str(history["messages"])
        assert "/workspace" in said
        assert said.count("No such file") == 2


@pytest.mark.promise("sandbox.never_outside", "spawn.require_needs_a_backend")
@pytest.mark.parametrize("script", [None, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1"])
async def test_where_no_sandbox_works_what_needs_one_is_refused_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    without_sandbox(monkeypatch, script)
    reason = "not installed" if script is None else "No permissions to create new namespace"
    settings = spawning_agents(
        scripts={"agent:eve:main": [{"toolCalls": [{"name": "exec", "arguments": {"command": "touch ran"}}]}]}
    )
    _, bob, eve = settings["agents"]["list"]
    bob["sandbox"], eve["sandbox"] = {"mode": "non-main"}, {"mode": "all"}
    settings["tools"]["exec"] = {"host": "gateway"}
    async with rehearse(tmp_path, settings) as gateway:
        turn = await say(gateway, "touch it", "agent:eve:main")
        assert turn.outcome == "failed"
        assert reason in str(turn.error)
        required = await use(gateway, "sessions_spawn", task="x", agentId="bob", sandbox="require")
        assert (required["status"], required["code"]) == ("forbidden", "spawn.sandbox")
        assert reason in required["error"]
        inherited = await use(gateway, "sessions_spawn", task="x", agentId="bob")
        assert inherited["code"] == "spawn.sandbox"
    assert not (tmp_path / "agents" / "eve" / "workspace" / "ran").exists()


async def test_where_no_sandbox_works_exec_is_not_there_and_the_rule_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_sandbox(monkeypatch)
    async with rehearse(tmp_path) as gateway:
        session = await gateway.sessions.resolve_or_new(OWNER, "main")
        verdict = (await gateway.sessions.capabilities.tools(session))["exec"]
        assert (verdict.allowed, verdict.code) == (False, "sandbox.unavailable")
        assert "not installed" in verdict.why
        assert [(fix.path, fix.value) for fix in verdict.fix] == [("tools.exec.host", "gateway")]
        assert "does not have that tool" in str((await say(gateway, 'call exec {"command": "id"}')).reply)


@pytest.mark.promise("attachments.written")
async def test_files_for_a_child_that_could_not_read_them_are_refused(tmp_path: Path) -> None:
    settings = spawning_agents()
    settings["agents"]["list"][1]["sandbox"] = {"mode": "all", "workspaceAccess": "none"}
    async with rehearse(tmp_path, settings) as gateway:
        files = [{"name": "a.txt", "content": "x"}]
        answer = await use(gateway, "sessions_spawn", task="x", agentId="bob", attachments=files)
        assert (answer["status"], answer["code"]) == ("forbidden", "sandbox.workspace_access")


async def test_a_sandboxed_child_reads_the_files_it_was_handed(tmp_path: Path) -> None:
    look = {"toolCalls": [{"name": "exec", "arguments": {"command": "cat .hobnob/attachments/*/a.txt"}}]}
    settings = spawning_agents({"*": [look, "done", "Done."]})
    settings["agents"]["list"][1]["sandbox"] = {"mode": "all"}
    async with rehearse(tmp_path, settings) as gateway:
        files = [{"name": "a.txt", "content": "handed over"}]
        ended = await spawn_and_wait(gateway, task="x", agentId="bob", attachments=files)
        history = await gateway.sessions.queries.history(
            OWNER, ended["target"], HistoryQuery(include_tools=True)
        )
        assert "handed over" in str(history["messages"])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each time the sandbox is started, by a bwrap in front of the real one."""
    programs, real = open_folder(), shutil.which("bwrap")
    told = programs / "started"
    (programs / "bwrap").write_text(f'#!/bin/sh\necho >> "{told}"\nexec {real} "$@"\n')
    (programs / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return told


def starts(told: Path) -> int:
    return len(told.read_text().splitlines()) if told.exists() else 0


@pytest.mark.promise("sandbox.files_are_worked_on_inside")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read", {"path": "a"}),
        ("write", {"path": "a", "content": "x"}),
        ("edit", {"path": "a", "oldText": "one", "newText": "two"}),
        ("ls", {}),
        ("grep", {"pattern": "one"}),
    ],
)
async def test_a_file_tool_of_a_sandboxed_session_works_inside_and_only_there(
    tmp_path: Path, started: Path, tool: str, arguments: dict[str, Any]
) -> None:
    here = tmp_path / "agents" / "main" / "workspace"
    here.mkdir(parents=True)
    (here / "a").write_text("one\n")
    async with rehearse(tmp_path, {"agents": {"defaults": {"sandbox": {"mode": "non-main"}}}}) as gateway:
        await gateway.sandbox.ready()
        before = starts(started)
        assert "error" not in await use(gateway, tool, "main", **arguments)
        assert starts(started) == before  # the main session is not in a sandbox
        (here / "a").write_text("one\n")
        assert "error" not in await use(gateway, tool, "hook:1", **arguments)
        assert starts(started) == before + 1


@pytest.mark.promise("sandbox.files_are_worked_on_inside")
async def test_files_for_a_sandboxed_child_are_written_and_removed_inside(
    tmp_path: Path, started: Path
) -> None:
    settings = spawning_agents()
    settings["agents"]["list"][1]["sandbox"] = {"mode": "all", "workspaceAccess": "ro"}
    async with rehearse(tmp_path, settings) as gateway:
        await gateway.sandbox.ready()
        before = starts(started)
        files = [{"name": "a.txt", "content": "for bob"}]
        task = {"task": "say: thanks", "agentId": "bob", "attachments": files, "cleanup": "delete"}
        answer = await use(gateway, "sessions_spawn", **task)
        assert answer["status"] == "accepted", answer
        assert starts(started) == before + 1
        await exchange_ended(gateway, answer["exchangeId"])
        batches = tmp_path / "agents" / "bob" / "workspace" / ".hobnob" / "attachments"
        await until(lambda: starts(started) == before + 2 and not list(batches.iterdir()))


@pytest.mark.promise("sandbox.files_are_worked_on_inside")
@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 1\n", "#!/nowhere\n"])
async def test_where_the_sandbox_is_gone_files_of_a_sandboxed_session_stay_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    async with rehearse(tmp_path, ALL) as gateway:
        turn = await say(gateway, "hello")
        context = Context(await gateway.sessions.resolve(OWNER, turn.session_key), turn)
        box = await gateway.toolbox(context.session)  # the tools are there, and then bubblewrap is not
        programs = without_sandbox(monkeypatch, "")
        (programs / "bwrap").write_text(program)
        answer = await box.call(context, "write", {"path": "a", "content": "x"})
        assert answer.is_error
        assert "The job failed" in answer.text  # and not that there is no such file
        gateway.sandbox.problem = "it was removed"
        refused = await box.call(context, "write", {"path": "a", "content": "x"})
        assert '"sandbox.unavailable"' in refused.text
    assert not (tmp_path / "agents" / "main" / "workspace" / "a").exists()


@pytest.mark.promise("files.bounded")
async def test_many_files_read_at_a_time_take_few_descriptors(tmp_path: Path) -> None:
    here = tmp_path / "agents" / "main" / "workspace"
    here.mkdir(parents=True)
    (here / "a").write_text("one\n")
    most = 0
    async with rehearse(tmp_path, ALL) as gateway:
        job = {"action": "read", "path": ["a"], "offset": 1, "limit": 1}
        place = Confinement(True, "rw")
        reading = [asyncio.create_task(gateway.workspaces.run_job("main", place, job)) for _ in range(60)]
        while not all(each.done() for each in reading):
            most = max(most, len(os.listdir("/proc/self/fd")))
            await asyncio.sleep(0.01)
        assert {(await each)["content"] for each in reading} == {"one\n"}
    assert most < 150


@pytest.mark.promise("files.read_write_edit")
async def test_a_write_inside_that_is_not_waited_for_is_done_and_leaves_nothing_else(tmp_path: Path) -> None:
    async with rehearse(tmp_path, ALL) as gateway:
        for n in range(4):
            job = {"action": "write", "path": [f"{n}"], "content": "x" * 5_000_000}
            writing = asyncio.create_task(gateway.workspaces.run_job("main", Confinement(True, "rw"), job))
            await until(at_work)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
        here = gateway.workspaces.of("main")
        assert {path.name: path.stat().st_size for path in here.iterdir()} == {
            f"{n}": 5_000_000 for n in range(4)
        }


def at_work() -> list[int]:
    """The processes of this test that work on files inside."""

    def is_own(pid: int) -> bool:
        try:
            return f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{pid}/status").read_text()
        except OSError:  # it has just ended
            return False

    return [pid for pid in running("/run/hobnob") if is_own(pid)]


@pytest.mark.promise("exec.nothing_survives")
async def test_an_abort_ends_the_work_of_a_file_tool_inside(tmp_path: Path) -> None:
    here = tmp_path / "agents" / "main" / "workspace"
    here.mkdir(parents=True)
    (here / "a").write_text("a" * 40 + "\n")
    async with rehearse(tmp_path, ALL) as gateway:
        searching = asyncio.create_task(use(gateway, "grep", "main", pattern="(a+)+b"))
        await until(at_work)
        await gateway.sessions.abort(OWNER, "main")
        await until(lambda: not at_work())
        searching.cancel()


@pytest.mark.promise("sandbox.files_are_worked_on_inside")
def test_the_files_of_a_python_that_was_copied_into_its_venv_are_found_inside(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--copies", "--without-pip", tmp_path / "venv"], check=True)
    probe = "import asyncio, hobnob.sandbox.bubblewrap as b; print(asyncio.run(b.Bubblewrap().probe()))"
    said = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", probe],
        env=os.environ | {"PYTHONPATH": str(Path(hobnob.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "None\n"


@pytest.mark.parametrize("prefix", ["/", "/workspace/python", str(Path.home()), str(Path.home().parent)])
async def test_a_python_that_would_show_more_than_itself_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setattr(python, "_PREFIX", Path(prefix))
    monkeypatch.setattr(bubblewrap, "_working", set())
    assert "must not be mounted in a sandbox" in str(await bubblewrap.Bubblewrap().probe())
