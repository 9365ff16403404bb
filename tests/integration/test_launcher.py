"""One process: started, watched, and ended with everything it started."""

import asyncio
import errno
import os
import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.integration.harnesses import is_alive
from tests.waiting import until

import hobnob
from hobnob.processes.launcher import Grace, launch
from hobnob.processes.records import ProcessRecord
from hobnob.sandbox import ProcessSpec, syscalls


def shell(command: str) -> ProcessSpec:
    return ProcessSpec(["/bin/sh", "-c", command], dict(os.environ))


async def test_a_process_that_reads_its_stdin_exits_when_that_is_closed(tmp_path: Path) -> None:
    process = launch(shell("cat; exit 3"), stdin=PIPE, stdout=PIPE, record=ProcessRecord(tmp_path))
    stdin, stdout = await process.open_stdin(), await process.open_stdout(limit=1000)
    stdin.write(b"hello\n")
    assert await stdout.readline() == b"hello\n"
    assert process.reap() is None
    await process.end(Grace(eof_s=10))
    assert process.reap() == 3
    assert list(tmp_path.iterdir()) == []


async def test_what_stays_in_the_group_is_killed_even_without_the_mark(tmp_path: Path) -> None:
    process = launch(shell("env -i sleep 600 & echo $!"), stdout=PIPE, record=ProcessRecord(tmp_path))
    child = int(await (await process.open_stdout(limit=1000)).readline())
    await process.exited.wait()
    assert is_alive(child)
    await process.end(Grace())
    await until(lambda: not is_alive(child))


async def test_an_end_that_is_cancelled_kills_and_reaps_the_process_all_the_same(tmp_path: Path) -> None:
    process = launch(shell("trap '' TERM; echo; sleep 600"), stdout=PIPE, record=ProcessRecord(tmp_path))
    await (await process.open_stdout(limit=1000)).readline()
    ending = asyncio.create_task(process.end(Grace(term_s=60)))
    await asyncio.sleep(0.05)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await until(lambda: process.reap() == -signal.SIGKILL)
    await until(lambda: not list(tmp_path.iterdir()))
    assert not os.path.exists(f"/proc/{process.pid}")


async def test_a_process_that_cannot_be_watched_is_not_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def no_descriptor(pid: int) -> int:
        pids.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        launch(shell("sleep 600"), record=ProcessRecord(tmp_path))
    assert not os.path.exists(f"/proc/{pids[0]}")
    assert list(tmp_path.iterdir()) == []


SESSION_KEYRING, JOIN_KEYRING, SEARCH = -3, 1, 10
KEYS = """
import sys
sys.path[:0] = sys.argv[1:2]
from hobnob.sandbox.syscalls import call
def found(name):
    try:
        return call("keyctl", 10, -3, b"user", name, 0) > 0
    except OSError:
        return False
print(found(b"hobnob of the gateway"), found(b"hobnob of a program"))
call("add_key", b"user", b"hobnob of a program", b"secret", 6, -3)
print(found(b"hobnob of a program"))
"""


@pytest.mark.skipif(syscalls.ARCHITECTURE is None, reason="system calls are not known by number here")
@pytest.mark.promise("sandbox.fresh_keyring")
async def test_each_program_gets_an_empty_keyring_of_its_own(tmp_path: Path) -> None:
    syscalls.call("keyctl", JOIN_KEYRING, None)  # so that the key ends with the tests
    syscalls.call("add_key", b"user", b"hobnob of the gateway", b"secret", 6, SESSION_KEYRING)
    source = str(Path(hobnob.__file__).parent.parent)
    for _ in range(2):
        spec = ProcessSpec([sys.executable, "-c", KEYS, source], dict(os.environ))
        process = launch(spec, stdout=PIPE, record=ProcessRecord(tmp_path))
        said = await (await process.open_stdout(limit=1000)).read()
        await process.end(Grace())
        assert said.decode().splitlines() == ["False False", "True"]
    assert syscalls.call("keyctl", SEARCH, SESSION_KEYRING, b"user", b"hobnob of the gateway", 0) > 0
