"""Settings that may change while the gateway runs.

Every part holds the one tree of settings and looks at it when it needs something, so what is put into that
tree counts from the next look on. What a part read once, when it was made, needs a restart.
"""

from __future__ import annotations

from typing import Any

from hobnob.config.tree import Settings

# What is read once. All other settings are looked at each time.
FIXED = (
    "agents.defaults.maxConcurrent",
    "agents.defaults.subagents.maxConcurrent",
    "acp",
    "channels",
    "cron",
    "gateway.bind",
    "gateway.port",
    "hooks.maxBodyBytes",
    "hooks.path",
    "mcp",
    "models",
    "store",
)


def adopt(settings: Settings, fresh: Settings) -> tuple[list[str], list[str]]:
    """Take over the settings of `fresh` that can be. Returns what was taken, and what needs a restart."""
    before, after = _leaves(settings), _leaves(fresh)
    different = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    fixed_now: tuple[str, ...] = FIXED
    if any(_within(path, ("models",)) for path in different):  # agents may name models that are not there yet
        fixed_now += ("agents",)
    fixed = [path for path in different if _within(path, fixed_now)]
    kept = _merged(settings, fresh, fixed_now)
    for name in type(settings).model_fields:
        settings.__dict__[name] = getattr(kept, name)
    for cached in ("_agents", "default_agent"):
        settings.__dict__.pop(cached, None)
    return [path for path in different if path not in fixed], fixed


def _merged(settings: Settings, fresh: Settings, fixed: tuple[str, ...]) -> Settings:
    """The fresh settings with what is fixed as it was."""
    merged = fresh
    for path in fixed:
        merged = _with(merged, settings, path.split("."))
    return merged


def _with(fresh: Any, old: Any, path: list[str]) -> Any:
    field = next((n for n, f in type(fresh).model_fields.items() if (f.alias or n) == path[0]), None)
    if field is None:  # a part of the tree that this version does not have
        return fresh
    value = getattr(old, field)
    if len(path) > 1:
        value = _with(getattr(fresh, field), value, path[1:])
    return fresh.model_copy(update={field: value})


def _within(path: str, sections: tuple[str, ...]) -> bool:
    return any(path == section or path.startswith((f"{section}.", f"{section}[")) for section in sections)


def _leaves(settings: Settings) -> dict[str, Any]:
    from hobnob.config import flatten

    return dict(flatten(_revealed(settings.model_dump(by_alias=True))))


def _revealed(value: Any) -> Any:
    """Secrets as they are: a new token is a change."""
    if isinstance(value, dict):
        return {key: _revealed(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_revealed(child) for child in value]
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value
