"""Settings of the gateway: listener, authentication, proxies and hooks."""

from __future__ import annotations

import re
import socket
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from hobnob.config.fields import (
    NEEDS_RESTART,
    AgentId,
    Network,
    Scope,
    Secret,
    Section,
    Thinking,
    section,
)

WakeMode = Literal["now", "next-heartbeat"]


class HookMatch(Section):
    path: str | None = None
    """Path segment after `hooks.path` in the URL."""
    payload: dict[str, str | int | bool] = {}
    """Values the payload must have, by path, such as `repository.name` or `items[0].id`."""
    source: str | None = None
    """The value of `source` in the payload."""


class HookSignature(Section):
    kind: Literal["github", "slack", "stripe", "hmac"]
    """Whose way of signing it is; `hmac` is HMAC-SHA256 of the body in a header of your choice."""
    secret: Secret
    """The secret that the sender signs with."""
    header: str = "x-signature"
    """For `hmac`: the header of the signature."""
    prefix: str = ""
    """For `hmac`: what stands before the signature in its header, such as `sha256=`."""
    encoding: Literal["hex", "base64"] = "hex"
    """For `hmac`: how the signature is written."""
    timestamp_header: str | None = None
    """For `hmac`: a header with the time in seconds, which is signed as `<time>.<body>`."""
    id_header: str | None = None
    """For `hmac`: a header with the sender's id of the delivery, the same when it is repeated."""
    tolerance_seconds: int = Field(300, ge=1, le=86_400)
    """How old a signature with a time may be."""


class HookMapping(Section):
    match: HookMatch
    """Which calls the mapping applies to."""
    action: Literal["agent", "wake"] = "agent"
    """`agent` starts a turn in a hook session; `wake` sends the message to the main session."""
    message_template: str | None = None
    """Template of the message; `{{repository.name}}` inserts that value of the payload."""
    text_template: str | None = None
    """Other name for `messageTemplate`; wins if both are set."""
    name: str = "Hook"
    """The source of the message, as shown to the agent."""
    agent_id: AgentId | None = None
    """The agent; unset means the default agent."""
    session_key: str | None = None
    """The session key; may contain payload values, as in `hook:{{repository.name}}`."""
    wake_mode: WakeMode = "now"
    """For `wake`: `now` starts a turn; `next-heartbeat` only adds the message to the transcript."""
    model: str | None = None
    """Model of the turn; unset means the session's."""
    thinking: Thinking | None = None
    """Thinking level of the turn; unset means the session's."""
    timeout_seconds: int | None = Field(None, ge=1)
    """Time limit of the turn."""
    deliver: bool | None = None
    """Whether the answer is posted to a chat; unset means yes if `channel` and `to` are set."""
    channel: str | None = None
    """The channel of the chat; `last` or unset means where people last wrote to the agent."""
    to: str | None = None
    """The recipient on the channel; may contain payload values."""
    for_each: str | None = None
    """The name of a list in the payload: one message per item, which templates see as its only one."""
    verify: HookSignature | None = None
    """How calls are signed. A signed call needs no hook token; one that is not is refused."""

    @model_validator(mode="after")
    def _need_match_and_template(self) -> HookMapping:
        if self.match.path is None and not self.match.payload and self.match.source is None:
            raise ValueError("a mapping needs a match: set match.path, match.payload or both")
        if bool(self.to) != (self.channel not in (None, "last")):
            raise ValueError("set channel and to together, or neither for the last chat")
        if self.template is None:
            raise ValueError("a mapping needs a message: set messageTemplate")
        return self

    @property
    def template(self) -> str | None:
        return self.text_template or self.message_template


class Hooks(Section):
    enabled: bool = False
    """Whether other systems may call hooks."""
    token: SecretStr | None = None
    """The secret of hook calls; must differ from the gateway's credentials."""
    path: Annotated[str, NEEDS_RESTART] = "/hooks"
    """URL path of the hook routes."""
    max_body_bytes: Annotated[int, NEEDS_RESTART] = Field(262_144, ge=1)
    """Largest request body."""
    default_session_key: str | None = None
    """The session of calls that name none; unset means a new session for each call."""
    allow_request_session_key: bool = False
    """Whether a call may name its session."""
    allowed_session_key_prefixes: list[str] = []
    """When set, a session key from a call must start with one of these."""
    allowed_agent_ids: list[str] = []
    """When set, only these agents may be named by a call."""
    mappings: list[HookMapping] = []
    """Mappings for payloads of other systems; the first that matches is used."""

    @field_validator("path")
    @classmethod
    def _plain_path(cls, value: str) -> str:
        path = "/" + value.strip("/ ")
        if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
            raise ValueError("must be a path such as /hooks, of letters, digits and . _ ~ -")
        return path

    @model_validator(mode="after")
    def _need_a_token(self) -> Hooks:
        if self.enabled and not (self.token and self.token.get_secret_value()):
            raise ValueError("hooks need their own secret: set hooks.token")
        return self


class NamedToken(Section):
    name: str
    """Name of the credential, unique."""
    token: Secret
    """The secret."""
    scopes: list[Scope]
    """Scopes of the token; `operator.write` includes read, `operator.admin` includes both."""
    agents: list[AgentId] | None = None
    """When set, only sessions of these agents."""


class Auth(Section):
    mode: Literal["token", "password"] = "token"
    """The owner's credential: a token or a password."""
    token: Secret | None = None
    """The owner's token; unset means `$HOBNOB_TOKEN`, or else a generated one in the state directory."""
    password: Secret | None = None
    """The owner's password, for mode `password`."""
    tokens: list[NamedToken] = []
    """Tokens with limited scopes, for other people and programs."""

    @field_validator("tokens")
    @classmethod
    def _check_names(cls, tokens: list[NamedToken]) -> list[NamedToken]:
        names = [token.name for token in tokens]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise ValueError(f"duplicate token names: {', '.join(duplicates)}")
        if reserved := [name for name in names if name in ("owner", "hooks")]:
            raise ValueError(f"{reserved[0]} is the name of a built-in credential; choose another")
        return tokens


class GatewayTools(Section):
    allow: list[str] = []
    """Tools that may be called over HTTP in addition to the default ones."""
    deny: list[str] = []
    """Tools that may not be called over HTTP."""


class ControlUi(Section):
    allowed_origins: list[str] = []
    """Origins of other web pages that may connect, as `https://host:port`."""


class GatewayLimits(Section):
    """Those per token hold for tokens without `operator.admin`: owners are limited in bytes only."""

    unauthenticated: int = Field(512, ge=2)
    """Connections that have not signed in; for one more, the oldest is closed."""
    unauthenticated_per_address: int = Field(256, ge=1)
    """The same from one address; this machine is one address."""
    sign_in_seconds: int = Field(10, ge=1)
    """Time for the head of an HTTP request, and for the handshake of a WebSocket."""
    connections: int = Field(256, ge=1)
    """Connections of one token."""
    streams: int = Field(64, ge=1)
    """Event streams over HTTP of one token."""
    subscriptions: int = Field(1024, ge=1)
    """Transcripts that one token is subscribed to, over all its WebSockets."""
    requests: int = Field(512, ge=1)
    """Requests of one token in flight, including those that wait for a turn to end."""
    concurrent_requests: int = Field(8, ge=1)
    """Requests of one token that are worked on at a time; the others wait."""
    bytes_in_flight: int = Field(64 * 1024 * 1024, ge=64 * 1024)
    """Bytes of all requests of one token that are received or worked on; also of the owner's."""
    request_bytes: int = Field(8 * 1024 * 1024, ge=64 * 1024)
    """Largest frame after sign-in and body of `/rpc`; JSON may need six times `messages.maxBytes`."""


class Tracing(Section):
    """Traces for OpenTelemetry."""

    endpoint: str | None = None
    """URL of a collector that takes OTLP over HTTP with JSON, as `http://127.0.0.1:4318/v1/traces`."""
    headers: dict[str, Secret] = {}
    """HTTP headers for the collector, such as a key."""
    service_name: str = "hobnob"
    """The name of this gateway in the traces."""
    include_text: bool = False
    """Whether traces contain what was said, without known secrets."""

    @field_validator("endpoint")
    @classmethod
    def _http_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must be a URL such as http://127.0.0.1:4318/v1/traces")
        return value


class NodePairing(Section):
    auto_approve_local: bool = True
    """Whether a node on this machine is connected before its surface is approved."""
    auto_approve_cidrs: list[Network] = []
    """Networks whose nodes are treated like those of this machine."""


class NodeCommands(Section):
    allow: list[str] = []
    """Commands of nodes beyond the usual ones, which may be approved; names or patterns with `*`."""
    deny: list[str] = []
    """Commands that are never available; wins over `allow`."""


class NodeSettings(Section):
    pairing: NodePairing = section(NodePairing)
    """How nodes are let in."""
    commands: NodeCommands = section(NodeCommands)
    """Which commands of nodes may be approved."""
    tools: list[str] = ["web_fetch"]
    """Tools of turns that a node starts (names, `group:<name>` or patterns with `*`)."""
    sessions: list[str] = []
    """Sessions besides their own that nodes may write to and follow, such as `main`; may contain `*`."""


class GatewaySettings(Section):
    name: Annotated[str | None, NEEDS_RESTART] = Field(None, min_length=1, max_length=64)
    """The name of this gateway among several on one database; that of the machine by default."""
    bind: Annotated[str, NEEDS_RESTART] = "127.0.0.1"
    """Address to listen on; `loopback` means `127.0.0.1`, `lan` means `0.0.0.0`."""
    port: Annotated[int, NEEDS_RESTART] = Field(4626, ge=0, le=65535)
    """Port to listen on."""
    auth: Auth = section(Auth)
    """Authentication."""
    tools: GatewayTools = section(GatewayTools)
    """Tools that may be called over HTTP."""
    control_ui: ControlUi = section(ControlUi)
    """Web pages."""
    limits: GatewayLimits = section(GatewayLimits)
    """Limits of connections and requests."""
    tracing: Annotated[Tracing, NEEDS_RESTART] = section(Tracing)
    """Traces for OpenTelemetry; off without an endpoint."""
    nodes: NodeSettings = section(NodeSettings)
    """Nodes: devices and hosts that connect and offer commands."""
    trusted_proxies: list[str] = []
    """Addresses or networks of proxies whose forwarded headers are trusted."""

    @property
    def known_as(self) -> str:
        """The name of this gateway among those of its database."""
        return self.name or socket.gethostname()

    @field_validator("bind")
    @classmethod
    def _named_addresses(cls, value: str) -> str:
        return {"loopback": "127.0.0.1", "lan": "0.0.0.0"}.get(value, value)  # noqa: S104 - the word lan means it
