"""Has an agent fill the disk its workspace is on, and prints what it was told and what is left."""

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from tests.integration.helpers import use

from hobnob.testing import rehearse


async def main(folder: Path) -> None:
    home = folder.parent / "state"  # on another disk
    home.mkdir()
    settings = {"agents": {"list": [{"id": "main", "workspace": str(folder / "workspace")}]}}
    async with rehearse(home, settings) as gateway:
        await use(gateway, "write", "main", path="small", content="kept")
        with (folder / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(10_000))
        answer = await use(gateway, "write", "main", path="large", content="x" * 50_000)
        over = await use(gateway, "write", "main", path="small", content="y" * 50_000)
    names = sorted(path.name for path in (folder / "workspace").iterdir())
    small = (folder / "workspace" / "small").read_text()
    print(json.dumps({"error": answer["error"], "again": over["error"], "names": names, "small": small}))  # noqa: T201


asyncio.run(main(Path(sys.argv[1])))
