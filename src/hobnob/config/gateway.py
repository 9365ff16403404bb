"""Settings of the gateway: where it listens, who may come in, what other systems may call."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from hobnob.config.values import (
    AgentId,
    Scope,
    Secret,
    Section,
    section,
)


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


class ControlUi(Section):
    allowed_origins: list[str] = []
    """Other pages that may talk to this gateway, as `https://host:port`; its own always may."""


class Gateway(Section):
    bind: str = "127.0.0.1"
    """Address to listen on; `loopback` and `lan` are understood."""
    port: int = Field(4626, ge=0, le=65535)
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
