"""Fills the disk under a running turn, makes room again, and prints how the turn and a new message fared."""

import asyncio
import json
import sys
from pathlib import Path

from hobnob.errors import StoreFull
from hobnob.testing import OWNER, calls, rehearse, say, script
from hobnob.tools import Context, tool


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 512, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


async def main(folder: Path) -> None:
    here, go_on = asyncio.Event(), asyncio.Event()

    @tool()
    async def hold(context: Context) -> str:
        """Wait, then return a lot."""
        here.set()
        await go_on.wait()
        return "x" * 200_000

    async with rehearse(folder, script(calls("hold"), "Done."), tools=[hold]) as gateway:
        turn = await gateway.sessions.send(OWNER, "main", "go")
        await here.wait()
        fill(folder / "ballast")
        refused = None
        try:
            for i in range(200):
                await gateway.sessions.send(OWNER, f"hook:{i}", "x" * 4000)
        except StoreFull as error:
            refused = error.code
        go_on.set()
        waiting = await gateway.sessions.wait(turn.turn_id, 1)
        (folder / "ballast").unlink()
        ended = await gateway.sessions.wait(turn.turn_id, 15)
        after = await say(gateway, "say again", "hook:after")
        report = {"refused": refused, "waiting": waiting.status, "ended": ended.reply, "after": after.reply}
    print(json.dumps(report))  # noqa: T201


asyncio.run(main(Path(sys.argv[1])))
