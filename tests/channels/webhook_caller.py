"""Calls to webhooks of a gateway, as platforms make them: in order, and again until they are accepted."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from hobnob.api.server import page_url, read_address_file

RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Call:
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class WebhookCaller:
    """`target` is the URL without its host, for a call. The gateway is found by the file in its home."""

    def __init__(self, target: Callable[[], str | None]) -> None:
        self.home: Path | None = None
        self.statuses: list[int] = []
        self.newest: Call = Call(b"")
        self._target = target
        self._calls: deque[Call] = deque()
        self._added = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def add(self, call: Call) -> None:
        self._calls.append(call)
        self.newest = call
        self._added.set()

    def url(self) -> str | None:
        """The address of the webhook, while the gateway runs."""
        address = read_address_file(self.home, None) if self.home else None
        target = self._target()
        return f"{page_url(address)}{target}" if address and target else None

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as http:
            while True:
                if not self._calls:
                    self._added.clear()
                    await self._added.wait()
                if await self._accepted(http, self._calls[0]):
                    self._calls.popleft()
                else:
                    await asyncio.sleep(RETRY_S)

    async def _accepted(self, http: aiohttp.ClientSession, call: Call) -> bool:
        if (url := self.url()) is None:
            return False
        headers = {"Content-Type": "application/json", **call.headers}
        try:
            async with http.post(url, data=call.body, headers=headers) as response:
                self.statuses.append(response.status)
                return response.status == 200
        except (aiohttp.ClientError, OSError):
            return False
