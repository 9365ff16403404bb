"""The sandbox and the kernel: what programs inside cannot change, use or share, and as whom they run."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.helpers import use
from tests.integration.sandboxed import needs_sandbox, run, running, without_sandbox
from tests.waiting import until

from hobnob.gateway import Gateway
from hobnob.sandbox import bubblewrap, syscalls, unprivileged
from hobnob.testing import rehearse, say

pytestmark = [
    needs_sandbox,
    pytest.mark.skipif(
        shutil.which("python3", path=bubblewrap.PATH) is None, reason="the sandbox has no Python"
    ),
]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only a gateway of root changes the user")
needs_filter = pytest.mark.skipif(syscalls.ARCHITECTURE is None, reason="no filter for this architecture")
AS_ROOT = [False, True] if os.geteuid() == 0 else [False]

# Opens files and closes them again, and never writes to one: they belong to the machine.
OPEN_FOR_WRITING = """
import json, os
tried, opened = 0, []
for top in ("/proc", "/sys"):
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name not in ("fd", "map_files")]
        for path in (os.path.join(folder, name) for name in files):
            tried += 1
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK))
                opened.append(path)
            except OSError:
                pass
print(json.dumps([tried, opened]))
"""

CALLS = """
import ctypes, errno, json, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def made(number, *arguments):
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long(number), *(ctypes.c_long(each) for each in arguments))
    return errno.errorcode.get(ctypes.get_errno(), "made")
def opened(*arguments):
    try:
        socket.socket(*arguments).close()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "made"
answers = {name: made(*call) for name, call in json.loads(sys.argv[1]).items()}
answers |= {str(each): opened(*each) for each in json.loads(sys.argv[2])}
print(json.dumps(answers))
"""


async def run_python(gateway: Gateway, code: str, *arguments: str) -> Any:
    workspace = gateway.workspaces.of("main")
    (workspace / "program.py").write_text(code)
    quoted = " ".join(f"'{each}'" for each in arguments)
    answer = await run(gateway, f"python3 program.py {quoted}")
    assert answer["exitCode"] == 0, answer
    return json.loads(answer["output"])


def sandbox(**settings: Any) -> dict[str, Any]:
    return {"agents": {"defaults": {"sandbox": settings}}}


@pytest.mark.promise("sandbox.kernel_is_out_of_reach")
@pytest.mark.parametrize("as_root", AS_ROOT)
async def test_no_file_of_the_kernel_can_be_opened_for_writing(tmp_path: Path, as_root: bool) -> None:
    async with rehearse(tmp_path, sandbox(runAsRoot=as_root)) as gateway:
        tried, opened = await run_python(gateway, OPEN_FOR_WRITING)
        assert tried > 500
        assert opened == []


@pytest.mark.promise("sandbox.kernel_is_out_of_reach")
@pytest.mark.parametrize("as_root", AS_ROOT)
async def test_what_the_kernel_tells_about_itself_is_hidden(tmp_path: Path, as_root: bool) -> None:
    async with rehearse(tmp_path, sandbox(runAsRoot=as_root)) as gateway:
        names = "kallsyms kcore key-users keys kmsg sysrq-trigger timer_list"
        answer = await run(gateway, f"cd /proc; for n in {names}; do : 2>/dev/null < $n && echo $n; done; :")
        assert answer["output"] == ""
        assert (await run(gateway, "ls /sys"))["status"] == "failed"


@needs_filter
@pytest.mark.promise("sandbox.kernel_is_out_of_reach")
@pytest.mark.parametrize("as_root", AS_ROOT)
async def test_system_calls_that_lead_out_are_refused(tmp_path: Path, as_root: bool) -> None:
    assert syscalls.ARCHITECTURE is not None
    join_keyring, trace_me, new_user = [1, 0], [0, 0, 0, 0], [0x10000000]
    calls = {"keyctl": join_keyring, "ptrace": trace_me, "unshare": new_user, "clone3": [0, 0]}
    calls |= {"add_key": [0] * 5, "request_key": [0] * 4, "mount": [0] * 5, "bpf": [0, 0, 0]}
    calls |= {"perf_event_open": [0] * 5, "kexec_load": [0] * 4, "init_module": [0] * 3, "setns": [-1, 0]}
    calls |= {"userfaultfd": [1], "io_uring_setup": [1, 0], "process_vm_readv": [1] + [0] * 5}
    numbers = {name: [syscalls.number(name, syscalls.ARCHITECTURE), *args] for name, args in calls.items()}
    vsock, packet, raw, audit = [40, 1, 0], [17, 3, 0], [2, 3, 1], [16, 3, 9]
    sockets = [vsock, packet, raw, audit, [38, 5, 0], [1, 1, 0], [2, 1, 0], [2, 2, 0], [10, 1, 0], [16, 3, 0]]
    async with rehearse(tmp_path, sandbox(runAsRoot=as_root, network=True)) as gateway:
        answers = await run_python(gateway, CALLS, json.dumps(numbers), json.dumps(sockets))
    missing = {"clone3", "io_uring_setup"}
    assert {name: answers[name] for name in calls} == {
        name: "ENOSYS" if name in missing else "EPERM" for name in calls
    }
    assert [answers[str(each)] for each in sockets] == [
        *("EAFNOSUPPORT", "EAFNOSUPPORT", "EPERM", "EPROTONOSUPPORT", "EAFNOSUPPORT"),
        *("made", "made", "made", "made", "made"),
    ]


@pytest.mark.parametrize(
    ("program", "command", "output"),
    [
        (
            "python3",
            'python3 -c "import multiprocessing as m; print(m.Pool(2).map(abs, [-1, 2]))"',
            "[1, 2]\n",
        ),
        ("python3", "python3 -m venv --without-pip v && v/bin/python -c 'print(1)'", "1\n"),
        (
            "python3",
            "python3 -c \"import socket; print(len(socket.getaddrinfo('127.0.0.1', 80)) > 0)\"",
            "True\n",
        ),
        (
            "git",
            "git init -q r && cd r && git -c user.name=a -c user.email=b commit -q --allow-empty -m c",
            "",
        ),
        ("gcc", "echo 'int main() { return 0; }' > m.c && gcc m.c -o m && ./m && echo ok", "ok\n"),
        ("make", "printf 'all:\\n\\t@echo made\\n' > Makefile && make -s -j2", "made\n"),
        ("node", 'node -e \'require("fs").promises.readdir("/usr").then(() => console.log(1))\'', "1\n"),
        ("bash", "echo out > /dev/stdout; (echo sub) | cat; sleep 0 & wait", "out\nsub\n"),
    ],
)
async def test_ordinary_programs_work_inside(tmp_path: Path, program: str, command: str, output: str) -> None:
    if shutil.which(program, path=bubblewrap.PATH) is None:
        pytest.skip(f"there is no {program} on this machine")
    async with rehearse(tmp_path) as gateway:
        answer = await run(gateway, command, yieldMs=60_000)
        assert (answer["exitCode"], answer["output"]) == (0, output)


@needs_root
@pytest.mark.promise("sandbox.not_as_root")
@pytest.mark.parametrize(("as_root", "uid"), [(False, unprivileged.USER), (True, 0)])
async def test_a_program_of_a_gateway_of_root_runs_as_an_unprivileged_user_of_the_machine(
    tmp_path: Path, as_root: bool, uid: int
) -> None:
    word = f"8{os.getpid()}.25"
    async with rehearse(tmp_path, sandbox(runAsRoot=as_root)) as gateway:
        started = await run(gateway, f"exec sleep {word}", background=True)
        await until(lambda: running(word))
        for pid in running(word):  # bwrap itself too
            status = Path(f"/proc/{pid}/status").read_text()
            assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n" in status
            assert "Groups:\t \n" in status or as_root
        await use(gateway, "process", "main", action="kill", processId=started["processId"])


@pytest.mark.promise("sandbox.not_as_root")
async def test_the_files_of_the_workspace_belong_to_the_gateway_and_can_be_used_inside(
    tmp_path: Path,
) -> None:
    async with rehearse(tmp_path, sandbox(mode="non-main")) as gateway:
        workspace = gateway.workspaces.of("main")
        (workspace / "old").write_text("old\n")
        (workspace / "old").chmod(0o600)
        made = "cat old; echo more >> old; mkdir -m 700 d; (umask 077; echo new > d/new); mv old d"
        assert (await run(gateway, made))["output"] == "old\n"
        for path in (workspace / "d", workspace / "d" / "new", workspace / "d" / "old"):
            assert (path.stat().st_uid, path.stat().st_gid) == (os.geteuid(), os.getegid())
        for session in ("main", "hook:1"):  # the file tools of the gateway, then those in the sandbox
            edited = await use(gateway, "edit", session, path="d/new", oldText="new", newText=f"{session}new")
            assert "error" not in edited, edited
            assert "error" not in await use(gateway, "write", session, path=f"d/{session}", content="x\n")
            assert (await run(gateway, f"cat d/{session}; echo y >> d/{session}"))["output"] == "x\n"
        assert (workspace / "d" / "new").read_text() == "mainhook:1new\n"


@pytest.fixture
def unmappable(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system whose files cannot get another owner in a mount."""
    folder = tmp_path / "unmappable"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "ramfs", "none", folder], check=False).returncode:
        pytest.skip("this machine mounts nothing")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@needs_root
@pytest.mark.promise("sandbox.not_as_root")
async def test_where_no_other_user_can_use_the_workspace_a_command_is_refused_until_a_setting_allows_root(
    tmp_path: Path, unmappable: Path
) -> None:
    def settings(as_root: bool) -> dict[str, Any]:
        return {
            "agents": {
                "defaults": {"sandbox": {"runAsRoot": as_root, "mode": "non-main"}},
                "list": [{"id": "main", "workspace": str(unmappable)}],
            }
        }

    async with rehearse(tmp_path, settings(False)) as gateway:
        for refused in (
            await run(gateway, "touch ran"),
            await use(gateway, "write", "hook:1", path="ran", content="x"),
        ):
            assert refused["code"] == "sandbox.root"
            assert "cannot be mapped" in refused["error"]
            assert "agents.defaults.sandbox.runAsRoot = true" in refused["fix"]
        assert os.listdir(unmappable) == []
    async with rehearse(tmp_path, settings(True)) as gateway:
        assert (await run(gateway, "touch ran"))["status"] == "ok"
    assert os.listdir(unmappable) == ["ran"]


@needs_root
async def test_a_start_that_fails_leaves_the_rights_of_the_gateway_as_they_were(tmp_path: Path) -> None:
    namespace, groups = os.readlink("/proc/self/ns/mnt"), os.getgroups()
    async with rehearse(tmp_path) as gateway:
        assert (await run(gateway, "true"))["status"] == "ok"
        with pytest.MonkeyPatch.context() as patch:
            (without_sandbox(patch, "") / "bwrap").write_text("#!/nowhere\n")
            assert "error" in str(await say(gateway, 'call exec {"command": "true"}'))
        assert (await run(gateway, "true"))["status"] == "ok"
    for task in Path("/proc/self/task").iterdir():
        assert "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n" in (task / "status").read_text()
        assert os.readlink(task / "ns/mnt") == namespace
    assert os.getgroups() == groups
    with pytest.raises(OSError, match=os.strerror(errno.ENOENT)):
        os.stat(f"{unprivileged.STAGE}/0")
