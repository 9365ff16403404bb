"""Prepared statements of one connection, executed through libpq directly.

psycopg's cursors cost 60 to 130 µs of CPU for each statement, this 10 to 20 µs, and a turn takes about
thirty. Values are converted by psycopg, as its cursors do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import errors, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Escaping

from hobnob.store.engine.postgres_sql import Query

Row = tuple[Any, ...]
_MARK = (
    b"prepare mark (bigint) as insert into commits (writer, number, at) values (%s, $1, now())"
    b" on conflict (writer) do update set number = excluded.number, at = excluded.at"
)
_FINE = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Statements:
    """Executes queries on a connection, each prepared when it is first used. For one thread at a time.

    A `writer` notes the number of each transaction in the table `commits`.
    """

    def __init__(self, connection: psycopg.Connection[Row], writer: str | None = None) -> None:
        self.connection = connection
        self.backend = connection.info.backend_pid
        self._pgconn = connection.pgconn
        self._values = Transformer(connection)
        self._prepared: dict[tuple[Any, ...], bytes] = {}  # by text and types of the parameters
        if writer is not None:
            self.command(_MARK % Escaping(self._pgconn).escape_literal(writer.encode()))

    def execute(self, query: Query, params: Mapping[str, Any] | Sequence[Any]) -> Result:
        """Raises psycopg.Error."""
        values = [params[name] for name in query.names] if isinstance(params, Mapping) else params
        dumped: Any = self._values.dump_sequence(values, [PyFormat.TEXT] * len(values))
        types = self._values.types or ()
        name = self._prepared.get((query.sql, types)) or self._prepare(query.sql, types)
        return Result(self._checked(self._pgconn.exec_prepared(name, dumped)), self._values)

    def command(self, text: bytes) -> None:
        """Execute a command without parameters and rows, such as `begin`. Raises psycopg.Error."""
        self._checked(self._pgconn.exec_(text))

    def commit(self, number: int | None) -> None:
        """Commit, in one round trip with the note of the transaction's number."""
        self.command(b"commit" if number is None else b"execute mark(%d); commit" % number)

    def _prepare(self, sql: bytes, types: Sequence[int]) -> bytes:
        name = b"h%d" % len(self._prepared)
        self._checked(self._pgconn.prepare(name, sql, types))
        self._prepared[(sql, types)] = name
        return name

    def _checked(self, result: Any) -> Any:
        if result.status in _FINE:
            return result
        if not result.error_field(pq.DiagnosticField.SQLSTATE):  # not said by the server: it is gone
            text = self._pgconn.error_message.decode(errors="replace").strip()
            raise psycopg.OperationalError(text or "the connection is lost")
        raise errors.error_from_result(result, self.connection.info.encoding)


class Result:
    """The rows of a statement, or the number of those that it changed."""

    def __init__(self, result: Any, values: Any) -> None:
        self._result = result
        self._values = values  # the Transformer

    @property
    def rowcount(self) -> int:
        return int(self._result.command_tuples or 0)

    def fetchone(self) -> Row | None:
        if not self._result.ntuples:
            return None
        self._values.set_pgresult(self._result)
        found: list[Row] = self._values.load_rows(0, 1, tuple)
        return found[0]

    def fetchall(self) -> list[Row]:
        self._values.set_pgresult(self._result)
        found: list[Row] = self._values.load_rows(0, self._result.ntuples, tuple)
        return found

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchall())
