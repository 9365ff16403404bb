"""The settings tree. One field is one setting: its description is its line in the reference."""

from __future__ import annotations

from functools import cached_property

from pydantic import ConfigDict, Field, model_validator

from hobnob import keys
from hobnob.config.acp import Acp
from hobnob.config.agents import Agent, Agents
from hobnob.config.fields import (
    AnyQueueMode,
    Section,
    section,
)
from hobnob.config.gateway import GatewaySettings, Hooks
from hobnob.config.mcp import Mcp
from hobnob.config.models import Models
from hobnob.config.sessions import SessionSettings
from hobnob.config.tools import Tools


class Queue(Section):
    mode: AnyQueueMode = "followup"
    """What happens to input that arrives while a turn runs."""
    by_channel: dict[str, AnyQueueMode] = {}
    """The same, by channel."""


class Messages(Section):
    queue: Queue = section(Queue)
    """Input during a turn."""


class Cron(Section):
    enabled: bool = True
    """Run scheduled jobs."""
    max_concurrent_runs: int = Field(1, ge=1)
    """Most scheduled turns at a time."""


class ChannelSettings(Section):
    model_config = ConfigDict(extra="allow")
    enabled: bool = True
    """Use this channel."""
    owners: list[str] = []
    """Senders who are owners."""


class StoreSettings(Section):
    url: str | None = None
    """`sqlite:///<path>` or `postgresql://…`; unset means `hobnob.db` in the state directory."""


class Settings(Section):
    session: SessionSettings = section(SessionSettings)
    """Sessions."""
    agents: Agents = section(Agents)
    """Agents."""
    tools: Tools = section(Tools)
    """Tools."""
    models: Models = section(Models)
    """Models."""
    messages: Messages = section(Messages)
    """Messages."""
    channels: dict[str, ChannelSettings] = {}
    """Chat channels, by name."""
    gateway: GatewaySettings = section(GatewaySettings)
    """The gateway."""
    hooks: Hooks = section(Hooks)
    """Calls from other systems."""
    cron: Cron = section(Cron)
    """Scheduled jobs."""
    acp: Acp = section(Acp)
    """External harnesses over the Agent Client Protocol."""
    mcp: Mcp = section(Mcp)
    """Tools of MCP servers."""
    store: StoreSettings = section(StoreSettings)
    """The database."""

    @model_validator(mode="after")
    def _one_owner_of_an_id(self) -> Settings:
        """Sessions of one id are one agent's: a harness of the same id would share them with it."""
        if both := sorted(self.acp.harnesses.keys() & self._agents.keys()):
            raise ValueError(f"acp.harnesses: agents have these ids already: {', '.join(both)}")
        return self

    @model_validator(mode="after")
    def _hooks_have_a_secret_of_their_own(self) -> Settings:
        auth, token = self.gateway.auth, self.hooks.token
        owners = [auth.token, auth.password, *(named.token for named in auth.tokens)]
        if token is not None and token in owners:
            raise ValueError("hooks.token opens the gateway too: give hooks a secret of their own")
        return self

    @cached_property
    def _agents(self) -> dict[str, Agent]:
        return {agent.id: agent for agent in self.agents.entries or [Agent(id=keys.DEFAULT_AGENT)]}

    def agent_list(self) -> list[Agent]:
        """The agents there are: those configured, or the one there always is."""
        return list(self._agents.values())

    def agent(self, agent_id: str) -> Agent | None:
        return self._agents.get(agent_id)

    @cached_property
    def default_agent(self) -> Agent:
        agents = self.agent_list()
        return next((a for a in agents if a.default), agents[0])

    def viewer(self, agent: str | None = None, own: keys.SessionKey | None = None) -> keys.Viewer:
        """How an agent's session tools read and show keys; without an agent, how the gateway does."""
        return keys.Viewer(
            agent=agent or self.default_agent.id,
            own=own,
            main_key=self.session.main_key,
            global_scope=self.session.scope == "global",
            short=agent is not None,
        )
