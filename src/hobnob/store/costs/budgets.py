"""Verbs on budgets and on the reservations of model calls. What they do with them is in `metering`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from hobnob.spending import BudgetAccount, OwnerKind, Reservation
from hobnob.store.engine.tx import Tx


def lock(tx: Tx, owners: Iterable[tuple[OwnerKind, str]]) -> None:
    """Reserve and book one at a time in the budgets of these owners: agents, sessions and exchanges."""
    for kind, owner in sorted(set(owners)):
        tx.lock("budget", f"{kind} {owner}")


def find(tx: Tx, kind: OwnerKind, owner: str, day: str = "") -> BudgetAccount | None:
    return tx.get(BudgetAccount, "budget_get", kind=kind, owner=owner, day=day)


def save(tx: Tx, account: BudgetAccount) -> None:
    tx.put("budget_save", account)


def delete(tx: Tx, kind: OwnerKind, owner: str, day: str = "") -> None:
    tx.run("budget_delete", kind=kind, owner=owner, day=day)


def covering(tx: Tx, session_keys: Sequence[str], exchange_id: str | None) -> list[BudgetAccount]:
    """The budgets of these sessions and of an exchange."""
    keys = orjson.dumps(list(session_keys)).decode()
    return tx.all(BudgetAccount, "budgets_of", keys=keys, exchange_id=exchange_id or "")


def listed(tx: Tx, first_day: str, *, limit: int = 200) -> list[BudgetAccount]:
    """All budgets, those of agents from a day on, the latest used first."""
    return tx.all(BudgetAccount, "budgets_listed", day=first_day, limit=limit)


def forget_before(tx: Tx, day: str) -> None:
    """Delete the budgets of agents of days before this one, and those of exchanges that are gone."""
    tx.run("budgets_forget", day=day)


def reservation(tx: Tx, turn_id: str) -> Reservation | None:
    return tx.get(Reservation, "reservation_get", turn_id=turn_id)


def open_reservations(tx: Tx) -> list[Reservation]:
    return tx.all(Reservation, "reservations_open")


def reservations_of(tx: Tx, session_key: str) -> list[Reservation]:
    """The reservations of the open turns of a session."""
    return tx.all(Reservation, "reservations_of_session", key=session_key)


def hold(tx: Tx, reservation: Reservation) -> None:
    tx.put("reservation_save", reservation)


def let_go(tx: Tx, turn_id: str) -> None:
    tx.run("reservation_delete", turn_id=turn_id)
