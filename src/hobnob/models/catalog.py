"""The model catalog: resolves names such as `provider/model` from settings, presets and built-in models."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from hobnob.config.fields import Api
from hobnob.config.models import ModelEntry, Provider
from hobnob.config.tree import Settings
from hobnob.errors import ModelKeyMissing, UnknownModel
from hobnob.fixes import config_set
from hobnob.models import Model, ModelInfo, rehearsal
from hobnob.models.http import Http, Timeouts
from hobnob.models.pydantic_ai.model import PydanticAiModel
from hobnob.models.remote import ProviderAccess, RemoteModel
from hobnob.records import Struct

_MAX_SUGGESTIONS = 20


class Preset(Struct, frozen=True):
    """A provider that only needs an API key from the user."""

    base_url: str
    env: tuple[str, ...] = ()
    api: Api = "openai-completions"


PRESETS: Mapping[str, Preset] = {
    "openai": Preset("https://api.openai.com/v1", ("OPENAI_API_KEY",), "openai-responses"),
    "anthropic": Preset("https://api.anthropic.com", ("ANTHROPIC_API_KEY",), "anthropic-messages"),
    "google": Preset(
        "https://generativelanguage.googleapis.com/v1beta",
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "google-generative-ai",
    ),
    "openrouter": Preset("https://openrouter.ai/api/v1", ("OPENROUTER_API_KEY",)),
    "groq": Preset("https://api.groq.com/openai/v1", ("GROQ_API_KEY",)),
    "mistral": Preset("https://api.mistral.ai/v1", ("MISTRAL_API_KEY",)),
    "deepseek": Preset("https://api.deepseek.com/v1", ("DEEPSEEK_API_KEY",)),
    "xai": Preset("https://api.x.ai/v1", ("XAI_API_KEY",)),
    "ollama": Preset("http://127.0.0.1:11434/v1"),
}


class BuiltIn(Struct, frozen=True):
    """A model that needs no provider. `open` may import: it is called on first use."""

    info: ModelInfo
    open: Callable[[Settings], Model]


# Models that ship with Hobnob register here.
BUILT_IN: dict[str, BuiltIn] = {rehearsal.INFO.name: BuiltIn(rehearsal.INFO, rehearsal.Rehearsal)}


@asynccontextmanager
async def open_models(
    settings: Settings,
    env: Mapping[str, str],
    *,
    timeouts: Timeouts | None = None,
    built_in: Mapping[str, BuiltIn] | None = None,
) -> AsyncIterator[Catalog]:
    """Open the catalog of these settings, with one HTTP client for all models."""
    http = Http(timeouts)
    catalog = Catalog(settings, env, http, BUILT_IN if built_in is None else built_in)
    try:
        yield catalog
    finally:
        await catalog.close()
        await http.close()


class Catalog:
    """Finds models by name, `provider/model`."""

    def __init__(
        self, settings: Settings, env: Mapping[str, str], http: Http, built_in: Mapping[str, BuiltIn]
    ) -> None:
        self._settings = settings
        self._configured = settings.models.providers
        self._env = env
        self._http = http
        self._built_in = built_in
        self._access: dict[str, ProviderAccess] = {}
        self._models: dict[str, Model] = {}

    def known(self) -> list[ModelInfo]:
        """All built-in and configured models. A provider without a list accepts other ids too."""
        listed = [
            _info(name, entry) for name, provider in self._configured.items() for entry in provider.models
        ]
        return [b.info for b in self._built_in.values()] + listed

    def info(self, name: str) -> ModelInfo:
        """Describe a model. Raises UnknownModel."""
        if name in self._built_in:
            return self._built_in[name].info
        provider, _, model = name.partition("/")
        if provider not in self._configured and provider not in PRESETS:
            raise self._unknown(name, f"there is no provider {provider!r}")
        if not model:
            raise self._unknown(name, "a name has the form provider/model")
        entries = self._configured[provider].models if provider in self._configured else []
        if not entries:
            # Its abilities are unknown. `reasoning` is safe: a thinking level is only sent on request.
            return ModelInfo(name=name, provider=provider, id=model, reasoning=True)
        for entry in entries:
            if entry.id == model:
                return _info(provider, entry)
        raise self._unknown(
            name, f"the provider {provider!r} does not list it", f"models.providers.{provider}.models"
        )

    async def warm_up(self) -> None:
        """Load the HTTP client if a model may need it, so that the first call does not wait for that."""
        defaults = self._settings.agents.defaults.model
        if self._configured or (defaults.primary or "") not in ("", *self._built_in):
            await self._http.warm_up()

    def model(self, name: str) -> Model:
        """Open a model, or return the open one. Raises UnknownModel or ModelKeyMissing."""
        if name not in self._models:
            info = self.info(name)
            if name in self._built_in:
                self._models[name] = self._built_in[name].open(self._settings)
            else:
                self._models[name] = self._open_remote(info)
        return self._models[name]

    async def close(self) -> None:
        """Close the clients that models opened themselves."""
        for model in self._models.values():
            if isinstance(model, PydanticAiModel):
                await model.close()

    def _open_remote(self, info: ModelInfo) -> Model:
        access = self._access_to(info.provider)
        if access.api == "pydantic-ai":
            return PydanticAiModel(info, access, env=self._env, timeouts=self._http.timeouts)
        return RemoteModel(info, access, self._http)

    def _access_to(self, name: str) -> ProviderAccess:
        if name not in self._access:
            self._access[name] = _access(name, self._configured.get(name), PRESETS.get(name), self._env)
        return self._access[name]

    def _unknown(self, name: str, reason: str, setting: str = "models.providers") -> UnknownModel:
        names = [info.name for info in self.known()]
        names += [f"{p}/<model>" for p in (*self._configured, *PRESETS) if not self._lists_models(p)]
        close = difflib.get_close_matches(name, names, 3, 0.5)
        choices = list(dict.fromkeys([*close, *names]))
        rest = len(choices) - _MAX_SUGGESTIONS
        more = f" and {rest} more" if rest > 0 else ""
        return UnknownModel(
            f"The model {name!r} cannot be used: {reason}.",
            fix=f"Choose one of {', '.join(choices[:_MAX_SUGGESTIONS])}{more}, or add it to {setting}.",
        )

    def _lists_models(self, provider: str) -> bool:
        return provider in self._configured and bool(self._configured[provider].models)


def _info(provider: str, entry: ModelEntry) -> ModelInfo:
    return ModelInfo(
        name=f"{provider}/{entry.id}",
        provider=provider,
        id=entry.id,
        context_window=entry.context_window,
        max_tokens=entry.max_tokens,
        reasoning=entry.reasoning,
    )


def _access(
    name: str, configured: Provider | None, preset: Preset | None, env: Mapping[str, str]
) -> ProviderAccess:
    configured = configured or Provider()
    if configured.api == "pydantic-ai":
        preset = None  # pydantic-ai has its own addresses and environment variables
    base_url = configured.base_url.strip() or (preset.base_url if preset else "")
    if not base_url and configured.api != "pydantic-ai":
        raise UnknownModel(
            f"The provider {name!r} has no base URL.",
            fix=config_set(f"models.providers.{name}.baseUrl", "https://HOST/v1"),
        )
    key = configured.api_key.get_secret_value() if configured.api_key else ""
    names = preset.env if preset else ()
    key = key.strip() or next((env[n].strip() for n in names if env.get(n, "").strip()), "")
    if names and not key and not configured.base_url:
        raise ModelKeyMissing(
            f"The provider {name!r} needs an API key.",
            fix=f"Set {names[0]} in the environment of the gateway, or put the key into the file: "
            + config_set(f"models.providers.{name}.apiKey", "KEY"),
        )
    return ProviderAccess(
        name=name,
        api=_api(configured, preset),
        base_url=base_url.rstrip("/"),
        slots=asyncio.Semaphore(configured.max_concurrent),
        key=key,
    )


def _api(configured: Provider, preset: Preset | None) -> Api:
    if preset is None or "api" in configured.model_fields_set:
        return configured.api
    # A server at another address that is configured as `openai` usually only speaks chat completions.
    if configured.base_url and preset.api == "openai-responses":
        return configured.api
    return preset.api
