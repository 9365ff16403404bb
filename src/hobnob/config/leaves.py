"""The settings as flat paths: values with secrets masked, fields, and facts about fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from hobnob.config.fields import FieldFact, Section
from hobnob.config.tree import Settings

_SECRET_NAME = re.compile(
    r"token|secret|passw|api_?key|authorization|cookie|credential|private_?key", re.IGNORECASE
)
_URL_USER = re.compile(r"(\w+://)[^/@\s]*@")
_URL_PASSWORD = re.compile(r"([?&](?:ssl)?password=)[^&\s]*")
MASK = "**********"


def masked_leaves(settings: Settings) -> list[tuple[str, Any]]:
    """Every setting with its value, for printing. Secrets are masked by name, in unknown sections too."""
    leaves = flatten(settings.model_dump(mode="json", by_alias=True))
    return [(path, _masked(path, value)) for path, value in leaves]


def masked_changes(settings: Settings) -> dict[str, Any]:
    """The settings that are not defaults, as a tree for printing. Secrets are masked."""
    masked: dict[str, Any] = _masked_tree(
        "", settings.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    )
    return masked


def _masked_tree(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _masked_tree(str(key), child) for key, child in value.items()}
    if isinstance(value, list):
        return [_masked_tree(name, item) for item in value]
    return _masked(name, value)


def _masked(path: str, value: Any) -> Any:
    if isinstance(value, str):
        if _SECRET_NAME.search(path.rsplit(".", 1)[-1]) and value:
            return MASK
        return _URL_PASSWORD.sub(rf"\1{MASK}", _URL_USER.sub(rf"\1{MASK}@", value))
    if isinstance(value, list):
        return [_masked(path, item) for item in value]
    return value


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree with their dotted paths. A list of plain values is one leaf."""
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from flatten(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for i, item in enumerate(value):
            yield from flatten(item, f"{path}[{i}]")
    else:
        yield path, value


def walk_fields(section: type[Section] = Settings, path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting with its dotted path; `[]` stands for a list item, `<name>` for a name users choose."""
    for info in section.model_fields.values():
        here = f"{path}.{info.alias}" if path else str(info.alias)
        inner = section_in(info.annotation)
        if inner is None or _repeats(section, inner):
            yield here, info
        else:
            yield from walk_fields(inner, here + _suffix(info.annotation))


def walk_facts(
    section: type[Section] = Settings, path: str = "", inherited: tuple[FieldFact, ...] = ()
) -> Iterator[tuple[str, tuple[FieldFact, ...]]]:
    """Every section and setting with its facts, including those of the sections it belongs to."""
    for info in section.model_fields.values():
        here = f"{path}.{info.alias}" if path else str(info.alias)
        facts = (*inherited, *(fact for fact in info.metadata if isinstance(fact, FieldFact)))
        yield here, facts
        inner = section_in(info.annotation)
        if inner is not None and not _repeats(section, inner):
            yield from walk_facts(inner, here + _suffix(info.annotation), facts)


def section_in(annotation: Any) -> type[Section] | None:
    """The section type in an annotation, also inside a list, a dict, Annotated or Optional."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((s for s in map(section_in, get_args(annotation)) if s), None)


def _repeats(section: type[Section], inner: type[Section]) -> bool:
    """Whether the settings of `inner` are those of the section it is in: accounts of a channel."""
    return issubclass(section, inner)


def _suffix(annotation: Any) -> str:
    text = str(annotation)
    return "[]" if text.startswith("list[") else ".<name>" if text.startswith("dict[") else ""
