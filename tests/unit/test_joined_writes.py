"""Frames of one round of the loop leave together, and none is lost or late for it."""

import asyncio

from hobnob.api.uvicorn_protocols import COALESCED_BYTES, CoalescingTransport


class Recorder(asyncio.Transport):
    """Stands for the network: keeps what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[bytes | str] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.done.append(bytes(data))

    def close(self) -> None:
        self.done.append("closed")
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


async def test_writes_of_one_round_leave_together_and_in_order() -> None:
    network = Recorder()
    transport = CoalescingTransport(network)
    for piece in (b"a", b"b", b"c"):
        transport.write(piece)
    assert network.done == []
    await asyncio.sleep(0)
    transport.write(b"d")
    await asyncio.sleep(0)
    assert network.done == [b"abc", b"d"]


async def test_more_than_some_bytes_leave_at_once_so_that_the_sender_can_be_held_back() -> None:
    network = Recorder()
    transport = CoalescingTransport(network)
    transport.write(b"a")
    transport.write(b"b" * COALESCED_BYTES)
    assert network.done == [b"a" + b"b" * COALESCED_BYTES]
    transport.write(b"c")
    await asyncio.sleep(0)
    assert network.done[1:] == [b"c"]


async def test_what_waits_leaves_before_the_connection_is_closed() -> None:
    network = Recorder()
    transport = CoalescingTransport(network)
    transport.write(b"last words")
    transport.close()
    await asyncio.sleep(0)
    assert network.done == [b"last words", "closed"]


async def test_nothing_is_written_to_a_connection_that_broke_meanwhile() -> None:
    network = Recorder()
    transport = CoalescingTransport(network)
    transport.write(b"too late")
    network.closing = True
    await asyncio.sleep(0)
    assert network.done == []


async def test_everything_else_is_the_transports_own() -> None:
    network = Recorder()
    transport = CoalescingTransport(network)
    network.closing = True
    assert transport.is_closing()
