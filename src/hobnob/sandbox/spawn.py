"""Starts a program with a fresh, empty session keyring, and as an unprivileged user if its spec says so.

Both are properties of a thread that a program inherits. So starts happen in threads that do nothing else, one
for each kind of start, and the gateway's own threads keep their keyring and their rights. A sandbox dies with
the thread that started it (`--die-with-parent`): these threads live as long as the gateway.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from hobnob.errors import NotAllowed
from hobnob.sandbox import ProcessSpec, syscalls
from hobnob.sandbox.unprivileged import STAGE, unprivileged

_JOIN_SESSION_KEYRING = 1
_plain = ThreadPoolExecutor(1, "spawn")
_unprivileged = ThreadPoolExecutor(1, "spawn unprivileged")


def spawn(
    spec: ProcessSpec,
    *,
    env: Mapping[str, str],
    stdin: IO[bytes] | int,
    stdout: IO[bytes] | int,
    stderr: IO[bytes] | int,
) -> subprocess.Popen[bytes]:
    """Start a program as the leader of its own process session. Blocks. Raises OSError or NotAllowed."""

    def start() -> subprocess.Popen[bytes]:
        _join_new_keyring()
        with nullcontext() if spec.staged is None else unprivileged(spec.staged):
            return subprocess.Popen(  # noqa: S603 - to run programs is what this is for
                spec.argv,
                bufsize=0,
                env=env,
                cwd=spec.cwd,
                pass_fds=tuple(spec.fds),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    thread = _plain if spec.staged is None else _unprivileged
    return thread.submit(start).result()


def folder_problem(folder: Path) -> str | None:
    """Why an unprivileged user that root starts cannot use a folder of root, None when it can. Blocks."""

    def mount() -> None:
        with unprivileged({f"{STAGE}/0": folder}):
            pass

    try:
        _unprivileged.submit(mount).result()
    except NotAllowed as error:
        return error.message
    return None


def _join_new_keyring() -> None:
    try:
        syscalls.call("keyctl", _JOIN_SESSION_KEYRING, None)
    except OSError as error:
        # Without keyctl, or where a container refuses it, a program cannot use a keyring either.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise OSError(error.errno, f"no session keyring for a new program: {error.strerror}") from error
