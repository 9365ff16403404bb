"""The event loop of the tests: it closes what a server accepted at the last moment."""

import asyncio


class TestLoop(asyncio.SelectorEventLoop):
    """An event loop that ends the connections its servers accepted before it closes.

    A client can connect while the server of a test stops. Such a connection has an owner on no side; without
    this the garbage collector finds it during any later test, which then fails. Connections that the code
    under test opened are left alone: one that nobody closed still fails a test.
    """

    __test__ = False

    def close(self) -> None:
        if not self.is_closed() and not self.is_running():
            self.run_until_complete(_end_accepted(self))
        super().close()


async def _end_accepted(loop: TestLoop) -> None:
    for _ in range(3):  # closing takes up to three rounds: the task, the transport, its socket
        await asyncio.sleep(0)
    transports = loop._transports.values()  # type: ignore[attr-defined]  # asyncio has no list of its own
    accepted = [transport for transport in transports if transport._server is not None]
    for transport in accepted:
        transport.abort()
    if accepted:
        await asyncio.sleep(0)


class Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return TestLoop()
