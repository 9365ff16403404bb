"""Working in folders that somebody else controls, an agent's workspace above all.

A folder is a descriptor, a thing in it a single name. No link is followed, whatever is planted before or
swapped while we work: the worst that happens is an OSError. What is opened is closed by the ExitStack given.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC  # without waiting, if it is a pipe
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ROUNDS = 10_000  # as deep as a folder may be nested and still be removed


def start(path: str, fds: ExitStack) -> int:
    """Open the folder to start from. Its path is the owner's choice, and may have links."""
    return _kept(os.open(path, _FOLDER & ~os.O_NOFOLLOW), fds)


def look(name: str, parent: int, fds: ExitStack) -> int:
    """Open a folder as it is."""
    return _kept(os.open(name, _FOLDER, dir_fd=parent), fds)


def enter(name: str, parent: int, fds: ExitStack) -> int:
    """Open a folder that is ours and make it 0700."""
    try:
        fd = look(name, parent, fds)
    except PermissionError:  # the umask took our own rights away, or the agent did
        with suppress(NotImplementedError):  # it is a link by now: opening it says so
            os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        fd = look(name, parent, fds)
    os.fchmod(fd, 0o700)
    return fd


def make(name: str, parent: int) -> bool:
    """Make a folder; false when something is there by that name. `enter` sees to its rights."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
        return True
    return False


def create(name: str, folder: int, content: bytes) -> None:
    """Write a new file, 0600 whatever the umask, down to the disk."""
    with open(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def holds(name: str, folder: int, content: bytes) -> bool:
    """Whether the file is there just as `create` leaves it, and on the disk."""
    with suppress(OSError), ExitStack() as fds:
        fd = _kept(os.open(name, _READ, dir_fd=folder), fds)
        there = os.fstat(fd)
        shape = (there.st_mode, there.st_nlink, there.st_uid, there.st_size)
        if shape == (stat.S_IFREG | 0o600, 1, os.geteuid(), len(content)):
            os.fsync(fd)
            with open(fd, "rb", closefd=False) as file:
                return file.read(len(content) + 1) == content
    return False


def descend(names: Sequence[str], folder: int, fds: ExitStack, *, making: bool = False) -> int:
    """Open the folder at the end of a way down, one name after the other; `making` what is missing."""
    for name in names:
        if making:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
        folder = look(name, folder, fds)
    return folder


def open_file(name: str, folder: int, fds: ExitStack) -> int:
    """Open a plain file for reading. One with a second name is refused: that may lie anywhere."""
    fd = _kept(os.open(name, _READ, dir_fd=folder), fds)
    there = os.fstat(fd)
    if stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", name)
    if not stat.S_ISREG(there.st_mode):
        raise OSError(errno.EINVAL, "it is no plain file", name)
    if there.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has a second name (a hard link), which may lie elsewhere", name)
    return fd


def beginning(name: str, folder: int, limit: int) -> bytes | None:
    """The first bytes of a plain file; None when there is none by that name."""
    with (
        suppress(OSError),
        ExitStack() as fds,
        open(open_file(name, folder, fds), "rb", closefd=False) as file,
    ):
        return file.read(limit)
    return None


def put(name: str, folder: int, content: bytes) -> bool:
    """Put a file in place whole or not at all, and say whether it is new. It keeps the rights of the old.

    What stood there is replaced, not written to: another name of it keeps what it had.
    """
    mode = None
    with suppress(FileNotFoundError):
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(there.st_mode):
            raise OSError(errno.EINVAL, "it is a link, a folder or no plain file", name)
        mode = stat.S_IMODE(there.st_mode)
    draft = f".{_unused()}.tmp"
    fd = os.open(draft, _NEW, 0o666, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode & 0o777)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise
    return mode is None


def is_folder(name: str, parent: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def clear(folder: int, keep: Collection[str] = ()) -> None:
    """Remove everything in the folder but `keep`."""
    for _ in range(_ROUNDS):
        names = [name for name in os.listdir(folder) if name not in keep]
        if not names:
            return
        for name in names:
            with suppress(FileNotFoundError):  # somebody else removed it
                drop(name, folder)
    raise OSError(errno.ENOTEMPTY, "it is nested too deep, or filled again and again")


def drop(name: str, folder: int) -> None:
    """Remove one thing. Folders inside it are moved up beside it, where `clear` finds them in its next round.

    So depth costs neither stack nor descriptors.
    """
    if not is_folder(name, folder):
        os.unlink(name, dir_fd=folder)
        return
    with ExitStack() as fds:
        inner = enter(name, folder, fds)
        for below in os.listdir(inner):
            if is_folder(below, inner):
                with ExitStack() as lent:
                    enter(below, inner, lent)  # only a folder one may write to can be moved
                os.rename(below, _unused(), src_dir_fd=inner, dst_dir_fd=folder)
            else:
                os.unlink(below, dir_fd=inner)
    os.rmdir(name, dir_fd=folder)


def _unused() -> str:
    """A name that nothing has."""
    return os.urandom(16).hex()


def _kept(fd: int, fds: ExitStack) -> int:
    fds.callback(os.close, fd)
    return fd
