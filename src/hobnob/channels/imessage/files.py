"""Files on the Mac on which Messages runs: this machine, or one that is reached by ssh."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hobnob.channels import OutgoingFile, Undeliverable
from hobnob.channels.imessage.rpc import argv
from hobnob.config.channels.imessage import IMessageAccount

_CHUNK = 64 * 1024
_UPLOAD_S = 50.0


async def read_remote(settings: IMessageAccount, path: str, limit: int) -> AsyncIterator[bytes]:
    """The content of a file, in pieces. Raises Undeliverable when it is not there or too large."""
    if settings.remote_host is None:
        async for piece in _read_local(Path(path), limit):
            yield piece
        return
    read = 0
    async with _running(argv(settings, "cat", "--", path)) as process:
        assert process.stdout is not None
        while piece := await process.stdout.read(_CHUNK):
            if (read := read + len(piece)) > limit:
                raise Undeliverable(f"The file is larger than {limit:,} bytes.")
            yield piece
        if await process.wait() != 0:
            raise Undeliverable("The file could not be read on the Mac.")


async def write_remote(settings: IMessageAccount, file: OutgoingFile) -> str:
    """Make a file known to the Mac. Returns its path there."""
    if not file.path.is_file():
        raise Undeliverable(f"The file {file.name} cannot be read.")
    if settings.remote_host is None:
        return str(file.path)
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in file.name)[-100:]
    path = f"/tmp/hobnob-{uuid.uuid4()}/{name}"  # noqa: S108 - a new folder of its own
    folder = path.rpartition("/")[0]
    words = ("sh", "-c", 'umask 077 && mkdir "$1" && cat > "$2"', "sh", folder, path)
    try:
        async with asyncio.timeout(_UPLOAD_S), _running(argv(settings, *words)) as process:
            assert process.stdin is not None
            with file.path.open("rb") as content:
                while piece := content.read(_CHUNK):
                    process.stdin.write(piece)
                    await process.stdin.drain()
            process.stdin.close()
            if await process.wait() == 0:
                return path
    except (OSError, TimeoutError) as error:
        raise Undeliverable(f"The file could not be copied to the Mac: {error}.", again=True) from None
    raise Undeliverable("The file could not be copied to the Mac.", again=True)


async def _read_local(path: Path, limit: int) -> AsyncIterator[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Undeliverable(f"The file cannot be read: {error.strerror}.") from None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > limit:
            raise Undeliverable(f"The file is no regular file, or larger than {limit:,} bytes.")
        while piece := await asyncio.to_thread(file.read, _CHUNK):
            yield piece


@asynccontextmanager
async def _running(command: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
