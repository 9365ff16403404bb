"""Appends to eight transcripts at once and prints each entry once the store has said it is kept."""

import asyncio
import sys

from hobnob.keys import parse
from hobnob.store import entries, open_store, sessions
from hobnob.types import Session


async def main(url: str) -> None:
    async with open_store(url) as store:

        async def produce(number: int) -> None:
            session = await store.write(sessions.ensure, Session.of(parse(f"agent:a:hook:{number}")))
            while True:
                entry = await store.write(
                    entries.append, session.session_id, {"role": "user", "content": "x" * 200}
                )
                sys.stdout.write(f"{entry.session_id} {entry.seq}\n")
                sys.stdout.flush()

        await asyncio.gather(*(produce(i) for i in range(8)))


asyncio.run(main(sys.argv[1]))
