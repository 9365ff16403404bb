"""The settings tree. One field is one setting: its description is its line in the reference."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from hobnob import keys
from hobnob.config.values import (
    Action,
    AgentId,
    AgentIdOrAny,
    AnyQueueMode,
    Api,
    MainKey,
    SandboxMode,
    Scope,
    Secret,
    Section,
    Thinking,
    Visibility,
    section,
)


class SendMatch(Section):
    channel: str | None = None
    """Channel name, for example `discord`."""
    chat_type: Literal["direct", "group", "channel"] | None = None
    """Kind of chat."""
    key_prefix: str | None = None
    """Start of the session key, with or without `agent:<id>:`."""
    raw_key_prefix: str | None = None
    """Start of the full session key."""

    @field_validator("chat_type", mode="before")
    @classmethod
    def _dm_is_direct(cls, value: object) -> object:
        lower = value.lower() if isinstance(value, str) else value
        return "direct" if lower == "dm" else lower


class SendRule(Section):
    match: SendMatch = section(SendMatch)
    """Which sessions the rule is about; an empty match is all of them."""
    action: Action = "allow"
    """What it says. Any matching deny wins over any allow."""


class SendPolicy(Section):
    rules: list[SendRule] = []
    """Rules by channel, chat type or key."""
    default: Action = "allow"
    """What holds when no rule matches."""


class AgentToAgentLimits(Section):
    max_ping_pong_turns: int = Field(5, ge=0, le=5)
    """Most reply-back turns after an agent answered another."""
    max_hops: int = Field(8, ge=1, le=64)
    """Longest chain of sends that cause sends."""


class SessionSettings(Section):
    scope: Literal["per-sender", "global"] = "per-sender"
    """`global` puts every conversation of an agent into its main session."""
    main_key: MainKey = Field("main", max_length=64)
    """Another word for `main` in session keys."""
    dm_scope: keys.DmScope = "main"
    """Where direct chats live: all in main, or one session per peer."""
    identity_links: dict[str, list[str]] = {}
    """One person's ids on several channels, by a name of your choice."""
    send_policy: SendPolicy = section(SendPolicy)
    """Which sessions may be sent into."""
    agent_to_agent: AgentToAgentLimits = section(AgentToAgentLimits)
    """Limits of agents talking to each other."""


class ToolRules(Section):
    profile: Literal["minimal", "messaging", "coding", "full"] | None = None
    """The tools to start from. No profile means `full`."""
    allow: list[str] | None = None
    """Only these tools (names, `group:<name>` or patterns with `*`)."""
    also_allow: list[str] = []
    """These too, on top of the profile."""
    deny: list[str] = []
    """Never these; wins over everything else."""


class SubagentToolRules(Section):
    allow: list[str] | None = None
    """Only these tools for sub-agents; may name session tools."""
    also_allow: list[str] = []
    """Session tools that sub-agents get all the same."""
    deny: list[str] = []
    """Never these for sub-agents."""


class SubagentTools(Section):
    tools: SubagentToolRules = section(SubagentToolRules)
    """The tools of sub-agents."""


class SessionTools(Section):
    visibility: Visibility = "tree"
    """What an agent sees: its session, what it spawned, its agent's sessions, or all."""


class AgentToAgent(Section):
    enabled: bool = False
    """Let agents reach sessions of other agents (needs visibility `all`)."""
    allow: list[str] = []
    """When set, both agents must match one of these (patterns with `*`)."""


class Attachments(Section):
    enabled: bool = True
    """Let `sessions_spawn` hand files to the child."""
    max_files: int = Field(50, ge=1)
    """Most files in one spawn."""
    max_file_bytes: int = Field(1024 * 1024, ge=1)
    """Largest single file."""
    max_total_bytes: int = Field(5 * 1024 * 1024, ge=1)
    """All files of a spawn together."""
    retain_on_session_keep: bool = False
    """Keep the files when the child session is kept."""


class SpawnTool(Section):
    attachments: Attachments = section(Attachments)
    """Files handed to a child."""


class Tools(ToolRules):
    sessions: SessionTools = section(SessionTools)
    """The session tools."""
    agent_to_agent: AgentToAgent = section(AgentToAgent)
    """Reaching other agents' sessions."""
    subagents: SubagentTools = section(SubagentTools)
    """What sub-agents may use."""
    sessions_spawn: SpawnTool = Field(default_factory=SpawnTool, alias="sessions_spawn")
    """The spawn tool."""


class Model(Section):
    primary: str | None = None
    """The model, as `provider/model`."""
    fallbacks: list[str] = []
    """Tried in this order when the primary fails."""


def _model(value: object) -> object:
    return {"primary": value} if isinstance(value, str) else value


ModelChoice = Annotated[Model, BeforeValidator(_model)]


class DefaultSandbox(Section):
    mode: SandboxMode = "off"
    """Which sessions run their tools in a sandbox."""
    workspace_access: Literal["none", "ro", "rw"] = "rw"
    """What the sandbox may do with the workspace."""
    session_tools_visibility: Literal["spawned", "all"] = "spawned"
    """`spawned` keeps the session tools of sandboxed sessions to what they spawned."""


class Sandbox(Section):
    mode: SandboxMode | None = None
    """Which of this agent's sessions run their tools in a sandbox."""
    workspace_access: Literal["none", "ro", "rw"] | None = None
    """What this agent's sandbox may do with its workspace."""


class DefaultSubagents(Section):
    max_spawn_depth: int = Field(1, ge=1, le=5)
    """How deep sub-agents may spawn; 1 means they cannot."""
    max_children_per_agent: int = Field(5, ge=1, le=20)
    """Most live children of one session."""
    max_concurrent: int = Field(8, ge=1)
    """Most sub-agent turns at a time."""
    archive_after_minutes: int = Field(60, ge=0)
    """When a finished child is archived; 0 is never."""
    run_timeout_seconds: int = Field(0, ge=0)
    """How long a child may run when the spawn does not say; 0 is no limit."""
    announce_timeout_ms: int = Field(90_000, ge=1000)
    """How long an announce step may take."""
    on_complete: Literal["post", "wake"] = "post"
    """`wake` also gives the requester a turn when a child is done."""
    model: ModelChoice | None = None
    """The model of children; unset means the target agent's."""
    thinking: Thinking | None = None
    """The thinking level of children."""


class Subagents(Section):
    allow_agents: list[str] = []
    """Agents this one may spawn besides itself; `*` is every configured one."""
    delegate: list[AgentId] = []
    """Agents whose children may use tools this one may not."""
    model: ModelChoice | None = None
    """The model of this agent's children."""
    thinking: Thinking | None = None
    """The thinking level of this agent's children."""


class AgentDefaults(Section):
    model: ModelChoice = section(Model)
    """The model of agents that name none; unset means the built-in `rehearsal` model."""
    workspace: str | None = None
    """Folder of the default agent's files; unset means one in the state directory."""
    thinking_default: Thinking = "off"
    """The thinking level of sessions that set none."""
    max_concurrent: int = Field(16, ge=1)
    """Most turns at a time."""
    timeout_seconds: int = Field(172_800, ge=1)
    """Longest turn."""
    max_steps: int = Field(100, ge=1)
    """Most model calls in one turn."""
    sandbox: DefaultSandbox = section(DefaultSandbox)
    """Where tools run."""
    subagents: DefaultSubagents = section(DefaultSubagents)
    """Sub-agents."""


class Agent(Section):
    id: AgentId
    """The agent's id, as in session keys."""
    name: str | None = None
    """The name people see."""
    default: bool = False
    """This agent answers when no agent is named."""
    workspace: str | None = None
    """Folder of the agent's files."""
    model: ModelChoice | None = None
    """The agent's model."""
    tools: ToolRules = section(ToolRules)
    """The agent's tools."""
    sandbox: Sandbox = section(Sandbox)
    """Where its tools run."""
    subagents: Subagents = section(Subagents)
    """What it may spawn."""


class Agents(Section):
    defaults: AgentDefaults = section(AgentDefaults)
    """What holds for every agent."""
    entries: list[Agent] = Field([], alias="list")
    """The agents. None means one agent, `main`."""

    @field_validator("entries")
    @classmethod
    def _one_of_each(cls, agents: list[Agent]) -> list[Agent]:
        ids = [agent.id for agent in agents]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        if twice:
            raise ValueError(f"these ids stand twice: {', '.join(twice)}")
        if sum(agent.default for agent in agents) > 1:
            raise ValueError("only one agent can be the default")
        return agents


class ModelEntry(Section):
    model_config = ConfigDict(extra="allow")
    id: str
    """The provider's name of the model."""
    name: str | None = None
    """The name people see."""
    context_window: int | None = Field(None, ge=1)
    """Tokens the model can read."""
    max_tokens: int | None = Field(None, ge=1)
    """Tokens the model may write."""
    reasoning: bool = False
    """The model takes a thinking level."""


class Provider(Section):
    base_url: str = ""
    """Address of the service."""
    api_key: SecretStr | None = None
    """The key; write `${NAME}` to take it from the environment."""
    api: Api = "openai-completions"
    """The wire format it speaks; `pydantic-ai` is all that package knows, if you install it."""
    models: list[ModelEntry] = []
    """The models it offers."""
    max_concurrent: int = Field(32, ge=1)
    """Most calls to it at a time."""


class RehearsalCall(Section):
    name: str
    """The tool."""
    arguments: dict[str, Any] = {}
    """What it is called with."""


class RehearsalStep(Section):
    text: str | None = None
    """What the model says."""
    tool_calls: list[RehearsalCall] = []
    """The tools it calls."""
    delay_ms: int = Field(0, ge=0)
    """How long it takes before it answers."""
    error: str | None = None
    """It fails with this message instead."""
    times: int | None = Field(None, ge=1)
    """How often it fails before it goes on to the next step; unset means always."""


def _step(value: object) -> object:
    return {"text": value} if isinstance(value, str) else value


class Rehearsal(Section):
    scripts: dict[str, list[Annotated[RehearsalStep, BeforeValidator(_step)]]] = {}
    """What the built-in model says, answer by answer, in the session of that key (`*`: in all others)."""


class Models(Section):
    rehearsal: Rehearsal = section(Rehearsal)
    """The built-in offline model."""
    providers: dict[str, Provider] = {}
    """Where models come from, by a name of your choice."""


class Acp(Section):
    enabled: bool = True
    """Let agents spawn external harnesses."""
    default_agent: AgentId | None = None
    """The harness when a spawn names none."""
    allowed_agents: list[AgentIdOrAny] = []
    """When set, only these harnesses; `*` is any."""


class Hooks(Section):
    enabled: bool = False
    """Take calls from other systems."""
    token: SecretStr | None = None
    """The secret callers show; not the gateway's."""
    path: str = "/hooks"
    """Where hooks are called."""
    max_body_bytes: int = Field(262_144, ge=1)
    """Largest call."""
    default_session_key: str | None = None
    """The session hooks run in; unset means a new one each."""
    allow_request_session_key: bool = False
    """Let a call name its session."""
    allowed_session_key_prefixes: list[str] = []
    """When set, how such a name must begin."""
    allowed_agent_ids: list[str] = []
    """When set, the agents a call may name."""
    mappings: list[dict[str, Any]] = []
    """Calls of other shapes, and how they are read."""

    @model_validator(mode="after")
    def _need_a_token(self) -> Hooks:
        if self.enabled and not (self.token and self.token.get_secret_value()):
            raise ValueError("hooks need a secret of their own: set hooks.token")
        return self


class NamedToken(Section):
    name: str
    """Who it is for."""
    token: Secret
    """The secret."""
    scopes: list[Scope]
    """What its holder may do."""
    agents: list[AgentId] | None = None
    """When set, only these agents' sessions."""


class Auth(Section):
    mode: Literal["token", "password"] = "token"
    """How people come in."""
    token: Secret | None = None
    """The owner's token; unset means `$HOBNOB_TOKEN`, else one is made and kept."""
    password: Secret | None = None
    """The password, where the mode says so."""
    tokens: list[NamedToken] = []
    """Narrower tokens for other people and programs."""


class GatewayTools(Section):
    allow: list[str] = []
    """Tools that may be called over HTTP although they are off there by default."""
    deny: list[str] = []
    """Tools that may not be called over HTTP."""


class Gateway(Section):
    bind: str = "127.0.0.1"
    """Address to listen on; `loopback` and `lan` are understood."""
    port: int = Field(4626, ge=0, le=65535)
    """Port to listen on."""
    auth: Auth = section(Auth)
    """Who may come in."""
    tools: GatewayTools = section(GatewayTools)
    """Tools over HTTP."""
    trusted_proxies: list[str] = []
    """Addresses whose forwarded headers are believed."""

    @field_validator("bind")
    @classmethod
    def _named_addresses(cls, value: str) -> str:
        return {"loopback": "127.0.0.1", "lan": "0.0.0.0"}.get(value, value)  # noqa: S104 - the word lan means it


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


class Channel(Section):
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
    channels: dict[str, Channel] = {}
    """Chat channels, by name."""
    gateway: Gateway = section(Gateway)
    """The gateway."""
    hooks: Hooks = section(Hooks)
    """Calls from other systems."""
    cron: Cron = section(Cron)
    """Scheduled jobs."""
    acp: Acp = section(Acp)
    """External harnesses over the Agent Client Protocol."""
    store: StoreSettings = section(StoreSettings)
    """The database."""

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
