"""Transactions on PostgreSQL, and their queries: the shared ones with overrides, as psycopg takes them.

The shared queries are written for both databases. What differs everywhere is translated here: parameters,
and `json_each` over an array. What differs in one query is in `sql/postgres`.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import orjson

from hobnob.events import Change
from hobnob.store.engine import statements
from hobnob.store.engine.tx import T

if TYPE_CHECKING:
    from hobnob.store.engine.postgres_statements import Result, Statements

MAX_IN_LINE_S = 0.05  # how long writes wait for one that waits for a lock
MAX_WORDS_BYTES = 500_000  # of a text in the full-text index; PostgreSQL takes about twice as much

# In a transaction that writes, a row that is read by its key stays locked until the end: verbs read, change
# and save whole rows. Sessions are locked by `Tx.lock`, before anything else of them.
_LOCKING = """
approval_get budget_get budgets_of reservation_get device_get device_by_request node_get node_by_request
exchange_get wait_get waits_yielded delivery_get delivery_head job_get job_of_turn jobs_due job_run_get
job_run_of_delivery mcp_grant_get pairing_get pairings_by_code thread_of_session turn_head
""".split()

# A set of keys. As an array it is looked up in the index; joined with, the whole table may be read, because
# the planner takes it for a hundred rows.
_KEYS = re.compile(r"\bin \((select value\S* from json_each\([^()]*\))\)")
_PARAMETER = re.compile(r"%\((\w+)\)s|%s|%%")
_TOKEN = re.compile(r":(\w+)(?= is null)|('(?:[^']|'')*')|(::)|:(\w+)|(\?)|(%)|json_each\(([^()]*)\)")


class Query(NamedTuple):
    """A query for libpq: its parameters are `$1`, `$2`, …; `names` are theirs in this order."""

    sql: bytes
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Queries:
    """SQL by name, for psycopg and for libpq; the names of those with positional parameters and of those that
    lock rows."""

    sql: dict[str, str]
    numbered: dict[str, Query]
    positional: frozenset[str]
    locking: frozenset[str]


@cache
def load(*, writing: bool) -> Queries:
    """The queries for transactions that read, or for those that write."""
    known = statements.load() | statements.load("postgres")
    if writing:
        known |= {name: f"{known[name]} for update" for name in _LOCKING}
    positional = frozenset(name for name, sql in known.items() if "?" in sql)
    locking = frozenset(_LOCKING if writing else ())
    translated = {name: translate(sql) for name, sql in known.items()}
    return Queries(translated, {n: _numbered(sql) for n, sql in translated.items()}, positional, locking)


def translate(sql: str) -> str:
    """Named and positional parameters as psycopg writes them; JSON arrays as arrays or rows."""
    return _TOKEN.sub(_token, _KEYS.sub(r"= any(array(\1))", sql))


def _numbered(sql: str) -> Query:
    """A query that psycopg takes as libpq takes it."""
    names: list[str] = []
    positions = count(1)

    def number(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if match[0] == "%s":
            return f"${next(positions)}"
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return Query(_PARAMETER.sub(number, sql).encode(), tuple(names))


def _token(match: re.Match[str]) -> str:
    untyped, literal, cast_sign, name, question_mark, percent, array = match.groups()
    if untyped:
        return f"%({untyped})s::text"
    if literal or cast_sign:
        return match[0].replace("%", "%%")
    if name:
        return f"%({name})s"
    if array:
        return f"json_array_elements_text(({translate(array)})::json)"
    return "%s" if question_mark else "%%" if percent else match[0]


def words(text: str) -> str:
    """Text for the full-text index, as separate words without diacritics and case."""
    found = " ".join(_words(text))
    return found.encode()[:MAX_WORDS_BYTES].decode(errors="ignore")


def words_query(text: str) -> str:
    """What a person looks for, as a query: all words; a word with punctuation inside is a phrase."""
    phrases = (" <-> ".join(f"'{word}'" for word in _words(typed)) for typed in text.split())
    return " & ".join(f"({phrase})" for phrase in phrases if phrase)


def _words(text: str) -> list[str]:
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(c if c.isalnum() else " " for c in plain.casefold()).split()


class PostgresTx:
    """A transaction on one connection."""

    def __init__(
        self,
        statements: Statements,
        memo: dict[str, Any],
        *,
        writing: bool = False,
        on_lock: Callable[[], None] | None = None,
    ) -> None:
        self._execute = statements.execute
        self._on_lock = on_lock
        self._queries = load(writing=writing)
        self.concurrent = writing
        self.has_written = False
        self._held: set[tuple[str, str]] = set()
        self.changes: list[Change] = []
        self.memo = memo

    def _query(self, query: str, params: Any) -> Result:
        if query in self._queries.locking:
            self._proceed()
        numbered = self._queries.numbered[query]
        try:
            return self._execute(numbered, params)
        except Exception:  # with a U+0000 in it, psycopg refused to send it; anything else is raised
            if (cleaned := _without_nul(params)) == params:
                raise
            return self._execute(numbered, cleaned)

    def _proceed(self) -> None:
        """Let the next write begin."""
        if self._on_lock is not None:
            self._on_lock()
            self._on_lock = None

    def lock(self, kind: str, key: str) -> bool:
        if not self.concurrent or (kind, key) in self._held:
            return True
        query, params = "lock_advisory", {"name": f"{kind}:{key}"}
        if kind == "session":
            query, params = "lock_session", {"key": key}
        if self._on_lock is not None and self._value(f"{query}_now", params):
            found = True
        elif self._on_lock is not None:
            # Others wait behind this one, to keep the order; not for long, they may be of other sessions.
            timer = threading.Timer(MAX_IN_LINE_S, self._on_lock)
            timer.start()
            found = self._value(query, params) is not None
            timer.cancel()
        else:
            found = self._value(query, params) is not None
        self._proceed()
        if found:
            self._held.add((kind, key))
        return found

    def _value(self, query: str, params: dict[str, str]) -> Any:
        row = self._query(query, params).fetchone()
        return row and row[0]

    def get(self, kind: type[T], query: str, /, **params: Any) -> T | None:
        row = self._query(query, params).fetchone()
        return None if row is None else cast(T, statements.DECODERS[kind](row))

    def all(self, kind: type[T], query: str, /, **params: Any) -> list[T]:
        return list(self.each(kind, query, **params))

    def each(self, kind: type[T], query: str, /, **params: Any) -> Iterator[T]:
        return map(statements.DECODERS[kind], self._query(query, params))

    def rows(self, query: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._query(query, params).fetchall()

    def each_row(self, query: str, /, **params: Any) -> Iterator[tuple[Any, ...]]:
        return iter(self._query(query, params))

    def merged(
        self, query: str, values: Sequence[str], order: Callable[[tuple[Any, ...]], Any], /, **params: Any
    ) -> Iterator[tuple[Any, ...]]:
        return iter(self._query(query, params | {"each": orjson.dumps(values).decode()}))

    def value(self, query: str, /, **params: Any) -> Any:
        row = self._query(query, params).fetchone()
        return None if row is None else row[0]

    def run(self, query: str, /, *values: Any, **params: Any) -> int:
        return self._counted(self._query(query, values or params))

    def put(self, query: str, thing: Any) -> int:
        kind = type(thing)
        values: Any = statements.VALUES[kind](thing)
        if query not in self._queries.positional:
            values = dict(zip(statements.COLUMNS[kind], values, strict=True))
        return self._counted(self._query(query, values))

    def _counted(self, result: Result) -> int:
        self.has_written = self.has_written or result.rowcount > 0
        return result.rowcount

    def words(self, text: str) -> str:
        return words_query(text)

    def index_words(self, text: str) -> str:
        return words(text)


def _without_nul(params: Any) -> Any:
    """The parameters without U+0000, which PostgreSQL cannot keep in a text."""
    if isinstance(params, dict):
        return {name: _without_nul(value) for name, value in params.items()}
    if isinstance(params, tuple):
        return tuple(_without_nul(value) for value in params)
    return params.replace("\0", "\ufffd") if isinstance(params, str) else params
