"""The bubblewrap backend: new namespaces, no capabilities, no nested user namespaces, few mounts.

The options of bwrap are passed through a descriptor: processes inside can read the command line and the
initial environment of the first process, so neither may contain anything private.
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
# What common programs need from /etc; none of it is secret.
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types")
_ETC_SSL = ("ssl/certs", "ssl/openssl.cnf")  # not ssl/private
_ETC_NETWORK = ("ca-certificates", "hosts", "nsswitch.conf", "resolv.conf", "services")
_PASSWD = f"agent:x:{_UID}:{_UID}:agent:{WORKSPACE}:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = f"agent:x:{_UID}:\nnogroup:x:65534:\n"
_ENV_FILE = "/etc/hobnob.env"

_working: set[str] = set()  # bwrap programs that passed the probe


class Bubblewrap:
    name = NAME

    async def probe(self) -> str | None:
        program = shutil.which("bwrap")
        if program is None:
            return "bubblewrap (bwrap) is not installed."
        if program in _working:
            return None
        if why := python.problem():
            return why
        with ExitStack() as fds:
            box = SandboxSpec(read_only=python.mounts())
            spec = self.process_spec(box, [*python.PROGRAM, "-c", "pass"], fds)
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                env=dict(spec.env),
                pass_fds=spec.fds,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(PROBE_S):
                    _, stderr = await process.communicate()
            except TimeoutError:
                process.kill()
                await process.wait()
                return f"{program} did not exit within {PROBE_S:g} seconds."
        if process.returncode:
            why = " ".join(stderr.decode("utf-8", "replace").split())[:300]
            return f"{program} fails here: {why or f'exit code {process.returncode}'}."
        _working.add(program)
        return None

    def process_spec(self, box: SandboxSpec, argv: Sequence[str], fds: ExitStack) -> ProcessSpec:
        passwd, group = _data(_PASSWD, fds), _data(_GROUP, fds)
        env = _data("".join(f"export {name}={shlex.quote(value)}\n" for name, value in box.env.items()), fds)
        files = ((passwd, "/etc/passwd"), (group, "/etc/group"), (env, _ENV_FILE))
        options = [*_isolation(), *_system(box.network), *_etc(files), *_mounts(box), *_environment(box)]
        args = _data("\0".join(options) + "\0", fds)
        program = shutil.which("bwrap") or "bwrap"
        return ProcessSpec(
            argv=[program, "--args", str(args), "--", *_limited(box), *argv],
            env={"PATH": PATH},
            fds=(args, passwd, group, env),
            sandboxed=True,
            # RLIMIT_NPROC does not apply to root, so the gateway has to count.
            processes=box.limits.processes if os.geteuid() == 0 else None,
            memory_mb=box.limits.memory_mb,  # the kernel limits each process, not their sum
        )


def _isolation() -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    return [*options, "--uid", str(_UID), "--gid", str(_UID), "--cap-drop", "ALL", "--hostname", "sandbox"]


def _system(network: bool) -> Iterator[str]:
    """The programs of this machine, read-only."""
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


def _mounts(box: SandboxSpec) -> Iterator[str]:
    """The workspace, temporary file systems that end with the command, and further read-only folders."""
    yield from ("--proc", "/proc", "--dev", "/dev")
    for path in ("/tmp", "/dev/shm"):  # noqa: S108 - these are inside, made for this one command
        yield from ("--size", str(_TMP_BYTES), "--tmpfs", path)
    yield from ("--remount-ro", "/dev")
    if box.workspace is not None:
        yield from ("--bind" if box.writable else "--ro-bind", str(box.workspace), WORKSPACE)
    else:
        yield from ("--dir", WORKSPACE)
    for inside, folder in box.read_only.items():
        yield from ("--ro-bind", str(folder), inside)
    yield from ("--remount-ro", "/")


def _environment(box: SandboxSpec) -> Iterator[str]:
    env = {"PATH": PATH, "HOME": WORKSPACE if box.writable else "/tmp", "USER": "agent", "LANG": "C.UTF-8"}  # noqa: S108
    yield "--clearenv"
    for name, value in env.items():
        yield from ("--setenv", name, value)
    yield from ("--chdir", box.workdir)


def _limited(box: SandboxSpec) -> list[str]:
    """The limits are set before the command's environment: its LD_PRELOAD must not affect prlimit."""
    limits = box.limits
    load_env = ["/bin/sh", "-c", f'. {_ENV_FILE}; exec "$@"', "sh"] if box.env else []
    return [
        "/usr/bin/prlimit",
        f"--nproc={limits.processes}",
        f"--data={limits.memory_mb * 1024 * 1024}",
        f"--fsize={limits.file_mb * 1024 * 1024}",
        "--core=0",
        "--",
        *load_env,
    ]


def _data(text: str, fds: ExitStack) -> int:
    """A descriptor with this text as content."""
    fd = os.memfd_create("hobnob")
    fds.callback(os.close, fd)
    os.write(fd, text.encode("utf-8", "surrogateescape"))
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
