"""What a verb is written against.

A store verb is a plain function whose first argument is a transaction: `append(tx, …)`. It reads and writes
through named queries and knows nothing of the database behind it. It may be run again when its transaction
could not be committed, so it must not do anything but read and write through `tx`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from hobnob.events import Change

T = TypeVar("T")
P = ParamSpec("P")
Verb = Callable[Concatenate["Tx", P], T]


class Tx(Protocol):
    """One transaction. `changes` is told to watchers once it is committed."""

    changes: list[Change]
    memo: dict[str, Any]
    """What verbs may find again in a later transaction. Forgotten at any time, and by every rollback."""

    def get(self, kind: type[T], query: str, /, **params: Any) -> T | None:
        """The first row as `kind`."""
        ...

    def all(self, kind: type[T], query: str, /, **params: Any) -> list[T]:
        """All rows as `kind`."""
        ...

    def each(self, kind: type[T], query: str, /, **params: Any) -> Iterator[T]:
        """The rows as `kind`, one at a time, for whoever may not need all of them."""
        ...

    def rows(self, query: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """All rows as they are."""
        ...

    def each_row(self, query: str, /, **params: Any) -> Iterator[tuple[Any, ...]]:
        """The rows as they are, one at a time."""
        ...

    def value(self, query: str, /, **params: Any) -> Any:
        """The first column of the first row, None without a row."""
        ...

    def run(self, query: str, /, *values: Any, **params: Any) -> int:
        """Change something. Returns how many rows it touched. `values` are for a query with `?`."""
        ...

    def put(self, query: str, thing: Any) -> int:
        """Like `run`, with the fields of one of our types as parameters."""
        ...

    def words(self, text: str) -> str:
        """What somebody typed, as this database's full-text query."""
        ...


class Store(Protocol):
    """A database. What `write` returned is on disk."""

    async def read(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def read_small(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `read`, for what is a handful of rows nearly always. It may be run twice when it is not."""
        ...

    async def write(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def watch(self, watcher: Callable[[list[Change]], None]) -> None:
        """Call `watcher` in the event loop after each commit that changed something."""
        ...
