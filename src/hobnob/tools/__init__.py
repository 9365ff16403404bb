"""Tools: functions a model may call.

`@tool` above an async function makes one: name and description come from the function and its docstring, the
schema from its annotations. Its first argument is the `Context` of the call. Arguments are checked before the
function runs; a model that got a name or a type wrong is told the right one and can try again.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.alias_generators import to_camel

from hobnob.errors import HobnobError
from hobnob.models import ToolSpec
from hobnob.types import Session, Turn

DEFAULT_TIMEOUT_S = 600.0


@asynccontextmanager
async def _not_waiting() -> AsyncIterator[None]:
    yield


@dataclass(frozen=True, slots=True)
class Context:
    """Who calls a tool, from which turn. `waiting` gives the turn's slot to others while the tool waits."""

    session: Session
    turn: Turn
    call_id: str = ""
    waiting: Callable[[], AbstractAsyncContextManager[None]] = _not_waiting


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    arguments: type[BaseModel]
    function: Callable[..., Awaitable[Any]]
    repeatable: bool
    parallel: bool
    timeout_s: float

    @property
    def spec(self) -> ToolSpec:
        schema = self.arguments.model_json_schema(by_alias=True)
        for field in schema.get("properties", {}).values():
            field.pop("title", None)
        schema.pop("title", None)
        return ToolSpec(self.name, self.description, schema)


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool gave back, as the model reads it."""

    text: str
    is_error: bool = False


def tool(
    *,
    name: str | None = None,
    repeatable: bool = False,
    parallel: bool = True,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Callable[[Callable[..., Awaitable[Any]]], Tool]:
    """Make a tool. `repeatable`: it may be run again after a crash. `parallel`: it may run beside others."""

    def make(function: Callable[..., Awaitable[Any]]) -> Tool:
        signature = inspect.signature(function, eval_str=True)
        fields: dict[str, Any] = {}
        for parameter in list(signature.parameters.values())[1:]:
            default = ... if parameter.default is parameter.empty else parameter.default
            annotation = parameter.annotation if default is not None else parameter.annotation | None
            fields[parameter.name] = (annotation, Field(default))
        config = ConfigDict(extra="forbid", alias_generator=to_camel)
        arguments = create_model(function.__name__, __config__=config, **fields)
        described = inspect.cleandoc(function.__doc__ or "")
        return Tool(
            name or function.__name__, described, arguments, function, repeatable, parallel, timeout_s
        )

    return make


class Toolbox:
    """The tools one turn has."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools = {tool.name: tool for tool in tools}

    @property
    def specs(self) -> list[ToolSpec]:
        return [tool.spec for tool in self._tools.values()]

    def may_repeat(self, name: str) -> bool:
        return name in self._tools and self._tools[name].repeatable

    def may_run_beside(self, name: str) -> bool:
        return name not in self._tools or self._tools[name].parallel

    async def call(self, context: Context, name: str, arguments: dict[str, Any]) -> Result:
        """Run a tool. What goes wrong is a result the model can read; only cancellation passes through."""
        tool = self._tools.get(name)
        if tool is None:
            near = difflib.get_close_matches(name, self._tools, 1)
            hint = (
                f" Did you mean {near[0]}?"
                if near
                else f" There are: {', '.join(sorted(self._tools)) or 'none'}."
            )
            return _error(f"There is no tool {name}.{hint}")
        try:
            checked = tool.arguments.model_validate(arguments)
        except ValidationError as problem:
            return _error(_said(tool, problem))
        values = {field: getattr(checked, field) for field in type(checked).model_fields}
        try:
            async with asyncio.timeout(tool.timeout_s):
                answer = await tool.function(context, **values)
        except TimeoutError:
            return _error(f"{name} did not finish within {tool.timeout_s:g} seconds and was stopped.")
        except HobnobError as refusal:
            fix = {"fix": refusal.fix} if refusal.fix else {}
            return Result(
                _json({"status": "error", "error": refusal.message, "code": refusal.code, **fix}), True
            )
        except Exception as fault:  # a tool's fault is told to the model, it never ends the turn
            return _error(f"{name} failed: {type(fault).__name__}: {fault}")
        return Result(answer if isinstance(answer, str) else _json(answer))


def _said(tool: Tool, problem: ValidationError) -> str:
    names = [str(f.alias) for f in tool.arguments.model_fields.values()]
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
    return f"{tool.name}: {'; '.join(said)}. Parameters: {', '.join(names) or 'none'}."


def _error(text: str) -> Result:
    return Result(_json({"status": "error", "error": text}), True)


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode()
