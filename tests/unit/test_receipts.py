"""Receipts that arrive apart from the call that sent a message."""

from __future__ import annotations

import asyncio

import pytest

from hobnob.channels.receipts import Receipts


async def test_a_receipt_completes_the_part_with_its_key() -> None:
    receipts = Receipts()
    sent: list[str] = []
    first = asyncio.create_task(receipts.after(lambda: sent.append("one"), "1"))
    second = asyncio.create_task(receipts.after(lambda: sent.append("two"), "2"))
    await asyncio.sleep(0)
    receipts.arrived("2", "id-of-two")
    receipts.arrived("unknown")
    receipts.arrived("1")
    assert (await first, await second, sent) == ("1", "id-of-two", ["one", "two"])


async def test_without_a_receipt_the_part_may_have_been_sent() -> None:
    receipts = Receipts()
    with pytest.raises(TimeoutError):
        await receipts.after(lambda: None, "1", timeout_s=0.01)
    receipts.arrived("1")


async def test_a_lost_connection_ends_the_wait() -> None:
    receipts = Receipts()
    waiting = asyncio.create_task(receipts.after(lambda: None, "1"))
    await asyncio.sleep(0)
    receipts.lost()
    with pytest.raises(ConnectionError):
        await waiting


async def test_a_part_that_was_not_written_waits_for_nothing() -> None:
    receipts = Receipts()

    def refuse() -> None:
        raise OSError("not writable")

    with pytest.raises(OSError, match="not writable"):
        await receipts.after(refuse, "1")
    receipts.lost()
