"""The runtime socket: what runs one turn of an agent.

A runtime is given a history and what it may use. It tells what happens through `emit`, which returns once it
is committed, and returns how the turn ended. It knows nothing of stores, channels or people.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from hobnob.types import Entry, Outcome, Session, Turn

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer. `restart`: the pieces before it are void, the model was asked again."""

    text: str
    thinking: bool = False
    restart: bool = False


@dataclass(frozen=True, slots=True)
class ModelAnswered:
    """An answer of the model that calls tools; more follows."""

    message: Message


@dataclass(frozen=True, slots=True)
class ToolCalled:
    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolReturned:
    message: Message


Step = Delta | ModelAnswered | ToolCalled | ToolReturned
Emit = Callable[[Step], Awaitable[None]]


class TurnContext(Protocol):
    """A claimed turn, as a runtime sees it. `recent` is the end of its transcript when it was claimed.

    `waiting` lends its slot to others while it waits for them.
    """

    turn: Turn
    session: Session
    recent: list[Entry]

    @property
    def waiting(self) -> Callable[[], AbstractAsyncContextManager[None]]: ...

    async def emit(self, step: Step) -> None: ...

    async def steer(self) -> list[Message]: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """How a turn ended. `message` is the last answer, not yet committed."""

    outcome: Outcome
    reply: str | None = None
    error: str | None = None
    message: Message | None = None


Runtime = Callable[[TurnContext], Awaitable[Ended]]


def by_session(agents: Runtime, harnesses: Runtime) -> Runtime:
    """The runtime of each turn by its session: a harness's, or one of an agent of ours."""

    async def run(running: TurnContext) -> Ended:
        return await (harnesses if running.session.is_external else agents)(running)

    return run
