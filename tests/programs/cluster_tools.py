"""Tools whose effects can be counted afterwards, in a file that all gateways of a test share."""

import asyncio
import os
import time

from hobnob.tools import Context, tool


def record(line: str) -> None:
    """Append a line. One write of this size to a file opened for appending is not divided."""
    file = os.open(os.environ["CLUSTER_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


@tool()
async def stamp(context: Context, word: str) -> str:
    """Has an effect that must not happen twice."""
    record(f"stamp {word}")
    return f"stamped {word}"


@tool(repeatable=True)
async def peek(context: Context, word: str) -> str:
    """May be called again."""
    record(f"peek {word}")
    return f"peeked {word}"


@tool(repeatable=True)
async def block(context: Context, how: str, seconds: int) -> str:
    """Keeps the event loop from everything else, as tools must not do."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if how == "waits":
            time.sleep(0.1)
    await asyncio.sleep(0.3)  # else it is done before anybody notices
    return "done"
