"""Write many messages or sessions directly into the store."""

import asyncio

from hobnob.gateway import Gateway
from hobnob.keys import parse
from hobnob.store import Tx, entries, sessions
from hobnob.types import Session

SESSIONS_PER_WRITE = 5_000


async def append_messages(
    gateway: Gateway,
    key: str,
    numbers: range,
    *,
    text: str = "This is number {} of many.",
    per_write: int = 50,
    pause_s: float = 0.01,
) -> None:
    """Append numbered messages, alternately from a person and the agent, `per_write` per transaction."""
    session = await gateway.store.read(sessions.get, key)

    def append(tx: Tx, part: range) -> None:
        for n in part:
            message = {
                "role": "user" if n % 2 else "assistant",
                "content": [{"type": "text", "text": text.format(n)}],
                "timestamp": 1_700_000_000_000 + n,
            }
            entries.append(tx, session.session_id, message)

    for start in range(0, len(numbers), per_write):
        await gateway.store.write(append, numbers[start : start + per_write])
        await asyncio.sleep(pause_s)


async def create_sessions(gateway: Gateway, count: int) -> None:
    """Create sessions of bob; `hook:00000` is the newest."""

    def create(tx: Tx, numbers: range) -> None:
        for n in numbers:
            sessions.create(tx, Session.of(parse(f"agent:bob:hook:{n:05}"), updated_at_ms=1_000_000 - n))

    for start in range(0, count, SESSIONS_PER_WRITE):
        await gateway.store.write(create, range(count)[start : start + SESSIONS_PER_WRITE])
