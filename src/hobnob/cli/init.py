"""`hobnob init`: write a first configuration file."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer

from hobnob import config as settings
from hobnob import statedir
from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.errors import BadInput

OFFLINE = "rehearsal"
# Suggestions only: any model of the provider can be named.
_SUGGESTED = {
    "anthropic": "claude-sonnet-4-5",
    "openai": "gpt-5-mini",
    "google": "gemini-2.5-flash",
    "ollama": "llama3.2",
}
_TEMPLATE = """\
// Settings of Hobnob. `hobnob config show` lists all of them, `hobnob doctor` checks this file.
{{
  agents: {{
    defaults: {{
      // The model of every agent, as provider/model. {model_note}
      model: {model},
    }},
    // Each agent has its own sessions, workspace and rules. The first is the default agent.
    list: [
      {{ id: "main" }},
      // {{ id: "helper", name: "Helper" }},
    ],
  }},
{providers}
  tools: {{
    sessions: {{
      // What agents see of sessions: "self", "tree" (their own and those they spawned), "agent" or "all".
      visibility: "tree",
    }},
    // Whether agents may reach sessions of other agents; needs visibility "all".
    agentToAgent: {{ enabled: false }},
  }},
}}
"""
_PROVIDER = """
  models: {{
    providers: {{
      // The key comes from the environment variable {key_env}, and is never written here.
      {provider}: {{ apiKey: "${{{key_env}}}" }},
    }},
  }},
"""


def init(
    config: ConfigFile = None,
    provider: Annotated[
        str | None,
        typer.Option(help="Who runs the model, such as anthropic; rehearsal is offline."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The provider's name of the model.")] = None,
    key_env: Annotated[
        str | None, typer.Option("--key-env", help="The environment variable with the key.")
    ] = None,
    test: Annotated[
        bool, typer.Option("--test/--no-test", help="Ask the model for one short answer, if there is a key.")
    ] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing file; it is kept beside.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a first configuration file: asks, or takes --provider, --model and --key-env."""
    target = settings.source_of(config, os.environ)
    if target.exists() and not force:
        raise BadInput(
            f"{target} exists already.",
            fix="Change it with `hobnob config set PATH VALUE`, or write a new one with --force.",
        )
    provider, model, key_env = _answers(provider, model, key_env)
    text = compose(provider, model, key_env)
    missing = key_env if key_env and not os.environ.get(key_env) else None
    _check(target, text, {missing: "set-later"} if missing else {})
    _write(target, text)
    answer = None if provider == OFFLINE or missing or not test else asyncio.run(_ask(target))
    if as_json:
        found = {"file": str(target), "provider": provider, "model": model, "keyEnv": key_env}
        output.json(found | {"keyMissing": missing is not None, "test": answer})
        return
    out = output.console()
    out.print(output.escape(f"Wrote {target}."))
    if answer is not None:
        out.print(output.escape(answer))
    if missing:
        out.print(f"The key is still missing: export {missing}=…")
    out.print('Next: hobnob serve, then: hobnob agent -m "hello"')


def compose(provider: str, model: str, key_env: str | None) -> str:
    """The text of a first configuration file."""
    from hobnob.models.catalog import PRESETS
    from hobnob.models.rehearsal import INFO

    if provider == OFFLINE:
        note = "This one is offline and needs no key; try anthropic/claude-sonnet-4-5."
        return _TEMPLATE.format(model_note=note, model=_quoted(INFO.name), providers="")
    preset = PRESETS[provider]
    own = key_env is not None and key_env not in preset.env  # of a preset's own variable nothing is written
    note = f"Its key is in ${key_env}." if key_env and not own else ""
    block = _PROVIDER.format(provider=provider, key_env=key_env) if own else ""
    return _TEMPLATE.format(
        model_note=note, model=_quoted(f"{provider}/{model}"), providers=block.rstrip("\n")
    ).replace("  // The model of every agent, as provider/model. \n", "  // The model of every agent.\n")


def _answers(provider: str | None, model: str | None, key_env: str | None) -> tuple[str, str, str | None]:
    """Provider, model and variable of the key: as given, else as asked for. Raises BadInput."""
    from hobnob.models.catalog import PRESETS

    known = (OFFLINE, *PRESETS)
    asking = sys.stdin.isatty()
    if provider is None and not asking:
        raise BadInput("There is nobody to ask.", fix="Give --provider, --model and --key-env.")
    provider = (provider or typer.prompt(f"Provider ({', '.join(known)})", OFFLINE)).strip().lower()
    if provider not in known:
        fix = "Others are set in models.providers: see docs/models.md."
        raise BadInput(f"There is no preset for {provider!r} (known: {', '.join(known)}).", fix=fix)
    if provider == OFFLINE:
        return provider, OFFLINE, None
    suggested = _SUGGESTED.get(provider)
    if model is None and not asking:
        raise BadInput("The model is missing.", fix=f"Give --model, such as {suggested or 'NAME'}.")
    model = (model or typer.prompt("Model", suggested)).strip().removeprefix(f"{provider}/")
    usual = next(iter(PRESETS[provider].env), None)
    if key_env is None and usual is not None and asking:
        key_env = typer.prompt("Environment variable with the key", usual)
    key_env = key_env or usual
    if key_env is not None and not key_env.replace("_", "a").isalnum():
        raise BadInput(f"{key_env!r} is not the name of a variable.", fix="Give its name, not the key.")
    return provider, model, key_env


def _check(target: Path, text: str, extra: dict[str, str]) -> None:
    """The text must load before it is written: this raises BadConfig."""
    settings.load(None, env={**os.environ, **extra, "HOBNOB_CONFIG": str(target)}, text=text)


def _write(target: Path, text: str) -> None:
    statedir.private_dir(target.parent)
    if target.exists():
        target.replace(target.with_name(f"{target.name}.old"))
    with os.fdopen(statedir.open_private(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY), "w") as file:
        file.write(text)


async def _ask(target: Path) -> str:
    """Whether the model answers."""
    from hobnob.checks import used_models
    from hobnob.cli.doctor_checks import try_model
    from hobnob.models.catalog import open_models

    loaded = settings.load(target)
    async with open_models(loaded.settings, os.environ) as models:
        [(name, path)] = used_models(loaded.settings).items()
        found = await try_model(models, name, path)
        return found.message if found.state == "ok" else f"{found.message} {found.fix}"


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
