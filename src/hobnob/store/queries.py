"""The SQL, by name. Each query stands in `sql/*.sql` under `-- name:` with a sentence on what it is for.

`{Session}` in a query is the list of that type's columns, `{:Session}` the same as parameters: the types in
`hobnob.types` are the one place that lists them.
"""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from importlib.resources import files

from hobnob import types

KINDS = (
    types.Session,
    types.Entry,
    types.Turn,
    types.Exchange,
    types.Delivery,
    types.CronJob,
    types.Usage,
)
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COLUMNS = re.compile(r"\{(:?)(\w+)\}")


@cache
def load() -> dict[str, str]:
    """All queries, with `:name` for a parameter."""
    found: dict[str, str] = {}
    for file in sorted((files("hobnob.store") / "sql").iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        _, *parts = _NAME.split(file.read_text("utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert name not in found, f"two queries are called {name}"
            lines = (line for line in text.splitlines() if not line.startswith("--"))
            found[name] = _COLUMNS.sub(_columns, "\n".join(lines)).strip()
    return found


def migrations(dialect: str) -> list[tuple[int, str, str]]:
    """Number, name and text of each migration, in order."""
    folder = files("hobnob.store") / "sql" / f"migrations_{dialect}"
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".sql"))
    return [(int(n[:4]), n.removesuffix(".sql"), (folder / n).read_text("utf-8")) for n in names]


# The columns of each type, and the places of those that are true or false: SQLite keeps them as numbers.
COLUMNS: dict[type, tuple[str, ...]] = {k: tuple(f.name for f in fields(k)) for k in KINDS}
BOOLEANS: dict[type, tuple[int, ...]] = {
    k: tuple(i for i, f in enumerate(fields(k)) if f.type == "bool") for k in KINDS
}


def _columns(match: re.Match[str]) -> str:
    names = COLUMNS[getattr(types, match[2])]
    return ", ".join(f":{n}" for n in names) if match[1] else ", ".join(names)
