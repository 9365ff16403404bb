"""All tools of a gateway: those that are always there, and those of servers that come and go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hobnob.policy import Verdict
from hobnob.tools import Tool, Toolbox
from hobnob.tools.mcp import McpServers
from hobnob.types import Session


class ToolRegistry:
    def __init__(self, servers: McpServers) -> None:
        self._servers = servers
        self._own: list[Tool] = []

    def add(self, tools: Iterable[Tool]) -> None:
        self._own += tools

    async def ready(self) -> None:
        await self._servers.ready()

    @property
    def tools(self) -> list[Tool]:
        return [*self._own, *self._servers.tools]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.tools)

    def box(self, verdicts: Mapping[str, Verdict], session: Session) -> Toolbox:
        """The tools a session has, by what was decided of each."""
        return Toolbox((t for t in self.tools if t.name in verdicts and verdicts[t.name].allowed), session)
