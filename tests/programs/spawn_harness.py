"""A gateway that has a harness at work, to be killed: spawns a task and waits until its end.

Arguments: the state directory, the settings as JSON, the task.
"""

import asyncio
import json
import sys
from pathlib import Path

from hobnob.requests import SpawnRequest
from hobnob.testing import OWNER, rehearse, say


async def main() -> None:
    home, settings, task = sys.argv[1:]
    async with rehearse(Path(home), json.loads(settings)) as gateway:
        await say(gateway, "hello")
        receipt = await gateway.sessions.spawn_for(OWNER, "main", SpawnRequest(task=task, runtime="acp"))
        print(receipt.json(), flush=True)  # noqa: T201 - this is what the test reads
        await gateway.sessions.wait(receipt.run_id)
        await asyncio.Event().wait()


asyncio.run(main())
