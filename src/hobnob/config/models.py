"""Settings of models: where they come from, and what the built-in one says."""

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
    """The provider's name of the model."""
    name: Annotated[str | None, NO_EFFECT_YET] = None
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
    """Maximum number of calls to it at a time."""


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


class RehearsalSettings(Section):
    scripts: dict[str, list[Annotated[RehearsalStep, BeforeValidator(_step)]]] = {}
    """What the built-in model says, answer by answer, in the session of that key (`*`: in all others)."""


class Models(Section):
    rehearsal: RehearsalSettings = section(RehearsalSettings)
    """The built-in offline model."""
    providers: dict[str, Provider] = {}
    """Where models come from, by a name of your choice."""
