"""Lets a gateway of root start a program as an unprivileged user that can still use folders of root.

The folders are mounted with mapped ids: what root owns on disk belongs to the user there, and what the user
creates belongs to root on disk. Only the calling thread changes: it gets a mount namespace and ids of its own
for the time of the start.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hobnob.errors import NotAllowed
from hobnob.sandbox import syscalls

USER = 65_529  # a number that neither Debian nor systemd gives to anybody
STAGE = "/sys"  # hidden by a temporary file system for the start: exists everywhere and holds no workspace

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 0x2, 0x4, 0x4000, 0x80000
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 0x1, os.O_CLOEXEC
_MOUNT_ATTR_IDMAP = 0x100000
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_ALL_IDS = 2**32 - 1
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def unprivileged(folders: Mapping[str, Path]) -> Iterator[None]:
    """Make this thread USER, with `folders` mounted at their keys, which are names below STAGE.

    Raises NotAllowed. The thread must be one that does nothing else: afterwards its working directory is /.
    """
    with ExitStack() as restore:
        try:
            _enter_namespace(restore)
            for place, folder in folders.items():
                _mount_mapped(folder, place)
            _change_ids(restore)
        except OSError as error:
            why = str(error).removeprefix(f"[Errno {error.errno}] ")
            raise NotAllowed(
                f"The gateway runs as root, and the sandbox cannot use another user here: {why}.",
                rule="sandbox.root",
                fix="Run the gateway as an ordinary user, put the workspace on a file system with id-mapped "
                "mounts (ext4, XFS, Btrfs), or set agents.defaults.sandbox.runAsRoot = true.",
            ) from error
        yield


def gateway_is_root() -> bool:
    """Whether this process is root of the machine. Root of a rootless container is an ordinary user there."""
    if os.geteuid() != 0:
        return False
    try:
        inside, outside, _ = Path("/proc/self/uid_map").read_text().splitlines()[0].split()
    except (OSError, LookupError, ValueError):
        return True
    return (inside, outside) == ("0", "0")


def needs_mapping(folder: Path) -> bool:
    """Whether other users than root cannot read a folder, because of its own mode or one above it."""
    return any(not each.stat().st_mode & 0o001 for each in folder.parents) or (
        folder.stat().st_mode & 0o005 != 0o005
    )


def _enter_namespace(restore: ExitStack) -> None:
    outside = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    restore.callback(os.close, outside)
    _check(_libc.unshare(_CLONE_NEWNS), "unshare")
    restore.callback(lambda: _check(_libc.setns(outside, _CLONE_NEWNS), "setns"))
    _check(_libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "mount of /")
    flags = _MS_NOSUID | _MS_NODEV
    _check(_libc.mount(b"tmpfs", STAGE.encode(), b"tmpfs", flags, b"mode=755,size=64k"), f"mount of {STAGE}")


def _mount_mapped(folder: Path, place: str) -> None:
    os.mkdir(place)
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    tree = syscalls.call("open_tree", _AT_FDCWD, os.fsencode(folder), flags)
    try:
        attributes = struct.pack("=QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, _mapping())
        recursive = _AT_EMPTY_PATH | _AT_RECURSIVE
        try:
            syscalls.call("mount_setattr", tree, b"", recursive, attributes, len(attributes))
        except OSError as error:
            what = f"the owners of files in {folder}, or in a file system mounted below it, cannot be mapped"
            raise OSError(error.errno, f"{what} ({error.strerror})") from None
        syscalls.call("move_mount", tree, b"", _AT_FDCWD, place.encode(), _MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(tree)


def _change_ids(restore: ExitStack) -> None:
    """Root stays the saved user of this thread, to return to. A program that is started does not get it."""
    groups = os.getgroups()
    syscalls.call("setgroups", 0, None)
    restore.callback(syscalls.call, "setgroups", len(groups), struct.pack(f"={len(groups)}I", *groups))
    syscalls.call("setresgid", USER, USER, 0)
    restore.callback(syscalls.call, "setresgid", 0, 0, 0)
    syscalls.call("setresuid", USER, USER, 0)
    restore.callback(syscalls.call, "setresuid", 0, 0, 0)


@functools.cache
def _mapping() -> int:
    """A descriptor of a user namespace in which root is USER, and everybody else stays the same."""
    text = f"0 {USER} 1\n1 1 {USER - 1}\n{USER + 1} {USER + 1} {_ALL_IDS - USER - 1}\n"
    with subprocess.Popen(
        ["unshare", "--user", "sh", "-c", "echo; read end"],  # noqa: S607 - in the system's own folders
        env={"PATH": os.defpath},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # now it is in its namespace
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{process.pid}/{name}").write_text(text)
        namespace = os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        process.communicate(b"\n")
    return namespace


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
