"""Settings of the gateway: where it listens, who may come in, what other systems may call."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from hobnob.config.fields import (
    NEEDS_RESTART,
    AgentId,
    Scope,
    Secret,
    Section,
    Thinking,
    section,
)

WakeMode = Literal["now", "next-heartbeat"]


class HookMatch(Section):
    path: str | None = None
    """The word behind `hooks.path` in the address of a call."""
    payload: dict[str, str | int | bool] = {}
    """Values the call has to hold, by their place in it, as in `repository.name` or `items[0].id`."""


class HookMapping(Section):
    match: HookMatch
    """Which calls it is for."""
    action: Literal["agent", "wake"] = "agent"
    """A turn in a session of its own, or a message for the main session."""
    message_template: str | None = None
    """What the agent is told; `{{repository.name}}` is what stands there in the call."""
    text_template: str | None = None
    """The same, for `wake`."""
    name: str = "Hook"
    """What the agent is told the message comes from."""
    agent_id: AgentId | None = None
    """The agent; unset means the default one."""
    session_key: str | None = None
    """The session; it may hold `{{…}}` behind a fixed beginning."""
    wake_mode: WakeMode = "now"
    """For `wake`: have the agent act on it, or only read it at its next turn."""
    model: str | None = None
    """Another model for the turn."""
    thinking: Thinking | None = None
    """Another thinking level for the turn."""
    timeout_seconds: int | None = Field(None, ge=1)
    """Longest turn."""

    @model_validator(mode="after")
    def _need_something_to_go_by(self) -> HookMapping:
        if self.match.path is None and not self.match.payload:
            raise ValueError("say which calls it is for: set match.path, match.payload or both")
        if self.template is None:
            raise ValueError("say what the agent is told: set messageTemplate")
        return self

    @property
    def template(self) -> str | None:
        return self.text_template or self.message_template


class Hooks(Section):
    enabled: bool = False
    """Take calls from other systems."""
    token: SecretStr | None = None
    """The secret callers show; not the gateway's."""
    path: Annotated[str, NEEDS_RESTART] = "/hooks"
    """Where hooks are called."""
    max_body_bytes: Annotated[int, NEEDS_RESTART] = Field(262_144, ge=1)
    """Largest call."""
    default_session_key: str | None = None
    """The session hooks run in; unset means a new one each."""
    allow_request_session_key: bool = False
    """Let a call name its session."""
    allowed_session_key_prefixes: list[str] = []
    """When set, how such a name must begin."""
    allowed_agent_ids: list[str] = []
    """When set, the agents a call may name."""
    mappings: list[HookMapping] = []
    """Calls of other shapes, and how they are read."""

    @field_validator("path")
    @classmethod
    def _plain_path(cls, value: str) -> str:
        path = "/" + value.strip("/ ")
        if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", path):
            raise ValueError("it is a path such as /hooks, of letters, digits and . _ ~ -")
        return path

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

    @field_validator("tokens")
    @classmethod
    def _names_apart(cls, tokens: list[NamedToken]) -> list[NamedToken]:
        names = [token.name for token in tokens]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"these names stand twice: {', '.join(twice)}")
        if taken := [name for name in names if name in ("owner", "hooks")]:
            raise ValueError(f"{taken[0]} is the name of a credential there always is; choose another")
        return tokens


class GatewayTools(Section):
    allow: list[str] = []
    """Tools that may be called over HTTP although they are off there by default."""
    deny: list[str] = []
    """Tools that may not be called over HTTP."""


class ControlUi(Section):
    allowed_origins: list[str] = []
    """Other pages that may talk to this gateway, as `https://host:port`; its own always may."""


class GatewaySettings(Section):
    bind: Annotated[str, NEEDS_RESTART] = "127.0.0.1"
    """Address to listen on; `loopback` and `lan` are understood."""
    port: Annotated[int, NEEDS_RESTART] = Field(4626, ge=0, le=65535)
    """Port to listen on."""
    auth: Auth = section(Auth)
    """Who may come in."""
    tools: GatewayTools = section(GatewayTools)
    """Tools over HTTP."""
    control_ui: ControlUi = section(ControlUi)
    """Pages in a browser."""
    trusted_proxies: list[str] = []
    """Addresses whose forwarded headers are believed."""

    @field_validator("bind")
    @classmethod
    def _named_addresses(cls, value: str) -> str:
        return {"loopback": "127.0.0.1", "lan": "0.0.0.0"}.get(value, value)  # noqa: S104 - the word lan means it
