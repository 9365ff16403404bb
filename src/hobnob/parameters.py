"""Parameters of tools, RPC methods and HTTP routes, derived from function signatures.

A function lists its parameters one by one, or takes a group of them as one `Parameters` model. A group is
described once and used by every surface that has these parameters.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.alias_generators import to_camel

# Models are built at first use: there are more than a hundred, and a start needs none of them.
_MAX_PROBLEMS, _PATH_CHARS = 5, 100  # in an explanation
_MAX_GIVEN = 100  # parameters of a request that are looked at one by one
TEXT_CHARS = 4096  # of a parameter in a request from outside
LONG_TEXTS = frozenset({"message", "task", "payload", "payloadJSON", "chunk"})
"""Texts with limits of their own; those of messages are in bytes, by `messages.maxBytes`."""
_CLOSED = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, defer_build=True)


class Parameters(BaseModel):
    """A group of parameters: camelCase outside, snake_case inside. Null means the default."""

    model_config = _CLOSED
    group: ClassVar[tuple[str, type[Parameters]] | None] = None
    """Set on models made by `model_of`: the function's parameter that takes the group, and its type."""

    @model_validator(mode="before")
    @classmethod
    def _null_means_default(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


@cache
def model_of(function: Callable[..., Any]) -> type[BaseModel]:
    """A closed model of a function's parameters, without the first one. Each takes a millisecond to make."""
    fields: dict[str, Any] = {}
    group: tuple[str, type[Parameters]] | None = None
    for parameter in list(inspect.signature(function, eval_str=True).parameters.values())[1:]:
        if isinstance(parameter.annotation, type) and issubclass(parameter.annotation, Parameters):
            group = parameter.name, parameter.annotation
            continue
        required = parameter.default is parameter.empty
        annotation = parameter.annotation if required else parameter.annotation | None
        fields[parameter.name] = (annotation, Field(... if required else parameter.default))
    if group is None:
        return create_model(function.__name__, __config__=_CLOSED, **fields)
    made = create_model(function.__name__, __base__=group[1], **fields)
    cast(Any, made).group = group
    return made


def validate(model: type[BaseModel], given: Any) -> BaseModel:
    """The checked parameters. Raises ValidationError; of very many unknown parameters it names a few."""
    if isinstance(given, dict) and len(given) > _MAX_GIVEN and model.model_config.get("extra") == "forbid":
        known = {name for field, info in model.model_fields.items() for name in (field, info.alias)}
        unknown = islice((name for name in given if name not in known), 2 * _MAX_PROBLEMS)
        given = {name: given[name] for name in (*known.intersection(given), *unknown)}
    return model.model_validate(given)


def too_long(given: Any) -> str | None:
    """What is wrong with a request that has a text of megabytes where a name is expected.

    Names are looked up, compared and repeated in errors, which takes long with such a text.
    """
    for name, value in islice(given.items(), _MAX_GIVEN) if isinstance(given, dict) else ():
        if isinstance(value, str) and len(value) > TEXT_CHARS and name not in LONG_TEXTS:
            return f"{name[:_PATH_CHARS]} has {len(value):,} characters; the limit is {TEXT_CHARS:,}."
    return None


def arguments(checked: BaseModel) -> dict[str, Any]:
    """The keyword arguments for the function. Null stands for the default of an optional parameter."""
    values = checked.__dict__
    found = {
        name: default if values[name] is None else values[name]
        for name, default in _defaults(type(checked)).items()
    }
    if isinstance(checked, Parameters) and checked.group is not None:
        found[checked.group[0]] = checked  # its type derives from that of the group
    return found


@cache
def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    """The parameters outside of the group, with the value that null stands for."""
    group = model.group if issubclass(model, Parameters) else None
    return {
        name: None if field.is_required() else field.default
        for name, field in model.model_fields.items()
        if group is None or name not in group[1].model_fields
    }


@cache
def schema(model: type[BaseModel]) -> dict[str, Any]:
    """The parameters as a JSON schema, without titles and nulls, which only cost a model tokens."""
    found = model.model_json_schema(by_alias=True)
    found.pop("title", None)
    if issubclass(model, Parameters):
        found.pop("description", None)  # the docstring of a group says nothing to a model
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


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """What is wrong with the parameters, with the right names."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    problems = []
    found = error.errors(include_url=False, include_context=False, include_input=False)
    for each in found[:_MAX_PROBLEMS]:
        path = ".".join(map(str, each["loc"]))[:_PATH_CHARS]
        if each["type"] == "extra_forbidden":
            near = difflib.get_close_matches(path, names, 1)
            problems.append(f"there is no parameter {path}" + (f", did you mean {near[0]}?" if near else ""))
        elif each["type"] == "missing":
            problems.append(f"{path} is required")
        else:
            problems.append(f"{path}: {each['msg'].lower()}")
    if len(found) > _MAX_PROBLEMS:
        problems.append(f"and {len(found) - _MAX_PROBLEMS} more problems")
    return f"{'; '.join(problems)}. Parameters: {', '.join(names) or 'none'}."


def description(group: type[Parameters], name: str) -> str:
    """The description of one parameter of a group, for command-line help."""
    return group.model_fields[name].description or ""
