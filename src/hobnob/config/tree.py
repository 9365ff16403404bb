"""The settings tree. One field is one setting; the string below it is its description in the reference."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hobnob import keys
from hobnob.config.agents import Agent, Agents
from hobnob.config.channels.chats import Binding, Channels, Commands, GroupChat, InboundMessages
from hobnob.config.cron import Cron
from hobnob.config.external import Acp, Mcp
from hobnob.config.fields import (
    NEEDS_RESTART,
    AnyQueueMode,
    Passphrase,
    Section,
    section,
)
from hobnob.config.gateway import GatewaySettings, Hooks
from hobnob.config.grants import Grant, GrantIndex
from hobnob.config.models import Models
from hobnob.config.node_host import NodeHost
from hobnob.config.sessions import SessionSettings
from hobnob.config.tools import Tools


class Queue(Section):
    mode: AnyQueueMode = "followup"
    """How a message that arrives during a turn is handled."""
    by_channel: dict[str, AnyQueueMode] = {}
    """The queue mode by channel name; wins over `mode`."""


class Messages(Section):
    queue: Queue = section(Queue)
    """Messages that arrive during a turn."""
    max_bytes: int = Field(1024 * 1024, ge=1)
    """Largest message or task, as UTF-8, wherever it comes from; attachments have limits of their own."""
    group_chat: GroupChat = section(GroupChat)
    """Group chats."""
    inbound: InboundMessages = section(InboundMessages)
    """Messages from chats."""
    response_prefix: str | None = None
    """Text before each answer in a chat."""
    ack_reaction: str | None = None
    """Emoji with which messages are acknowledged; unset means that of the agent, else 👀."""
    ack_reaction_scope: Literal["group-mentions", "group-all", "direct", "all", "off"] = "group-mentions"
    """Which messages are acknowledged: in groups those that address the bot, or all; in direct chats."""


class StoreSettings(Section):
    url: str | None = None
    """Database as `sqlite:///<path>` or `postgresql://…`; unset means `hobnob.db` in the state directory."""
    secret_key: Passphrase | None = None
    """Encrypts the secrets that gateways on one PostgreSQL share; unset means `$HOBNOB_STORE_KEY`."""
    files: Literal["shared", "local"] = "shared"
    """Whether gateways on one PostgreSQL share a disk. With `local`, a session stays where it ran first."""


class Settings(Section):
    session: SessionSettings = section(SessionSettings)
    """Sessions."""
    agents: Agents = section(Agents)
    """Agents."""
    grants: list[Grant] = []
    """Rights between agents in addition to what `visibility` and `allowAgents` give."""
    tools: Tools = section(Tools)
    """Tools."""
    models: Annotated[Models, NEEDS_RESTART] = section(Models)
    """Models."""
    messages: Messages = section(Messages)
    """Messages."""
    channels: Channels = section(Channels)
    """Chat channels."""
    bindings: list[Binding] = []
    """Which agent answers whom; the most exact one counts, then the first. Others reach the default agent."""
    commands: Commands = section(Commands)
    """Slash commands in chats."""
    gateway: GatewaySettings = section(GatewaySettings)
    """The gateway."""
    hooks: Hooks = section(Hooks)
    """Hooks: calls from other systems."""
    node_host: NodeHost = section(NodeHost)
    """This machine as a node of another gateway (`hobnob node run`)."""
    cron: Cron = section(Cron)
    """Scheduled jobs."""
    acp: Annotated[Acp, NEEDS_RESTART] = section(Acp)
    """External harnesses over the Agent Client Protocol."""
    mcp: Annotated[Mcp, NEEDS_RESTART] = section(Mcp)
    """Tools of MCP servers."""
    store: Annotated[StoreSettings, NEEDS_RESTART] = section(StoreSettings)
    """The database."""

    @model_validator(mode="after")
    def _check_ids(self) -> Settings:
        """An id names an agent or a harness, not both: their session keys would collide."""
        if both := sorted(self.acp.harnesses.keys() & self._agents.keys()):
            raise ValueError(f"acp.harnesses: these ids already belong to agents: {', '.join(both)}")
        return self

    @model_validator(mode="after")
    def _check_hooks_token(self) -> Settings:
        auth, token = self.gateway.auth, self.hooks.token
        credentials = [auth.token, auth.password, *(named.token for named in auth.tokens)]
        if token is not None and token in credentials:
            raise ValueError("hooks.token is also a gateway credential: hooks need their own secret")
        return self

    @cached_property
    def _agents(self) -> dict[str, Agent]:
        return {agent.id: agent for agent in self.agents.entries or [Agent(id=keys.DEFAULT_AGENT)]}

    @cached_property
    def home_name(self) -> str | None:
        """The home of sessions whose files are here; None where all gateways have the same files."""
        is_one_of_many = (self.store.url or "").startswith("postgres") and self.store.files == "local"
        return self.gateway.known_as if is_one_of_many else None

    @cached_property
    def grant_index(self) -> GrantIndex:
        return GrantIndex(self.grants, self.session.main_key)

    def agent_list(self) -> list[Agent]:
        """The configured agents, or the one default agent."""
        return list(self._agents.values())

    def agent(self, agent_id: str) -> Agent | None:
        return self._agents.get(agent_id)

    @cached_property
    def default_agent(self) -> Agent:
        agents = self.agent_list()
        return next((a for a in agents if a.default), agents[0])

    def viewer(self, agent: str | None = None, own: keys.SessionKey | None = None) -> keys.Viewer:
        """How keys are read and displayed for an agent; without one, for the gateway API, with full keys."""
        return keys.Viewer(
            agent=agent or self.default_agent.id,
            own=own,
            main_key=self.session.main_key,
            global_scope=self.session.scope == "global",
            short=agent is not None,
        )
