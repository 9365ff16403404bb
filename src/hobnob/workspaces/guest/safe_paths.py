"""File operations in folders that an agent controls. No link is followed, even one swapped in meanwhile.

A folder is a descriptor, an entry in it a single name. The worst result of a planted or swapped link is an
OSError. Descriptors are closed by the ExitStack passed in.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC  # a named pipe must not block
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ROUNDS = 10_000  # of `clear_folder`: the deepest nesting it removes


def open_root(path: str, fds: ExitStack) -> int:
    """Open the root folder. Its path is set by the operator and may contain links."""
    return _closing(os.open(path, _FOLDER & ~os.O_NOFOLLOW), fds)


def open_folder(name: str, parent: int, fds: ExitStack) -> int:
    return _closing(os.open(name, _FOLDER, dir_fd=parent), fds)


def open_private_folder(name: str, parent: int, fds: ExitStack) -> int:
    """Open a folder that we own and make it 0700."""
    try:
        fd = open_folder(name, parent, fds)
    except PermissionError:  # the umask or the agent removed our own access
        with suppress(NotImplementedError):  # it is a link by now: the next open reports that
            os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
        fd = open_folder(name, parent, fds)
    os.fchmod(fd, 0o700)
    return fd


def make_folder(name: str, parent: int) -> bool:
    """Make a folder; false when the name exists. `open_private_folder` sets its mode."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
        return True
    return False


def create_file(name: str, folder: int, content: bytes) -> None:
    """Write a new file, 0600 whatever the umask, and fsync it."""
    with open(os.open(name, _NEW, 0o600, dir_fd=folder), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def has_content(name: str, folder: int, content: bytes) -> bool:
    """Whether the file is exactly what `create_file` would write; if so it is fsynced."""
    with suppress(OSError), ExitStack() as fds:
        fd = _closing(os.open(name, _READ, dir_fd=folder), fds)
        info = os.fstat(fd)
        if (info.st_mode, info.st_nlink, info.st_uid, info.st_size) == (
            stat.S_IFREG | 0o600,
            1,
            os.geteuid(),
            len(content),
        ):
            os.fsync(fd)
            with open(fd, "rb", closefd=False) as file:
                return file.read(len(content) + 1) == content
    return False


def descend(path: Sequence[str], folder: int, fds: ExitStack, *, create: bool = False) -> int:
    """Open the folder at `path`, one name after the other; `create` makes missing ones."""
    for name in path:
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
        folder = open_folder(name, folder, fds)
    return folder


def open_file(name: str, folder: int, fds: ExitStack) -> int:
    """Open a regular file for reading. One with a hard link is refused: its other name may be outside."""
    fd = _closing(os.open(name, _READ, dir_fd=folder), fds)
    info = os.fstat(fd)
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", name)
    if not stat.S_ISREG(info.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", name)
    if info.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has a hard link, which may lie outside the workspace", name)
    return fd


def read_head(name: str, folder: int, limit: int) -> bytes | None:
    """The first bytes of a regular file; None when it cannot be read."""
    with (
        suppress(OSError),
        ExitStack() as fds,
        open(open_file(name, folder, fds), "rb", closefd=False) as file,
    ):
        return file.read(limit)
    return None


def replace_file(name: str, folder: int, content: bytes) -> bool:
    """Write a file atomically and return whether it is new. It keeps the mode of the old file.

    The old file is replaced, not written to: a hard link to it keeps the old content.
    """
    mode = None
    with suppress(FileNotFoundError):
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "it is a link, a folder or not a regular file", name)
        mode = stat.S_IMODE(info.st_mode)
    draft = f".{_unused_name()}.tmp"
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


def clear_folder(folder: int, keep: Collection[str] = ()) -> None:
    """Remove everything in the folder except `keep`."""
    for _ in range(_ROUNDS):
        names = [name for name in os.listdir(folder) if name not in keep]
        if not names:
            return
        for name in names:
            with suppress(FileNotFoundError):  # removed by another process
                remove_entry(name, folder)
    raise OSError(errno.ENOTEMPTY, "it is nested too deep, or entries keep being added")


def remove_entry(name: str, folder: int) -> None:
    """Remove a file, or a folder. Its subfolders are moved up into `folder`, for `clear_folder` to remove.

    So deep nesting needs neither recursion nor many descriptors.
    """
    if not is_folder(name, folder):
        os.unlink(name, dir_fd=folder)
        return
    with ExitStack() as fds:
        inner = open_private_folder(name, folder, fds)
        for entry in os.listdir(inner):
            if is_folder(entry, inner):
                with ExitStack() as briefly:
                    open_private_folder(entry, inner, briefly)  # only a writable folder can be moved
                os.rename(entry, _unused_name(), src_dir_fd=inner, dst_dir_fd=folder)
            else:
                os.unlink(entry, dir_fd=inner)
    os.rmdir(name, dir_fd=folder)


def _unused_name() -> str:
    return os.urandom(16).hex()


def _closing(fd: int, fds: ExitStack) -> int:
    fds.callback(os.close, fd)
    return fd
