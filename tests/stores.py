"""A look into a store from outside, whichever database it is in."""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

ON_POSTGRES = os.environ.get("HOBNOB_TEST_STORE") == "postgres"
WORDS_TABLE = "entry_words" if ON_POSTGRES else "entry_words_docsize"  # one row for each indexed entry


def count_rows(tx: Any, table: str) -> int:
    """The number of rows of a table, in a transaction of the store."""
    statement = f"select count(*) from {table}"
    if ON_POSTGRES:
        from hobnob.store.engine.postgres_sql import Query

        return int(tx._execute(Query(statement.encode(), ()), ()).fetchone()[0])
    return int(tx._execute(statement).fetchone()[0])


def execute(path: Path, statement: str) -> list[Any]:
    """Execute SQL on a connection of its own, on the store of a file or what stands in for it."""
    if ON_POSTGRES:
        from tests import postgres

        return postgres.execute(postgres.url_for(f"sqlite:///{path}"), statement)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
        return connection.execute(statement).fetchall()
