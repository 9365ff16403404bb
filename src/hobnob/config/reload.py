"""Reload: merge freshly read settings into those of a running gateway.

A snapshot of the settings never changes; a reload makes a new one. Settings marked `NEEDS_RESTART` keep their
value until the next start.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from hobnob.config.fields import NEEDS_RESTART, Section
from hobnob.config.leaves import flatten, section_in
from hobnob.config.tree import Settings
from hobnob.records import Struct


class Reload(Struct, frozen=True):
    """The new snapshot, the paths that changed with it, and those that wait for a restart."""

    settings: Settings
    applied: list[str]
    pending: list[str]


def merge(current: Settings, fresh: Settings) -> Reload:
    """The fresh settings, except for those that need a restart."""
    before, after = _leaves(current), _leaves(fresh)
    different = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    kept = list(restart_paths())
    if any(_within(path, ["models"]) for path in different):
        kept.append("agents")  # agents may name models that exist only after the restart
    merged = fresh
    for path in kept:
        merged = _with_value_of(merged, current, path.split("."))
    pending = [path for path in different if _within(path, kept)]
    applied = [path for path in different if path not in pending]
    return Reload(merged, _outermost(applied), _outermost(pending))


@cache
def restart_paths() -> tuple[str, ...]:
    """The dotted paths of settings and sections that need a restart."""
    return tuple(_marked(Settings, ""))


def needs_restart(path: str) -> bool:
    """Whether a change of the setting at `path` takes effect only after a restart."""
    return _within(path, list(restart_paths()))


def _marked(section: type[Section], prefix: str) -> Iterator[str]:
    for info in section.model_fields.values():
        path = f"{prefix}{info.alias}"
        inner = section_in(info.annotation)
        if NEEDS_RESTART in info.metadata:
            yield path
        elif inner is not None and not issubclass(section, inner):
            yield from _marked(inner, f"{path}.")


def _with_value_of(fresh: Any, current: Any, path: list[str]) -> Any:
    """A copy of `fresh` in which the setting at `path` has the value of `current`."""
    field = next(name for name, info in type(fresh).model_fields.items() if info.alias == path[0])
    value = getattr(current, field)
    if len(path) > 1:
        value = _with_value_of(getattr(fresh, field), value, path[1:])
    # Not model_copy: that would copy what the settings have cached, such as the agents by id.
    values = {name: getattr(fresh, name) for name in type(fresh).model_fields} | {field: value}
    return type(fresh).model_construct(fresh.model_fields_set, **values)


def _within(path: str, sections: list[str]) -> bool:
    return any(path == section or path.startswith((f"{section}.", f"{section}[")) for section in sections)


def _outermost(paths: list[str]) -> list[str]:
    """The paths without those inside another: a section that was empty before is named once."""
    return [path for path in paths if not _within(path, [other for other in paths if other != path])]


def _leaves(settings: Settings) -> dict[str, Any]:
    return dict(flatten(_revealed(settings.model_dump(by_alias=True))))


def _revealed(value: Any) -> Any:
    """Secrets in plain text, so that a new token counts as a change."""
    if isinstance(value, dict):
        return {key: _revealed(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_revealed(child) for child in value]
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value
