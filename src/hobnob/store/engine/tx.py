"""The interfaces `Tx` and `Store`.

A store verb is a plain function whose first argument is a transaction: `append(tx, …)`. It reads and writes
through named queries and knows nothing of the database. It may run again when its transaction could not be
committed, so it must have no effect besides reading and writing through `tx`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from hobnob.events import Change

T = TypeVar("T")
P = ParamSpec("P")
Verb = Callable[Concatenate["Tx", P], T]


class Tx(Protocol):
    """One transaction. Watchers get `changes` after the commit."""

    concurrent: bool
    """Whether other transactions may write at the same time: what was read before a lock may have changed."""
    changes: list[Change]
    memo: dict[str, Any]
    """A cache verbs share across transactions. It may be cleared at any time, and is by every rollback.

    Transactions that only read share another one. They may see different snapshots.
    """

    def get(self, kind: type[T], query: str, /, **params: Any) -> T | None:
        """The first row as `kind`."""
        ...

    def all(self, kind: type[T], query: str, /, **params: Any) -> list[T]:
        """All rows as `kind`."""
        ...

    def each(self, kind: type[T], query: str, /, **params: Any) -> Iterator[T]:
        """The rows as `kind`, one at a time."""
        ...

    def rows(self, query: str, /, **params: Any) -> list[tuple[Any, ...]]:
        """All rows as tuples."""
        ...

    def each_row(self, query: str, /, **params: Any) -> Iterator[tuple[Any, ...]]:
        """The rows as tuples, one at a time."""
        ...

    def merged(
        self, query: str, values: Sequence[str], order: Callable[[tuple[Any, ...]], Any], /, **params: Any
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of a query for each of several values of `:each`, in the order that all of them have.

        SQLite reads each list as far as it is needed. PostgreSQL gets all values in one statement, its own.
        """
        ...

    def value(self, query: str, /, **params: Any) -> Any:
        """The first column of the first row, None without a row."""
        ...

    def run(self, query: str, /, *values: Any, **params: Any) -> int:
        """Execute a statement. Returns the number of rows it changed. `values` fill `?` placeholders."""
        ...

    def put(self, query: str, thing: Any) -> int:
        """Like `run`, with the fields of a stored type as parameters."""
        ...

    def words(self, text: str) -> str:
        """User input as a full-text query of this database."""
        ...

    def index_words(self, text: str) -> str:
        """Text as the full-text index of this database takes it."""
        ...

    def lock(self, kind: str, key: str) -> bool:
        """Keep other transactions that ask for the same lock waiting until this one ends.

        A verb that decides by what it reads, and then writes other rows, takes one before it reads. `session`
        is a session with its turns and its transcript; False if it is gone. SQLite has one writer and needs
        no locks; in a transaction that only reads, nothing is locked.
        """
        ...


class Reader(Protocol):
    """A database that is only read."""

    async def read(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def close(self) -> None: ...


class Store(Protocol):
    """A database. When `write` returns, its transaction is on disk."""

    shared: bool
    """Whether other processes may use it at the same time."""

    async def read(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    async def read_small(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `read`, for a few small rows. The verb may run twice when they turn out to be more."""
        ...

    async def write(self, verb: Verb[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    def check_writable(self) -> None:
        """Raise StoreError when no write is taken any more, until the gateway is restarted."""
        ...

    def watch(self, watcher: Callable[[list[Change]], None], *, own_only: bool = False) -> None:
        """Call `watcher` in the event loop after each commit that changed something.

        Unless `own_only`, also with what other gateways changed in the same database and somebody here needs.
        """
        ...
