"""The runtime interface: a `Runtime` runs one claimed turn and returns its outcome.

It reports each step through `TurnContext.emit`, which returns once the step is committed. Subscribers and
deliveries are up to the runner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from hobnob.records import Struct
from hobnob.store.entries import Compaction
from hobnob.types import Entry, Outcome, Session, Turn

if TYPE_CHECKING:
    from hobnob.runtimes.transcripts import Transcript

Message = dict[str, Any]


class Delta(Struct, frozen=True):
    """A piece of the answer. `restart`: discard the earlier pieces, the model is called again."""

    text: str
    thinking: bool = False
    restart: bool = False


class ModelAnswered(Struct, frozen=True):
    """An answer that is not the last of the turn, usually one that calls tools."""

    message: Message


class ToolCalled(Struct, frozen=True):
    call_id: str
    name: str
    arguments: dict[str, Any]


class ToolReturned(Struct, frozen=True):
    message: Message


class Compacting(Struct, frozen=True):
    """How far a compaction is. `spent`: answers of models since the last such step, for their usage."""

    state: Compaction
    spent: tuple[Message, ...] = ()


class Compacted(Struct, frozen=True):
    """The entry of a compaction: a summary of the older part. Its usage was recorded while it was made."""

    message: Message


class Reminded(Struct, frozen=True):
    """A message of the gateway itself to the model, within the turn."""

    message: Message


Step = Delta | ModelAnswered | ToolCalled | ToolReturned | Compacting | Compacted | Reminded
Emit = Callable[[Step], Awaitable[None]]


class TurnContext(Protocol):
    """A claimed turn. `transcript` is what is known of its transcript at the time of the claim, at least the
    newest messages; `recent` are the entries that the claim loaded.

    `waiting` releases the concurrency slot of the turn while it waits for another turn. `steer` returns
    input that arrived for the running turn.
    """

    turn: Turn
    session: Session
    recent: list[Entry]
    transcript: Transcript

    @property
    def waiting(self) -> Callable[[], AbstractAsyncContextManager[None]]: ...

    async def emit(self, step: Step) -> None: ...

    async def steer(self) -> list[Message]: ...


class Ended(Struct, frozen=True):
    """The outcome of a turn. `message` is the last answer, not yet committed.

    `structured` is its typed result as JSON; `schema_error` says why there is none. `transient`: it failed
    before it did anything, and another attempt may work.
    """

    outcome: Outcome
    reply: str | None = None
    error: str | None = None
    message: Message | None = None
    structured: str | None = None
    schema_error: str | None = None
    transient: bool = False


Runtime = Callable[[TurnContext], Awaitable[Ended]]


def while_allowed(runtime: Runtime, refusal: Callable[[Turn], Awaitable[str | None]]) -> Runtime:
    """Run a turn of an exchange only if its sender may still send there: a reload may have withdrawn it."""

    async def run(running: TurnContext) -> Ended:
        turn = running.turn
        if turn.exchange_id is not None and turn.step in ("primary", "reply"):
            if why := await refusal(turn):
                return Ended("cancelled", error=why)
        return await runtime(running)

    return run


def by_session(agents: Runtime, harnesses: Runtime) -> Runtime:
    """Dispatch each turn by its session: to `harnesses` if a harness runs it, else to `agents`."""

    async def run(running: TurnContext) -> Ended:
        return await (harnesses if running.session.is_external else agents)(running)

    return run
