"""Fills the disk the store is on, makes room, goes on, and prints what happened as JSON."""

import asyncio
import json
import sys
from pathlib import Path

from hobnob.errors import StoreFull
from hobnob.keys import parse
from hobnob.store import entries, open_store, sessions
from hobnob.types import Session


async def main(folder: Path) -> None:
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(1024 * 1024))
    kept, refusals, after = [], [], []
    async with open_store(f"sqlite:///{folder}/hobnob.db") as store:
        session = await store.write(sessions.create, Session.of(parse("agent:a:main")))

        async def append() -> None:
            entry = await store.write(
                entries.append, session.session_id, {"role": "user", "content": "x" * 4000}
            )
            kept.append(entry.seq)

        while not refusals:
            results = await asyncio.gather(*(append() for _ in range(8)), return_exceptions=True)
            refusals = [type(r).__name__ for r in results if isinstance(r, Exception)]
            assert all(isinstance(r, StoreFull) for r in results if isinstance(r, Exception)), results
        filled = list(kept)
        ballast.unlink()
        for _ in range(5):
            await append()
        after = kept[len(filled) :]
    async with open_store(f"sqlite:///{folder}/hobnob.db") as store:
        stored = [e.seq for e in await store.read(entries.history, session.session_id, limit=10**6)]
    print(json.dumps({"kept": kept, "stored": stored, "refusals": refusals, "after": after}))  # noqa: T201


asyncio.run(main(Path(sys.argv[1])))
