"""The registry of checks, and the gateway under test as they see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hobnob.contract.client import ContractClient, Unsupported
from hobnob.records import Struct

RESTART_S = 120.0


class Gateway(Struct, frozen=True):
    """The gateway under test. `restart`: a shell command that kills and starts it again."""

    client: ContractClient
    restart: str | None = None

    async def restarted(self) -> None:
        """Run the restart command and wait until the gateway answers. Raises Unsupported without one."""
        if self.restart is None:
            raise Unsupported("no --restart-command was given")
        process = await asyncio.create_subprocess_shell(self.restart)
        if await process.wait() != 0:
            raise AssertionError(f"the restart command failed: {process.returncode}")
        await self.client.until_up(RESTART_S)


class Check(Struct, frozen=True):
    name: str
    section: str
    title: str
    function: Callable[[Gateway], Awaitable[None]]


CHECKS: list[Check] = []


def check(section: str) -> Callable[[Callable[[Gateway], Awaitable[None]]], Callable[..., Any]]:
    """Register a function as a check. Its docstring is the rule, an AssertionError says it is broken."""

    def register(function: Callable[[Gateway], Awaitable[None]]) -> Callable[..., Any]:
        title = (function.__doc__ or "").strip()
        CHECKS.append(Check(function.__name__, section, title, function))
        return function

    return register


def require(condition: object, what: str, found: object = None) -> None:
    """Fail the check unless the condition holds."""
    if not condition:
        shown = f": {str(found)[:600]}" if found is not None else ""
        raise AssertionError(f"{what}{shown}")
