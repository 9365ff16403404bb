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
from dataclasses import dataclass, field
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from hobnob import parameters
from hobnob.errors import HobnobError, NotAllowed
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
    function: Callable[..., Awaitable[Any]]
    repeatable: bool
    parallel: bool
    ends_turn: bool
    timeout_s: float
    choices: Callable[[Session], dict[str, list[str]]] | None
    schema: dict[str, Any] | None = None
    told: ToolSpec | None = field(default=None, compare=False, repr=False)

    @property
    def arguments(self) -> type[BaseModel]:
        return parameters.model_of(self.function)

    def spec(self, session: Session | None) -> ToolSpec:
        """The tool as a model is told of it, with the values this session may choose from."""
        if self.told is None:  # made when it is first needed, and the same ever after
            schema = self.schema or parameters.schema(self.arguments)
            object.__setattr__(self, "told", ToolSpec(self.name, self.description, schema))
        assert self.told is not None
        if self.choices is None or session is None:
            return self.told
        properties = dict(self.told.parameters["properties"])
        for name, values in self.choices(session).items():
            described = properties[name].get("description")
            properties[name] = {"type": "string", "enum": values, "description": described}
        return ToolSpec(self.name, self.description, {**self.told.parameters, "properties": properties})

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What to call the function with. Raises ValidationError. Others check theirs themselves."""
        if self.schema is not None:
            return {"arguments": arguments}
        return parameters.arguments(self.arguments.model_validate(arguments))


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
    ends_turn: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    choices: Callable[[Session], dict[str, list[str]]] | None = None,
    schema: dict[str, Any] | None = None,
) -> Callable[[Callable[..., Awaitable[Any]]], Tool]:
    """Make a tool.

    `repeatable`: it may be run again after a crash. `parallel`: it may run beside others. `ends_turn`:
    nothing is asked of the model after it. `choices`: the values of parameters that depend on who calls.
    `schema`: that of the one parameter `arguments`, for tools whose parameters only somebody else knows.
    """

    def make(function: Callable[..., Awaitable[Any]]) -> Tool:
        described = inspect.cleandoc(function.__doc__ or "")
        return Tool(
            name=name or function.__name__,
            description=described,
            function=function,
            repeatable=repeatable,
            parallel=parallel,
            ends_turn=ends_turn,
            timeout_s=timeout_s,
            choices=choices,
            schema=schema,
        )

    return make


class Toolbox:
    """The tools one turn has."""

    def __init__(self, tools: Iterable[Tool] = (), session: Session | None = None) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self.specs = [tool.spec(session) for tool in self._tools.values()]

    @property
    def names(self) -> list[str]:
        return sorted(self._tools)

    def ends_turn(self, name: str) -> bool:
        return name in self._tools and self._tools[name].ends_turn

    def may_repeat(self, name: str) -> bool:
        return name in self._tools and self._tools[name].repeatable

    def may_run_beside(self, name: str) -> bool:
        return name not in self._tools or self._tools[name].parallel

    def problem(self, name: str, arguments: dict[str, Any]) -> str | None:
        """What is wrong with the arguments of a call, for whoever wants to know before it is made."""
        try:
            self._tools[name].checked(arguments)
        except ValidationError as problem:
            return f"{name}: {parameters.explain(self._tools[name].arguments, problem)}"
        return None

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
            checked = tool.checked(arguments)
        except ValidationError as problem:
            return _error(f"{name}: {parameters.explain(tool.arguments, problem)}")
        try:
            async with asyncio.timeout(tool.timeout_s) as clock:
                answer = await tool.function(context, **checked)
            return Result(_text(answer))
        except HobnobError as refusal:
            forbidden = isinstance(refusal, NotAllowed)
            told = {
                "status": "forbidden" if forbidden else "error",
                "error": refusal.message,
                "code": refusal.rule if isinstance(refusal, NotAllowed) else refusal.code,
            }
            return Result(_text(told | ({"fix": refusal.fix} if refusal.fix else {})), is_error=True)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                raise  # the turn is being stopped
            return _error(f"{name} was broken off from within.")
        except TimeoutError as fault:
            if clock.expired():
                return _error(f"{name} did not finish within {tool.timeout_s:g} seconds and was stopped.")
            return _error(f"{name} failed: TimeoutError: {fault}")
        except (
            Exception,
            SystemExit,
        ) as fault:  # a tool's fault is told to the model, it never ends the turn
            return _error(f"{name} failed: {type(fault).__name__}: {fault}")


def _error(text: str) -> Result:
    return Result(_text({"status": "error", "error": text}), is_error=True)


def _text(answer: Any) -> str:
    """What a tool returned as text that can be kept: JSON, unless it is text already."""
    if not isinstance(answer, str):
        return orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
    return answer.encode("utf-8", "replace").decode()  # a file's name may be no proper text
