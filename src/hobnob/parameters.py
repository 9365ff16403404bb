"""From a function to what it takes: the parameters of tools and RPC methods come from their signatures."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.alias_generators import to_camel

# Built when first used: there are many, and a start needs none of them.
_CLOSED = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, defer_build=True)


@cache
def model_of(function: Callable[..., Any]) -> type[BaseModel]:
    """A closed model of a function's parameters but the first, camelCase outside.

    Ask when it is needed: there are a hundred and more, and each takes a millisecond to make.
    """
    fields: dict[str, Any] = {}
    for parameter in list(inspect.signature(function, eval_str=True).parameters.values())[1:]:
        needed = parameter.default is parameter.empty
        annotation = parameter.annotation if needed else parameter.annotation | None
        fields[parameter.name] = (annotation, Field(... if needed else parameter.default))
    return create_model(function.__name__, __config__=_CLOSED, **fields)


def arguments(checked: BaseModel) -> dict[str, Any]:
    """What to call the function with. Nothing, where something may be left out, is the default."""
    found = {}
    for name, field in type(checked).model_fields.items():
        value = getattr(checked, name)
        found[name] = field.default if value is None and not field.is_required() else value
    return found


@cache
def schema(model: type[BaseModel]) -> dict[str, Any]:
    """The parameters as a JSON schema, without what a reader can do without.

    Titles only repeat the names, and that an optional parameter may be null need not be said.
    """
    found = model.model_json_schema(by_alias=True)
    found.pop("title", None)
    found["properties"] = {name: _plain(field) for name, field in found.get("properties", {}).items()}
    return found


def _plain(field: dict[str, Any]) -> dict[str, Any]:
    field = {
        name: value for name, value in field.items() if name != "title" and (name, value) != ("default", None)
    }
    kinds = [kind for kind in field.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        field.pop("anyOf")
        return {**kinds[0], **field}
    return field


def explain(model: type[BaseModel], problem: ValidationError) -> str:
    """What is wrong with the parameters, with the right names."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    said = []
    for error in problem.errors():
        place = ".".join(map(str, error["loc"]))
        if error["type"] == "extra_forbidden":
            near = difflib.get_close_matches(place, names, 1)
            said.append(f"there is no parameter {place}" + (f", did you mean {near[0]}?" if near else ""))
        elif error["type"] == "missing":
            said.append(f"{place} is required")
        else:
            said.append(f"{place}: {error['msg'].lower()}")
    return f"{'; '.join(said)}. Parameters: {', '.join(names) or 'none'}."
