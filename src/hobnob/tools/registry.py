"""The registry: all tools of a gateway, its own and those of MCP servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from hobnob.policy import Verdict
from hobnob.policy.toolsets import ToolFacts
from hobnob.tools import Tool, Toolbox
from hobnob.tools.mcp import McpServers
from hobnob.types import Session

_TOOLBOXES = 64  # kept; there is one per agent and kind of sandbox


class ToolRegistry:
    def __init__(self, servers: McpServers) -> None:
        self._servers = servers
        self._own: list[Tool] = []
        self._known: list[Tool] = []
        self._facts: tuple[ToolFacts, ...] = ()
        # The verdicts are kept with their toolbox: while they are alive, no other object has their id.
        self._toolboxes: dict[int, tuple[Mapping[str, Verdict], Toolbox]] = {}

    def add(self, tools: Iterable[Tool]) -> None:
        self._own += tools

    async def ready(self) -> None:
        """Wait until each MCP server was tried once."""
        await self._servers.ready()

    @property
    def tools(self) -> list[Tool]:
        return [*self._own, *self._servers.tools]

    @property
    def facts(self) -> tuple[ToolFacts, ...]:
        """The facts of all tools: the same tuple until the tools change."""
        if (tools := self.tools) != self._known:
            self._known, self._facts = tools, tuple(tool.facts for tool in tools)
        return self._facts

    async def warm_up(self) -> None:
        """Describe every tool, which takes some milliseconds each, before the first turn needs it."""
        for tool in self.tools:
            tool.spec(None)
            await asyncio.sleep(0)

    def find(self, name: str) -> Tool | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def toolbox(self, verdicts: Mapping[str, Verdict], session: Session) -> Toolbox:
        """The tools a session has, by the verdict on each.

        Sessions that nobody spawned and that share their verdicts also share the toolbox.
        """
        known = self._toolboxes.get(id(verdicts))
        if known is not None:
            return known[1]
        made = Toolbox((t for t in self.tools if t.name in verdicts and verdicts[t.name].allowed), session)
        if session.spawned_by is None:
            if len(self._toolboxes) >= _TOOLBOXES:
                self._toolboxes.clear()
            self._toolboxes[id(verdicts)] = verdicts, made
        return made
