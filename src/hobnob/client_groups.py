"""Groups of sub-agents for programs: start many, get all results, without a turn of a model.

    async with client.group(timeout_s=600) as group:
        runs = [group.spawn(f"Summarise chapter {n}") for n in range(20)]
    print([run.reply for run in runs])

A lost connection starts nothing twice: each spawn has its own idempotency key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from hobnob.errors import RpcFailed
from hobnob.types import new_id

Payload = dict[str, Any]
Call = Callable[..., Awaitable[Payload]]
CONCURRENCY = 20
_WAIT_S = 60.0  # of one request; a run may take longer
PENDING: Payload = {"status": "timeout"}


@dataclass(eq=False)
class GroupRun:
    """A sub-agent of a group. `await run` waits for its result, which is as in `sessions.wait`."""

    task: str
    work: asyncio.Task[Payload] = field(repr=False)
    result: Payload = field(default_factory=lambda: dict(PENDING))

    def __await__(self) -> Generator[Any, None, Payload]:
        return asyncio.shield(self.work).__await__()

    @property
    def status(self) -> str:
        """`ok`, `no_reply`, `error`, or `timeout` when the group did not wait for its end."""
        return str(self.result["status"])

    @property
    def reply(self) -> str:
        return str(self.result.get("reply", ""))

    @property
    def structured(self) -> Any:
        """The typed result, None without one."""
        return self.result.get("structured")


class Group:
    """Made by `Client.group`. When the context is left, all its sub-agents have ended or the time is over."""

    def __init__(
        self, call: Call, session_key: str, *, timeout_s: float | None = None, concurrency: int = CONCURRENCY
    ) -> None:
        self._call = call
        self._session_key = session_key
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(concurrency)
        self.group_id = new_id()
        self.runs: list[GroupRun] = []

    async def __aenter__(self) -> Group:
        try:
            await self._call("sessions.resolve", key=self._session_key)
        except RpcFailed as problem:
            if problem.reason != "session.not_found" or self._session_key != "main":
                raise
            await self._call("sessions.create", key="main")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all. After an error the waits end; sub-agents that were started go on."""
        works = {run.work for run in self.runs}
        try:
            if works and error is None:
                await asyncio.wait(works, timeout=self._timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
        for run in self.runs:
            if not run.work.cancelled() and (error is None or run.work.exception() is None):
                run.result = run.work.result()

    def spawn(self, task: str, **params: Any) -> GroupRun:
        """Start a sub-agent once fewer than `concurrency` run. `params` are those of `sessions.spawn`."""
        work = asyncio.create_task(self._run(task, new_id(), params), name="sub-agent")
        run = GroupRun(task, work)
        self.runs.append(run)
        return run

    async def _run(self, task: str, key: str, params: dict[str, Any]) -> Payload:
        given = {"collect": True, "groupId": self.group_id} | params
        async with self._slots:
            receipt = await self._call(
                "sessions.spawn", key=self._session_key, task=task, idempotencyKey=key, **given
            )
            while True:
                answer = await self._call("sessions.wait", ids=[receipt["runId"]], timeoutSeconds=_WAIT_S)
                if answer["completed"]:
                    [result] = answer["completed"]
                    return dict(result)
