"""Receipts that a platform sends later, apart from the call that sent a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

RECEIPT_S = 30.0


class Receipts:
    """Parts that were sent over one connection and whose receipts have not arrived yet."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[str]] = {}

    async def after(self, send: Callable[[], None], key: str, timeout_s: float = RECEIPT_S) -> str:
        """Send a part with this key, and wait for its receipt. Returns the platform's id for it.

        Raises TimeoutError, or ConnectionError if the connection was lost: the part may have been sent.
        """
        receipt: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[key] = receipt
        try:
            send()
            async with asyncio.timeout(timeout_s):
                return await receipt
        finally:
            if self._waiting.get(key) is receipt:
                del self._waiting[key]

    def arrived(self, key: str, message_id: str | None = None) -> None:
        """The receipt of a part arrived; without an id of the platform, the key is its id."""
        receipt = self._waiting.pop(key, None)
        if receipt is not None and not receipt.done():
            receipt.set_result(message_id or key)

    def lost(self) -> None:
        """The connection was lost: no receipt arrives any more."""
        while self._waiting:
            _, receipt = self._waiting.popitem()
            if not receipt.done():
                receipt.set_exception(ConnectionError("the connection was lost before the receipt arrived"))
