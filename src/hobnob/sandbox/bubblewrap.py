"""The bubblewrap backend: new namespaces, no capabilities, few mounts, a filter for system calls.

A gateway of root starts bwrap as an unprivileged user, unless `run_as_root` is set.

The options of bwrap are passed through a descriptor: processes inside can read the command line and the
initial environment of the first process, so neither may contain anything private.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from hobnob.errors import HobnobError
from hobnob.sandbox import WORKSPACE, ProcessSpec, SandboxSpec, python, seccomp, syscalls, unprivileged
from hobnob.sandbox.spawn import spawn

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
# Of the kernel, not of the processes inside. All of /proc is read-only; these cannot be opened at all.
_HIDDEN = ("kallsyms", "kcore", "key-users", "keys", "kmsg", "sched_debug", "sysrq-trigger", "timer_list")

_working: set[tuple[str, bool]] = set()  # programs that passed the probe, and whether as another user


class Bubblewrap:
    name = NAME

    def __init__(self, run_as_root: Callable[[], bool] = lambda: False) -> None:
        self._run_as_root = run_as_root

    @property
    def changes_user(self) -> bool:
        """Whether programs run as `unprivileged.USER` and not as the gateway's own user, which is root."""
        return unprivileged.gateway_is_root() and not self._run_as_root()

    async def probe(self) -> str | None:
        program = shutil.which("bwrap")
        if program is None:
            return "bubblewrap (bwrap) is not installed."
        if (program, self.changes_user) in _working:
            return None
        if why := python.problem() or await asyncio.to_thread(self._try, program):
            return why
        _working.add((program, self.changes_user))
        return None

    def _try(self, program: str) -> str | None:
        """Run Python in the sandbox, as the file tools do. Blocks."""
        with ExitStack() as fds:
            spec = self.process_spec(
                SandboxSpec(read_only=python.mounts()), [*python.PROGRAM, "-c", "pass"], fds
            )
            null, pipe = subprocess.DEVNULL, subprocess.PIPE
            try:
                process = spawn(spec, env=spec.env, stdin=null, stdout=null, stderr=pipe)
            except HobnobError as error:
                return f"{error.message} {error.fix or ''}".strip()
            except OSError as error:
                return f"{program} cannot be started: {error}."
            with process:
                try:
                    _, stderr = process.communicate(timeout=PROBE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    return f"{program} did not exit within {PROBE_S:g} seconds."
        if process.returncode:
            why = " ".join(stderr.decode("utf-8", "replace").split())[:300]
            return f"{program} fails here: {why or f'exit code {process.returncode}'}."
        return None

    def process_spec(self, box: SandboxSpec, argv: Sequence[str], fds: ExitStack) -> ProcessSpec:
        passwd, group = _data(_PASSWD, fds), _data(_GROUP, fds)
        env = _data("".join(f"export {name}={shlex.quote(value)}\n" for name, value in box.env.items()), fds)
        files = ((passwd, "/etc/passwd"), (group, "/etc/group"), (env, _ENV_FILE))
        changes_user = self.changes_user
        staged = _staged(box) if changes_user else {}
        options = [*_isolation(), *_system(box.network), *_etc(files), *_mounts(box, staged)]
        inherited = [passwd, group, env]
        if syscalls.ARCHITECTURE is not None:
            inherited.append(_data(seccomp.program(syscalls.ARCHITECTURE), fds))
            options += ["--seccomp", str(inherited[-1])]
        args = _data("\0".join([*options, *_environment(box)]) + "\0", fds)
        program = shutil.which("bwrap") or "bwrap"
        return ProcessSpec(
            argv=[program, "--args", str(args), "--", *_limited(box), *argv],
            env={"PATH": PATH},
            cwd=Path("/"),
            fds=(args, *inherited),
            sandboxed=True,
            # RLIMIT_NPROC does not apply to root, so the gateway has to count.
            processes=box.limits.processes if unprivileged.gateway_is_root() and not changes_user else None,
            memory_mb=box.limits.memory_mb,  # the kernel limits each process, not their sum
            staged={place: folder for folder, place in staged.items()} if changes_user else None,
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


def _staged(box: SandboxSpec) -> dict[Path, str]:
    """The folders that an unprivileged user cannot use as they are, with the places where it can."""
    folders = [] if box.workspace is None else [box.workspace]
    folders += [folder for folder in box.read_only.values() if unprivileged.needs_mapping(folder)]
    return {folder: f"{unprivileged.STAGE}/{n}" for n, folder in enumerate(folders)}


def _proc() -> Iterator[str]:
    """Without --remount-ro, root can change kernel settings of the machine in /proc/sys."""
    yield from ("--proc", "/proc")
    for name in _HIDDEN:
        if os.path.exists(f"/proc/{name}"):
            yield from ("--ro-bind", "/dev/null", f"/proc/{name}")  # a device, mounted without devices
    yield from ("--remount-ro", "/proc")


def _mounts(box: SandboxSpec, staged: Mapping[Path, str]) -> Iterator[str]:
    """The workspace, temporary file systems that end with the command, and further read-only folders."""
    yield from (*_proc(), "--dev", "/dev")
    for path in ("/tmp", "/dev/shm"):  # noqa: S108 - these are inside, made for this one command
        yield from ("--size", str(_TMP_BYTES), "--tmpfs", path)
    yield from ("--remount-ro", "/dev")
    if box.workspace is not None:
        source = staged.get(box.workspace, str(box.workspace))
        yield from ("--bind" if box.writable else "--ro-bind", source, WORKSPACE)
    else:
        yield from ("--dir", WORKSPACE)
    for inside, folder in box.read_only.items():
        yield from ("--ro-bind", staged.get(folder, str(folder)), inside)
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


def _data(content: str | bytes, fds: ExitStack) -> int:
    """A descriptor with this content."""
    fd = os.memfd_create("hobnob")
    fds.callback(os.close, fd)
    os.write(fd, content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
