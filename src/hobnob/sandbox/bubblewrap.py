"""bubblewrap: new namespaces, no capability, no way to make more of them, and only what is named here to see.

Its options go through a descriptor: the first process inside shows its command line and the environment it
was started with to everything that runs there, so neither may hold anything.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack

from hobnob.sandbox import WORKSPACE, ProcessSpec, SandboxSpec, python

NAME = "bubblewrap"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROBE_S = 10.0

_UID = 1000
_TMP_BYTES = 512 * 1024 * 1024
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64")
# What common programs need of /etc; nothing of it is secret.
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types")
_ETC_SSL = ("ssl/certs", "ssl/openssl.cnf")  # not ssl/private
_ETC_NETWORK = ("ca-certificates", "hosts", "nsswitch.conf", "resolv.conf", "services")
_PASSWD = f"agent:x:{_UID}:{_UID}:agent:{WORKSPACE}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_ENV = "/etc/hobnob.env"
_GROUP = f"agent:x:{_UID}:\nnogroup:x:65534:\n"

_proven: set[str] = set()  # programs that were seen to work on this machine


class Bubblewrap:
    name = NAME

    async def probe(self) -> str | None:
        program = shutil.which("bwrap")
        if program is None:
            return "bubblewrap (bwrap) is not installed."
        if program in _proven:
            return None
        if why := python.problem():
            return why
        with ExitStack() as fds:
            launch = self.launch(SandboxSpec(shown=python.shown()), [*python.PROGRAM, "-c", "pass"], fds)
            process = await asyncio.create_subprocess_exec(
                *launch.argv,
                env=dict(launch.env),
                pass_fds=launch.fds,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(PROBE_S):
                    _, said = await process.communicate()
            except TimeoutError:
                process.kill()
                await process.wait()
                return f"{program} did not end within {PROBE_S:g} seconds."
        if process.returncode:
            why = " ".join(said.decode("utf-8", "replace").split())[:300]
            return f"{program} fails here: {why or f'exit code {process.returncode}'}."
        _proven.add(program)
        return None

    def launch(self, box: SandboxSpec, argv: Sequence[str], fds: ExitStack) -> ProcessSpec:
        passwd, group = _data(_PASSWD, fds), _data(_GROUP, fds)
        own = _data("".join(f"export {name}={shlex.quote(value)}\n" for name, value in box.env.items()), fds)
        files = ((passwd, "/etc/passwd"), (group, "/etc/group"), (own, _ENV))
        options = [*_walls(), *_system(box.network), *_etc(files), *_places(box), *_inside(box)]
        args = _data("\0".join(options) + "\0", fds)
        program = shutil.which("bwrap") or "bwrap"
        # The kernel does not count the processes of root against this limit: for it they are watched.
        return ProcessSpec(
            argv=[program, "--args", str(args), "--", *_limited(box), *argv],
            env={"PATH": PATH},
            fds=(args, passwd, group, own),
            processes=box.limits.processes if os.geteuid() == 0 else None,
            memory_mb=box.limits.memory_mb,  # the kernel limits each process, not what they have together
        )


def _walls() -> list[str]:
    walls = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    return [*walls, "--uid", str(_UID), "--gid", str(_UID), "--cap-drop", "ALL", "--hostname", "sandbox"]


def _system(network: bool) -> Iterator[str]:
    """The programs of this machine, to be read only."""
    if network:
        yield "--share-net"
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _SYSTEM:
        path = f"/{name}"
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)
    if os.path.isdir("/nix/store"):
        yield from ("--ro-bind", "/nix/store", "/nix/store")
    for name in (*_ETC, *_ETC_SSL, *(_ETC_NETWORK if network else ())):
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")


def _etc(files: Iterable[tuple[int, str]]) -> Iterator[str]:
    for fd, path in files:
        yield from ("--ro-bind-data", str(fd), path)


def _places(box: SandboxSpec) -> Iterator[str]:
    """What can be written to: the workspace, where that is allowed, and places that end with the command."""
    yield from ("--proc", "/proc", "--dev", "/dev")
    for place in ("/tmp", "/dev/shm"):  # noqa: S108 - these are inside, made for this one command
        yield from ("--size", str(_TMP_BYTES), "--tmpfs", place)
    yield from ("--remount-ro", "/dev")
    if box.workspace is not None:
        yield from ("--bind" if box.writable else "--ro-bind", str(box.workspace), WORKSPACE)
    else:
        yield from ("--dir", WORKSPACE)
    for inside, path in box.shown.items():
        yield from ("--ro-bind", str(path), inside)
    yield from ("--remount-ro", "/")


def _inside(box: SandboxSpec) -> Iterator[str]:
    own = {"PATH": PATH, "HOME": WORKSPACE if box.writable else "/tmp", "USER": "agent", "LANG": "C.UTF-8"}  # noqa: S108
    yield "--clearenv"
    for name, value in own.items():
        yield from ("--setenv", name, value)
    yield from ("--chdir", box.workdir)


def _limited(box: SandboxSpec) -> list[str]:
    """Limits come first: what is set for the command, like LD_PRELOAD, must not be there yet."""
    limits = box.limits
    with_env = ["/bin/sh", "-c", f'. {_ENV}; exec "$@"', "sh"] if box.env else []
    return [
        "/usr/bin/prlimit",
        f"--nproc={limits.processes}",
        f"--data={limits.memory_mb * 1024 * 1024}",
        f"--fsize={limits.file_mb * 1024 * 1024}",
        "--core=0",
        "--",
        *with_env,
    ]


def _data(text: str, fds: ExitStack) -> int:
    """A descriptor from which this text is read."""
    fd = os.memfd_create("hobnob")
    fds.callback(os.close, fd)
    os.write(fd, text.encode("utf-8", "surrogateescape"))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
