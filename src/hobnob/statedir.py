"""The state directory: its location, and folders 0700 and files 0600 whatever the umask."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hobnob.errors import BadInput, StateUnsafe, StoreUnwritable

_log = logging.getLogger(__name__)


def home(env: Mapping[str, str]) -> Path:
    chosen = env.get("HOBNOB_HOME") or "~/.hobnob"
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError:
        raise BadInput(f"HOBNOB_HOME is {chosen!r}, and that user does not exist.") from None


def secure(home: Path) -> None:
    """Take write access to an existing state directory from other users. Raises StateUnsafe.

    Settings name programs to start, so a file that another user put there must not be used.
    """
    try:
        found = home.stat()
        names = os.listdir(home)
    except OSError:  # it does not exist yet, or whoever needs it says that it cannot be used
        return
    if found.st_mode & 0o022:
        if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:  # not ours, or meant to be shared
            raise StateUnsafe(
                f"Other users can write to the state directory {home}.",
                fix=f"Run chmod 700 {home} as its owner, or set HOBNOB_HOME to another folder.",
            )
        home.chmod(0o700)
        _log.warning("other users could write to the state directory %s; its mode is now 0700", home)
    trusted = (os.geteuid(), found.st_uid, 0)
    if foreign := sorted(name for name in names if _owner(home / name) not in trusted):
        raise StateUnsafe(
            f"The state directory {home} has files of another user: {', '.join(foreign[:5])}.",
            fix="Check what they contain, then delete them or make them your own with chown.",
        )


def _owner(path: Path) -> int:
    try:
        return path.lstat().st_uid
    except OSError:  # deleted meanwhile
        return os.geteuid()


def refuse_exposed(folder: Path) -> None:
    """Refuse a folder of store.url in which everybody can replace files. Raises StateUnsafe."""
    if folder.stat().st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        raise StateUnsafe(
            f"Every user can replace the files in {folder}, the folder of store.url.",
            fix=f"Run chmod o-w {folder}, or set store.url to a file in another folder.",
        )


def private_dir(path: Path) -> Path:
    """Make `path` and its missing parents, each with mode 0700."""
    try:
        missing = [p for p in (path, *path.parents) if not p.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            folder.chmod(0o700)  # the umask may have removed bits
        if not path.is_dir():
            raise NotADirectoryError
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def open_private(path: Path, flags: int) -> int:
    """Open a file with mode 0600, refusing a link as its last component. Returns the descriptor."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        if flags & os.O_CREAT:
            os.fchmod(fd, 0o600)
    except OSError as error:  # the file belongs to another user
        os.close(fd)
        raise _unwritable(path, error) from error
    return fd


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _unwritable(path: Path, error: OSError) -> StoreUnwritable:
    fix = "Give the user that runs Hobnob write access to it, or set HOBNOB_HOME to another folder."
    if error.errno == errno.EROFS:
        fix = "Its disk is mounted read-only: mount it writable, or set HOBNOB_HOME to another folder."
    return StoreUnwritable(f"{path} cannot be used: {error.strerror or 'it is not a folder'}.", fix=fix)
