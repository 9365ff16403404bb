"""How a command reaches a gateway: the one that is running, or one opened here for the moment.

Both are asked by RPC methods, so that a command is written once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from hobnob.config import Config

if TYPE_CHECKING:
    from hobnob.cli.gateways import Here, There

Payload = dict[str, Any]
T = TypeVar("T")


def ask(loaded: Config, method: str, **params: Any) -> Payload:
    """One method, for commands that need no more. Nothing is run for it when no gateway is running."""

    async def once(reached: There | Here) -> Payload:
        return await reached.call(method, **params)

    return run(loaded, once)


def run(loaded: Config, act: Callable[[There | Here], Coroutine[Any, Any, T]], *, working: bool = False) -> T:
    async def main() -> T:
        async with open_reach(loaded, working=working) as reached:
            return await act(reached)

    return asyncio.run(main())


@asynccontextmanager
async def open_reach(loaded: Config, *, working: bool = False) -> AsyncIterator[There | Here]:
    """The gateway that is running, else one here; that one runs turns only when `working`.

    Two commands at a time take turns at the store.
    """
    async with AsyncExitStack() as stack:
        from hobnob.cli import gateways  # here, so that commands that need none start sooner

        yield await gateways.enter(stack, loaded, working=working)


async def left_over(reached: There | Here) -> int:
    """How many exchanges stop when a command ends that was its own gateway."""
    if not reached.here:
        return 0
    page = await reached.call("exchanges.list", limit=200)
    return sum(each["state"] == "open" for each in page["exchanges"])


async def until(last: asyncio.Future[Any], following: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
    """What `following` gives, one after the other, until `last` is there."""
    while True:
        event = asyncio.ensure_future(following())
        try:
            await asyncio.wait([event, last], return_when=asyncio.FIRST_COMPLETED)
            if not event.done():
                return
            if event.result() is None:  # lost the thread; the end still comes
                await asyncio.wait([last])
                return
            yield event.result()
        finally:
            event.cancel()
