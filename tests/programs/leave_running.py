"""A gateway with a command in the background, until it is killed."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from tests.integration.helpers import use

from hobnob.testing import rehearse


async def main(home: Path, place: str, word: str) -> None:
    settings = {"tools": {"exec": {"host": "gateway"}}} if place == "host" else {}
    async with rehearse(home, settings) as gateway:
        command = f"(setsid sleep {word} &); trap '' TERM HUP; sleep {word}; sleep {word}"
        await use(gateway, "exec", "main", command=command, background=True)
        sys.stdout.write("started\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
