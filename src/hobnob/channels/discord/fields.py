"""Fields of what Discord sends, which may have any shape. A ValueError says what is malformed."""

from __future__ import annotations

from typing import Any


def id_of(raw: dict[str, Any], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not (value.isascii() and value.isdigit()) or len(value) > 20:
        raise ValueError(f"{name} is not an id")
    return value


def dict_of(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object was expected")
    return value


def list_of(raw: dict[str, Any], name: str) -> list[Any]:
    value = raw.get(name)
    return value if isinstance(value, list) else []


def dicts(raw: Any, name: str) -> list[dict[str, Any]]:
    return [item for item in list_of(dict_of(raw), name) if isinstance(item, dict)]
