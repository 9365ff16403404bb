"""Verbs on usage: tokens and cost per day, agent, session and model."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

import orjson

from hobnob.records import Struct
from hobnob.store.engine.tx import Tx
from hobnob.types import Usage


def add(tx: Tx, usage: Usage, *, context_tokens: int | None = None) -> None:
    """Add a model call to its day and to the totals of its session."""
    tx.put("usage_add", usage)
    tx.run(
        "session_add_usage",
        key=usage.session_key,
        model=usage.model,
        context_tokens=context_tokens,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        cost_usd=usage.cost_usd,
    )


def between(tx: Tx, first_day: str, last_day: str) -> list[Usage]:
    """Usage from one day to another, both included."""
    return tx.all(Usage, "usage_between", first=first_day, last=last_day)


def spent(
    tx: Tx,
    first_day: str,
    last_day: str,
    *,
    agents: Collection[str] | None = None,
    session_key: str | None = None,
    limit: int = 50,
) -> tuple[Usage | None, list[Usage]]:
    """The sum from one day to another, None without any, and the most expensive sessions.

    Of all agents or some, of all sessions or one. The database adds up: there is a row per session and day.
    """
    which = {
        "first": first_day,
        "last": last_day,
        "agents": None if agents is None else orjson.dumps(sorted(agents)).decode(),
        "key": session_key,
    }
    return tx.get(Usage, "usage_sum", **which), tx.all(Usage, "usage_by_session", **which, limit=limit)


def today() -> str:
    """The current day in UTC, as usage rows name it."""
    return datetime.now(UTC).date().isoformat()


class CostRow(Struct, frozen=True):
    """Usage added up under a name. `unpriced_tokens` are those of models without a known price."""

    name: str
    calls: int
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cost_usd: float
    unpriced_tokens: int


def added_up(
    tx: Tx, by: str, first_day: str, last_day: str, *, agents: Collection[str] | None, limit: int
) -> list[CostRow]:
    """Usage by agent, session, tree, model or day, the most expensive first; days in order."""
    rows = tx.rows(
        "usage_added_up",
        by=by,
        first=first_day,
        last=last_day,
        agents=None if agents is None else orjson.dumps(sorted(agents)).decode(),
        limit=limit,
    )
    return [CostRow(*row) for row in rows]
