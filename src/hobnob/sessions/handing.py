"""Files for a child: written before it is made, and taken back when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from hobnob import attachments
from hobnob.errors import HobnobError
from hobnob.sessions.spawning import HandedFiles, SpawnReceipt


async def hand_over(
    do: Callable[[dict[str, Any]], Awaitable[Any]],
    files: Sequence[attachments.Attachment],
    batch: str,
    *,
    spawn: Callable[[HandedFiles], Awaitable[SpawnReceipt]],
    earlier: Callable[[], Awaitable[SpawnReceipt | None]],
) -> SpawnReceipt:
    """Write the files into a folder named after `batch`, then spawn. `earlier` tells whether it was done.

    `do` has work done in the workspace of the child.
    """
    written = await asyncio.to_thread(attachments.receipt_for, files, batch)
    writing = asyncio.ensure_future(do(await asyncio.to_thread(attachments.write_job, written, files)))
    try:
        with attachments.explained_errors(written.rel_dir, "written to"):
            await asyncio.shield(writing)
        return await spawn(HandedFiles(written.rel_dir, attachments.describe(written), written.json()))
    except BaseException:
        # Nothing stays that belongs to no child: also when the turn is stopped amid the writing.
        await asyncio.gather(writing, return_exceptions=True)
        if await earlier() is None:
            with suppress(HobnobError, OSError):  # why they could not be written is what gets reported
                await do(attachments.remove_job(written.rel_dir))
        raise
