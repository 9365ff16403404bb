"""Files for a child: written before it is made, and taken back when it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from hobnob import attachments
from hobnob.sessions.spawning import Files, Receipt


async def hand_over(
    workspace: Path,
    files: Sequence[attachments.Attachment],
    batch: str,
    *,
    spawn: Callable[[Files], Awaitable[Receipt]],
    earlier: Callable[[], Awaitable[Receipt | None]],
) -> Receipt:
    """Write the files into a folder named after `batch`, then spawn. `earlier` tells whether it was done."""
    writing = asyncio.create_task(asyncio.to_thread(attachments.write, workspace, files, batch=batch))
    try:
        written = await asyncio.shield(writing)
        return await spawn(Files(written.rel_dir, attachments.describe(written), written.json()))
    except BaseException:
        # Nothing stays that belongs to no child: also when the turn is stopped amid the writing.
        await asyncio.wait([writing])
        if not writing.cancelled() and writing.exception() is None and await earlier() is None:
            await asyncio.to_thread(attachments.remove, workspace, writing.result().rel_dir)
        raise
