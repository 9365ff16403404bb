"""Verbs on exchanges, and on waits for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import orjson

from hobnob.errors import NotFound
from hobnob.events import ExchangeChanged
from hobnob.joins import Wait
from hobnob.records import replace
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
        raise NotFound(f"There is no exchange with the id {exchange_id!r}.")
    return exchange


def save(tx: Tx, exchange: Exchange) -> Exchange:
    """Save a changed exchange and record the change."""
    exchange = replace(exchange, updated_at_ms=now_ms())
    if not tx.put("exchange_update", exchange):
        raise NotFound(f"There is no exchange with the id {exchange.exchange_id!r}.")
    tx.changes.append(ExchangeChanged(exchange))
    return exchange


def open_of(tx: Tx, session_key: str) -> list[Exchange]:
    """The open exchanges a session takes part in."""
    return tx.all(Exchange, "exchanges_open_of", key=session_key)


def lock_waits(tx: Tx) -> None:
    """Look for circles of waits one at a time: two transactions could close one that neither of them sees."""
    tx.lock("waits", "")


def awaited_by(tx: Tx, session_key: str) -> list[str]:
    """The sessions this one waits for at the moment."""
    return [row[0] for row in tx.rows("exchanges_awaited", key=session_key, now_ms=now_ms())]


def awaited_by_any(tx: Tx, session_keys: Iterable[str]) -> dict[str, list[str]]:
    """The sessions each of these waits for at the moment; those that wait for none are left out."""
    found: dict[str, list[str]] = {}
    wanted = orjson.dumps(sorted(set(session_keys))).decode()
    for requester, target in tx.rows("exchanges_awaited_by_any", keys=wanted, now_ms=now_ms()):
        found.setdefault(requester, []).append(target)
    return found


def spawned_by(tx: Tx, session_key: str, *, limit: int = 100) -> list[Exchange]:
    """The spawns of a session, newest first."""
    return tx.all(Exchange, "exchanges_children", key=session_key, limit=limit)


def spawned_by_any(tx: Tx, session_keys: Iterable[str], *, limit: int = 10_000) -> list[Exchange]:
    """The spawns of several sessions, newest first."""
    wanted = orjson.dumps(sorted(set(session_keys))).decode()
    return tx.all(Exchange, "exchanges_children_of_any", keys=wanted, limit=limit)


def live_children(tx: Tx, session_key: str) -> int:
    """How many children of a session are working."""
    return cast(int, tx.value("children_live", key=session_key))


def group_size(tx: Tx, session_key: str, group_id: str | None) -> tuple[int, int]:
    """How many children of a group are working, and how many there are."""
    [(working, total)] = tx.rows("group_size", key=session_key, group_id=group_id)
    return working, total


def group_runs(tx: Tx, session_key: str, group_id: str) -> list[str]:
    """The ids of the first turns of a group, in the order accepted."""
    return [row[0] for row in tx.rows("group_runs", key=session_key, group_id=group_id)]


def of_any(tx: Tx, exchange_ids: Iterable[str]) -> list[Exchange]:
    """Several exchanges, in the order accepted."""
    return tx.all(Exchange, "exchanges_of_any", ids=orjson.dumps(sorted(set(exchange_ids))).decode())


def settled(tx: Tx, exchange_ids: Iterable[str]) -> set[str]:
    """Those of the exchanges whose result is known, or that are gone."""
    wanted = orjson.dumps(sorted(set(exchange_ids))).decode()
    return {row[0] for row in tx.rows("waits_settled", ids=wanted)}


def begin_wait(tx: Tx, wait: Wait) -> Wait:
    tx.put("wait_insert", wait)
    return wait


def find_wait(tx: Tx, wait_id: str) -> Wait | None:
    return tx.get(Wait, "wait_get", wait_id=wait_id)


def end_wait(tx: Tx, wait: Wait) -> None:
    """Save the end of a wait that was open."""
    tx.put("wait_end", wait)


def yielded(tx: Tx, session_key: str) -> list[Wait]:
    """The open waits of a session that ended its turn."""
    lock_yields(tx, session_key)
    return tx.all(Wait, "waits_yielded", key=session_key)


def lock_yields(tx: Tx, session_key: str) -> None:
    """Keep children of a session from ending while it decides which of them it waits for, and the reverse."""
    tx.lock("yield", session_key)


def forget_yields(tx: Tx, session_key: str) -> None:
    """Wake the session for no sub-agent any more."""
    tx.run("waits_forget_yields", key=session_key)


def unswept(tx: Tx, due_ms: int, *, after: tuple[int, str] = (0, ""), limit: int = 100) -> list[Exchange]:
    """Ended spawns whose child is to be cleaned up, oldest first; kept children only if ended by `due_ms`."""
    after_ms, after_id = after
    query = "exchanges_unswept"
    return tx.all(Exchange, query, due_ms=due_ms, after_ms=after_ms, after_id=after_id, limit=limit)


def mark_cleaned(tx: Tx, exchange_id: str, *, swept: bool) -> None:
    """Record that the attachments of a spawn are removed, and whether its child is cleaned up."""
    tx.run("exchange_swept", exchange_id=exchange_id, swept=int(swept))


def stale(tx: Tx, before_ms: int, *, limit: int = 100) -> list[Exchange]:
    """Open exchanges without a change since `before_ms`, oldest first."""
    return tx.all(Exchange, "exchanges_stale", before_ms=before_ms, limit=limit)


def turns(tx: Tx, exchange_id: str) -> list[Turn]:
    """The turns of an exchange, in the order accepted."""
    return tx.all(Turn, "exchange_turns", exchange_id=exchange_id)


def turns_of_any(tx: Tx, exchange_ids: Iterable[str]) -> dict[str, list[Turn]]:
    """The turns of several exchanges, each in the order accepted."""
    found: dict[str, list[Turn]] = {}
    wanted = orjson.dumps(sorted(set(exchange_ids))).decode()
    for turn in tx.each(Turn, "exchanges_turns", ids=wanted):
        found.setdefault(str(turn.exchange_id), []).append(turn)
    return found


def page(tx: Tx, *, after: tuple[int, str] | None = None, limit: int = 50) -> list[Exchange]:
    """Exchanges, newest first."""
    before_ms, after_id = after or (2**62, "")
    return tx.all(Exchange, "exchanges_recent", before_ms=before_ms, after_id=after_id, limit=limit)


def traffic(tx: Tx, since_ms: int, *, limit: int = 500) -> list[tuple[Any, ...]]:
    """Totals of the exchanges since `since_ms` per pair of sessions, the busiest first.

    A row: requester, target, kind, exchanges, messages, tokens, cost, failures, time of the last one.
    """
    return tx.rows("exchanges_traffic", since_ms=since_ms, limit=limit)


def count_open(tx: Tx) -> list[tuple[object, ...]]:
    """Rows (phase, whether somebody waits, number) of open exchanges."""
    return tx.rows("exchanges_counted", now_ms=now_ms())
