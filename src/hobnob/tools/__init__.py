"""Tools: functions a model may call.

`@tool` turns an async function into a tool: its name and docstring describe it, its annotations are the
schema, and the decorator states the facts the policy needs. The first argument is the `Context` of the call.
Arguments are validated before the function runs; the model learns what was wrong.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, overload

import orjson
from pydantic import BaseModel, ValidationError

from hobnob import parameters
from hobnob.errors import HobnobError, NotAllowed
from hobnob.models import ToolSpec
from hobnob.policy import toolsets
from hobnob.policy.toolsets import Group, ToolFacts
from hobnob.records import Struct
from hobnob.types import Session, Turn

DEFAULT_TIMEOUT_S = 600.0


@asynccontextmanager
async def _keep_slot() -> AsyncIterator[None]:
    yield


class Context(Struct, frozen=True):
    """The caller of a tool. `waiting` lends the turn's slot to other turns while the tool waits."""

    session: Session
    turn: Turn
    call_id: str = ""
    waiting: Callable[[], AbstractAsyncContextManager[None]] = _keep_slot


@dataclass(frozen=True, slots=True)
class Tool:
    facts: ToolFacts
    description: str
    function: Callable[..., Awaitable[Any]]
    repeatable: bool
    parallel: bool
    ends_turn: bool
    timeout_s: float
    choices: Callable[[Session], dict[str, list[str]]] | None
    schema: dict[str, Any] | None = None
    cached_spec: ToolSpec | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def arguments(self) -> type[BaseModel]:
        return parameters.model_of(self.function)

    def spec(self, session: Session | None) -> ToolSpec:
        """The tool as it is described to a model, with the values this session may choose from."""
        if self.cached_spec is None:
            schema = self.schema or parameters.schema(self.arguments)
            object.__setattr__(self, "cached_spec", ToolSpec(self.name, self.description, schema))
        assert self.cached_spec is not None
        if self.choices is None or session is None:
            return self.cached_spec
        properties = dict(self.cached_spec.parameters["properties"])
        for name, values in self.choices(session).items():
            described = properties[name].get("description")
            properties[name] = {"type": "string", "enum": values, "description": described}
        schema = {**self.cached_spec.parameters, "properties": properties}
        return ToolSpec(self.name, self.description, schema)

    def checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments for the function. Raises ValidationError. An MCP server validates its own."""
        if self.schema is not None:
            return {"arguments": arguments}
        return parameters.arguments(parameters.validate(self.arguments, arguments))


class Result(Struct, frozen=True):
    """The result of a tool call, as the model reads it."""

    text: str
    is_error: bool = False


@overload
def tool(function: Callable[..., Awaitable[Any]], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    group: Group = "own",
    outside: bool = False,
    writes: bool = False,
    nesting: bool = False,
    server: str | None = None,
    repeatable: bool = False,
    parallel: bool = True,
    ends_turn: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    choices: Callable[[Session], dict[str, list[str]]] | None = None,
    schema: dict[str, Any] | None = None,
) -> Callable[[Callable[..., Awaitable[Any]]], Tool]: ...


def tool(
    function: Callable[..., Awaitable[Any]] | None = None,
    /,
    *,
    name: str | None = None,
    group: Group = "own",
    outside: bool = False,
    writes: bool = False,
    nesting: bool = False,
    server: str | None = None,
    repeatable: bool = False,
    parallel: bool = True,
    ends_turn: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    choices: Callable[[Session], dict[str, list[str]]] | None = None,
    schema: dict[str, Any] | None = None,
) -> Tool | Callable[[Callable[..., Awaitable[Any]]], Tool]:
    """Make a tool: `@tool` alone, or with facts about it.

    For the policy, see `ToolFacts`: `group` names it in settings (`group:fs`); `outside`: clients may call it
    through `tools.invoke`; `writes`: it changes workspace files; `nesting`: sub-agents that spawn keep it.
    For the runtime: `repeatable`: it may run again after a crash; `parallel`: it may run beside other calls;
    `ends_turn`: the model is not called again after it; `choices`: values of parameters that depend on the
    session; `schema`: that of the one parameter `arguments`, for tools of MCP servers.
    """

    def make(function: Callable[..., Awaitable[Any]]) -> Tool:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"the tool {function.__name__} must be an async function: write `async def`")
        if not inspect.signature(function).parameters:
            raise TypeError(
                f"the first parameter of the tool {function.__name__} must be the context of the call"
            )
        described = inspect.cleandoc(function.__doc__ or "")
        return Tool(
            ToolFacts(name or function.__name__, group, outside, writes, nesting, server),
            description=described,
            function=function,
            repeatable=repeatable,
            parallel=parallel,
            ends_turn=ends_turn,
            timeout_s=timeout_s,
            choices=choices,
            schema=schema,
        )

    return make if function is None else make(function)


class Toolbox:
    """The tools of one turn."""

    def __init__(self, tools: Iterable[Tool] = (), session: Session | None = None) -> None:
        self._session = session
        self._tools = {tool.name: tool for tool in tools}
        self.specs = [tool.spec(session) for tool in self._tools.values()]

    @property
    def names(self) -> list[str]:
        return sorted(self._tools)

    def limited(self, names: Sequence[str] | None) -> Toolbox:
        """Those of the tools that `names` lists, as names, patterns or groups; all of them without a list."""
        if names is None:
            return self
        return Toolbox((t for t in self._tools.values() if toolsets.named(t.facts, names)), self._session)

    def extended(self, added: Tool) -> Toolbox:
        """The tools with one more, which takes the place of another with its name."""
        return Toolbox([*(t for t in self._tools.values() if t.name != added.name), added], self._session)

    def ends_turn(self, name: str) -> bool:
        return name in self._tools and self._tools[name].ends_turn

    def may_repeat(self, name: str) -> bool:
        return name in self._tools and self._tools[name].repeatable

    def may_run_beside(self, name: str) -> bool:
        return name not in self._tools or self._tools[name].parallel

    def problem(self, name: str, arguments: dict[str, Any]) -> str | None:
        """What is wrong with the arguments of a call; None when they are valid."""
        try:
            self._tools[name].checked(arguments)
        except ValidationError as problem:
            return f"{name}: {parameters.explain(self._tools[name].arguments, problem)}"
        return None

    async def call(self, context: Context, name: str, arguments: dict[str, Any]) -> Result:
        """Run a tool. Errors become a result the model can read; only cancellation passes through."""
        tool = self._tools.get(name)
        if tool is None:
            near = difflib.get_close_matches(name, self._tools, 1)
            hint = (
                f" Did you mean {near[0]}?"
                if near
                else f" There are: {', '.join(sorted(self._tools)) or 'none'}."
            )
            return error_result(f"There is no tool {name}.{hint}")
        try:
            checked = tool.checked(arguments)
        except ValidationError as problem:
            return error_result(f"{name}: {parameters.explain(tool.arguments, problem)}")
        try:
            async with asyncio.timeout(tool.timeout_s) as clock:
                return Result(_text(await tool.function(context, **checked)))
        except HobnobError as refusal:
            return refusal_result(refusal)
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is not None and this.cancelling():
                raise  # the turn is being stopped
            return error_result(f"{name} was cancelled by its own code.")
        except TimeoutError as fault:
            if clock.expired():
                return error_result(
                    f"{name} did not finish within {tool.timeout_s:g} seconds and was stopped."
                )
            return error_result(f"{name} failed: TimeoutError: {fault}")
        except (Exception, SystemExit) as fault:  # reported to the model: a failing tool never ends the turn
            return error_result(f"{name} failed: {type(fault).__name__}: {fault}")


def refusal_result(refusal: HobnobError) -> Result:
    """A refusal as every tool reports one."""
    answer = {
        "status": "forbidden" if isinstance(refusal, NotAllowed) else "error",
        "error": refusal.message,
        "code": refusal.reported_code,
    }
    return Result(_text(answer | ({"fix": refusal.fix} if refusal.fix else {})), is_error=True)


def error_result(text: str, **more: Any) -> Result:
    """An error as every tool reports one: a JSON object."""
    return Result(_text({"status": "error", "error": text, **more}), is_error=True)


def _text(answer: Any) -> str:
    """The answer of a tool as storable text: JSON, unless it is text already."""
    if not isinstance(answer, str):
        return orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
    return answer.encode("utf-8", "replace").decode()  # file names may contain surrogates
