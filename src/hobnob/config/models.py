"""Settings of models: providers, and scripts of the built-in rehearsal model."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr

from hobnob.config.fields import (
    NO_EFFECT_YET,
    Api,
    Section,
    section,
)


class ModelEntry(Section):
    model_config = ConfigDict(extra="allow")
    id: str
    """Model id at the provider."""
    name: Annotated[str | None, NO_EFFECT_YET] = None
    """Display name."""
    context_window: int | None = Field(None, ge=1)
    """Context window in tokens."""
    max_tokens: int | None = Field(None, ge=1)
    """Maximum number of output tokens."""
    reasoning: bool = False
    """Whether the model accepts a thinking level."""


class Provider(Section):
    base_url: str = ""
    """Base URL of the API."""
    api_key: SecretStr | None = None
    """API key; `${NAME}` takes it from the environment."""
    api: Api = "openai-completions"
    """Wire format; `pydantic-ai` uses the optional package of that name and any provider it supports."""
    models: list[ModelEntry] = []
    """Models of the provider."""
    max_concurrent: int = Field(32, ge=1)
    """Maximum number of model calls that run at the same time."""


class RehearsalCall(Section):
    name: str
    """Name of the tool."""
    arguments: dict[str, Any] = {}
    """Arguments of the call."""


class RehearsalStep(Section):
    text: str | None = None
    """Text of the answer."""
    tool_calls: list[RehearsalCall] = []
    """Tool calls of the answer."""
    delay_ms: int = Field(0, ge=0)
    """Delay before the answer."""
    error: str | None = None
    """Error message; the call then fails instead of answering."""
    times: int | None = Field(None, ge=1)
    """How often `error` occurs before the next step follows; unset means always."""


def _step(value: object) -> object:
    return {"text": value} if isinstance(value, str) else value


class RehearsalSettings(Section):
    scripts: dict[str, list[Annotated[RehearsalStep, BeforeValidator(_step)]]] = {}
    """Scripts by session key: one step per answer. `agent:<id>:*` and `*` apply to sessions without one."""


class Models(Section):
    rehearsal: RehearsalSettings = section(RehearsalSettings)
    """The built-in rehearsal model."""
    providers: dict[str, Provider] = {}
    """Providers of models by name, which is the first part of `provider/model`."""
