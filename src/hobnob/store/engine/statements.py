"""Named SQL queries from `sql/*.sql`, and the mapping between rows and stored types.

A query begins with `-- name:`. In it, `{Session}` expands to the columns of that type and `{:Session}` to as
many `?` placeholders in the same order, for `Tx.put`: columns are declared only in `hobnob.types`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Any, TypeVar

from hobnob import chat_types, joins, node_types, spending, types
from hobnob.errors import StoreError, StoreTooNew

T = TypeVar("T")

KINDS = (
    types.Session,
    types.Entry,
    types.Turn,
    types.Exchange,
    joins.Wait,
    types.Delivery,
    chat_types.InboxEvent,
    chat_types.Pairing,
    chat_types.BoundThread,
    types.Approval,
    types.Job,
    types.JobRun,
    types.Device,
    types.McpGrant,
    node_types.Node,
    types.Usage,
    spending.BudgetAccount,
    spending.Reservation,
)
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COLUMNS = re.compile(r"\{(:?)(\w+)\}")


@cache
def load(dialect: str = "") -> dict[str, str]:
    """All shared queries by name, with `:name` parameters; with a dialect, those that only it has."""
    found: dict[str, str] = {}
    for file in sorted((files("hobnob.store") / "sql" / dialect).iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        _, *parts = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert name not in found, f"two queries have the name {name}"
            lines = (line for line in text.splitlines() if not line.startswith("--"))
            found[name] = _COLUMNS.sub(_columns, "\n".join(lines)).strip()
    return found


def migrations(dialect: str) -> list[tuple[int, str, str]]:
    """Number, name and text of each migration, in order."""
    folder = files("hobnob.store") / "sql" / f"migrations_{dialect}"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".sql"))
    return [(int(n[:4]), n.removesuffix(".sql"), (folder / n).read_text("utf-8")) for n in names]


def missing(dialect: str, applied: dict[int, tuple[str, str]], store: str) -> list[tuple[int, str, str, str]]:
    """The migrations to apply: number, name, text, sha256. `applied`: name and sha256 of those that were.

    Raises StoreTooNew when one is newer than this version, and StoreError when one differs.
    """
    known = migrations(dialect)
    newest = known[-1][0]
    if applied and max(applied) > newest:
        raise StoreTooNew(
            f"{store} was written by a newer Hobnob: its schema version is {max(applied)},"
            f" and this version supports {newest}.",
            fix="Use the newer version, or restore a backup made before the upgrade.",
        )
    found = []
    for number, name, text in known:
        sha = hashlib.sha256(text.encode()).hexdigest()
        if number not in applied:
            found.append((number, name, text, sha))
        elif applied[number] != (name, sha):
            raise StoreError(
                f"{store} was created by a Hobnob with a different migration {number}.",
                fix="Use the version that created it, or move the store away to start empty.",
            )
    return found


# The columns of each type, and a function that gets their values from an instance.
COLUMNS: dict[type, tuple[str, ...]] = {k: k.__struct_fields__ for k in KINDS}
VALUES = {k: attrgetter(*names) for k, names in COLUMNS.items()}


def decoder(kind: type[T]) -> Callable[[tuple[Any, ...]], T]:
    """A function from a row to an instance."""
    make: Callable[..., T] = kind
    booleans = [n for n, name in enumerate(COLUMNS[kind]) if kind.__annotations__[name] == "bool"]
    if not booleans:
        return lambda row: make(*row)

    def decode(row: tuple[Any, ...]) -> T:
        values = [*row]
        for n in booleans:
            values[n] = bool(values[n])  # SQLite has 0 and 1
        return make(*values)

    return decode


DECODERS: dict[type, Callable[[tuple[Any, ...]], Any]] = {k: decoder(k) for k in KINDS}


def _columns(match: re.Match[str]) -> str:
    names = next(columns for kind, columns in COLUMNS.items() if kind.__name__ == match[2])
    return ", ".join("?" for _ in names) if match[1] else ", ".join(names)
