"""The state directory: its location, and folders 0700 and files 0600 whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from hobnob.errors import BadInput, StoreUnwritable


def home(env: Mapping[str, str]) -> Path:
    chosen = env.get("HOBNOB_HOME") or "~/.hobnob"
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError:
        raise BadInput(f"HOBNOB_HOME is {chosen!r}, and that user does not exist.") from None


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
    return StoreUnwritable(
        f"{path} cannot be used: {error.strerror or 'it is not a folder'}.",
        fix="Give the user that runs Hobnob write access to it, or set HOBNOB_HOME to another folder.",
    )
