"""Verbs on exchanges and the deliveries they lead to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from hobnob.errors import NotFound
from hobnob.events import ExchangeChanged
from hobnob.store.engine.tx import Tx
from hobnob.types import Exchange, Turn, now_ms


def begin(tx: Tx, exchange: Exchange) -> Exchange:
    tx.put("exchange_insert", exchange)
    tx.changes.append(ExchangeChanged(exchange))
    return exchange


def find(tx: Tx, exchange_id: str) -> Exchange | None:
    return tx.get(Exchange, "exchange_get", exchange_id=exchange_id)


def get(tx: Tx, exchange_id: str) -> Exchange:
    exchange = find(tx, exchange_id)
    if exchange is None:
        raise NotFound(f"There is no exchange {exchange_id}.")
    return exchange


def save(tx: Tx, exchange: Exchange) -> Exchange:
    """Keep what has changed, and say so."""
    exchange = replace(exchange, updated_at_ms=now_ms())
    if not tx.put("exchange_update", exchange):
        raise NotFound(f"There is no exchange {exchange.exchange_id}.")
    tx.changes.append(ExchangeChanged(exchange))
    return exchange


def open_of(tx: Tx, session_key: str) -> list[Exchange]:
    """The exchanges a session has a part in that have not ended."""
    return tx.all(Exchange, "exchanges_open_of", key=session_key)


def awaited_by(tx: Tx, session_key: str) -> list[str]:
    """The sessions this one waits for at the moment."""
    return [row[0] for row in tx.rows("exchanges_awaited", key=session_key, now_ms=now_ms())]


def spawned_by(tx: Tx, session_key: str, *, limit: int = 100) -> list[Exchange]:
    """The spawns of a session, newest first."""
    return tx.all(Exchange, "exchanges_children", key=session_key, limit=limit)


def live_children(tx: Tx, session_key: str) -> int:
    return cast(int, tx.value("children_live", key=session_key))


def unswept(tx: Tx, due_ms: int, *, after: tuple[int, str] = (0, ""), limit: int = 100) -> list[Exchange]:
    """Spawns that ended and whose child is to be put away, oldest first: kept ones that ended by `due_ms`."""
    after_ms, after_id = after
    query = "exchanges_unswept"
    return tx.all(Exchange, query, due_ms=due_ms, after_ms=after_ms, after_id=after_id, limit=limit)


def settle(tx: Tx, exchange_id: str, *, swept: bool) -> None:
    """Note that the files of a spawn are gone, and whether its child is put away."""
    tx.run("exchange_swept", exchange_id=exchange_id, swept=int(swept))


def stale(tx: Tx, before_ms: int, *, limit: int = 100) -> list[Exchange]:
    """Open exchanges in which nothing has happened since."""
    return tx.all(Exchange, "exchanges_stale", before_ms=before_ms, limit=limit)


def turns(tx: Tx, exchange_id: str) -> list[Turn]:
    """The turns of an exchange, in the order they were accepted."""
    return tx.all(Turn, "exchange_turns", exchange_id=exchange_id)


def page(tx: Tx, *, after: tuple[int, str] | None = None, limit: int = 50) -> list[Exchange]:
    """Exchanges, newest first."""
    before_ms, after_id = after or (2**62, "")
    return tx.all(Exchange, "exchanges_recent", before_ms=before_ms, after_id=after_id, limit=limit)


def traffic(tx: Tx, since_ms: int, *, limit: int = 500) -> list[tuple[Any, ...]]:
    """What exchanges since then add up to, the busiest first.

    A row: requester, target, kind, exchanges, messages, tokens, cost, how many failed, when the last was.
    """
    return tx.rows("exchanges_traffic", since_ms=since_ms, limit=limit)


def counted(tx: Tx) -> list[tuple[object, ...]]:
    """Phase, whether somebody waits, and number of exchanges under way."""
    return tx.rows("exchanges_counted", now_ms=now_ms())
