"""Metering: reserve the worst case of a model call in its budgets, book what it cost. In a transaction."""

from __future__ import annotations

from typing import Any

import orjson

from hobnob import spending
from hobnob.config import Settings
from hobnob.delivery_routes import delivery_route
from hobnob.records import replace
from hobnob.spending import Amount, BudgetAccount, Limits, ModelCall, Reservation
from hobnob.store import Tx, deliveries, turns
from hobnob.store import sessions as session_rows
from hobnob.store.costs import budgets
from hobnob.store.costs import usage as usage_rows
from hobnob.types import LINEAGE_SEP, Session, Turn, now_ms


def agent_limits(settings: Settings, agent_id: str) -> Limits:
    """The budget of an agent per day, by the settings."""
    agent = settings.agent(agent_id)
    budget = (
        agent.budget if agent is not None and agent.budget is not None else settings.agents.defaults.budget
    )
    return Limits(usd=budget.usd, tokens=budget.tokens, turns=budget.turns, seconds=budget.seconds)


def covered_by(session: Session) -> list[str]:
    """The sessions whose budgets cover a session: its own and those of its ancestors."""
    return [session.key, *filter(None, session.lineage.split(LINEAGE_SEP))]


def has_budget(tx: Tx, session: Session, turn: Turn) -> bool:
    return bool(budgets.covering(tx, covered_by(session), turn.exchange_id))


def reserve(tx: Tx, limits: Limits, session: Session, turn: Turn, call: ModelCall) -> Reservation:
    """Reserve the worst case of a call in every budget that covers it. Raises BudgetExceeded.

    A reservation that the turn still has is of a call whose usage never became known: it is booked in full.
    Raises Fenced: the commit of a gateway that was killed may come after its turn was recovered.
    """
    turns.check_claim(tx, turn)
    earlier = budgets.reservation(tx, turn.turn_id)
    budgets.lock(tx, [*_owners(limits, session, turn), *(_owners_of(earlier) if earlier else ())])
    if earlier is not None:
        _settle(tx, earlier, earlier.amount, priced=earlier.priced)
        call = replace(call, starts_turn=False)
    accounts = _accounts(tx, limits, session, turn)
    reservation, held = spending.reserve(accounts, call)
    _hold(tx, reservation, held)
    return replace(reservation, accounts=_names(held))


def extend(tx: Tx, turn: Turn) -> Reservation | None:
    """Reserve more time for a call that goes on. Raises BudgetExceeded, and Fenced like `reserve`."""
    turns.check_claim(tx, turn)
    if (found := budgets.reservation(tx, turn.turn_id)) is None:
        return None
    budgets.lock(tx, _owners_of(found))
    reservation, held = spending.longer(_named(tx, found), found)
    _hold(tx, reservation, held)
    return reservation


def give_back(tx: Tx, turn: Turn, *, made: bool) -> None:
    """Settle a call that failed. One that was not `made` costs nothing; of the other the cost is unknown.

    Raises Fenced: by then the turn may have a reservation of another gateway.
    """
    turns.check_claim(tx, turn)
    if (found := budgets.reservation(tx, turn.turn_id)) is not None:
        amount = found.amount if made else Amount(seconds=_seconds(found))
        _settle(tx, found, amount, priced=found.priced or not made)


def book(tx: Tx, turn: Turn, usage: dict[str, Any]) -> None:
    """Book the usage of the call that a turn made."""
    if (found := budgets.reservation(tx, turn.turn_id)) is None:
        return
    names = ("input", "output", "cacheRead", "cacheWrite")
    cost = (usage.get("cost") or {}).get("total")
    spent = Amount(
        usd=cost or 0.0,
        tokens=sum(int(usage.get(name) or 0) for name in names),
        seconds=_seconds(found),
    )
    _settle(tx, found, spent, priced=cost is not None, session_key=turn.session_key)


def close(tx: Tx, turn: Turn, text: str) -> None:
    """Settle what a turn that ends still has reserved: its call was cut off after this text."""
    if (found := budgets.reservation(tx, turn.turn_id)) is not None:
        output = len(text.encode("utf-8", "replace")) // 3 + 1
        amount = found.streamed(output, _seconds(found))
        _settle(tx, found, amount, priced=found.priced, session_key=turn.session_key)


def recover(tx: Tx) -> None:
    """Book the calls of a dead process in full: they may have been made.

    An empty reservation stays for a turn that will be resumed: it was counted before.
    """
    for found in budgets.open_reservations(tx):
        _settle(tx, found, found.amount, priced=found.priced)
        turn = turns.find(tx, found.turn_id)
        if turn is not None and turn.status != "ended":
            budgets.hold(tx, Reservation(turn_id=found.turn_id))


def session_deleted(tx: Tx, key: str) -> None:
    """Book the calls of a session that is deleted, and forget its budget."""
    for found in budgets.reservations_of(tx, key):
        _settle(tx, found, found.amount, priced=found.priced)
    budgets.delete(tx, "session", key)


def set_limits(tx: Tx, kind: spending.OwnerKind, owner: str, limits: Limits) -> BudgetAccount | None:
    """Set the budget of a session or an exchange, or remove it. What was spent of it so far stays."""
    if not limits:
        budgets.delete(tx, kind, owner)
        return None
    budgets.lock(tx, [(kind, owner)])
    account = budgets.find(tx, kind, owner) or BudgetAccount(kind=kind, owner=owner)
    account = replace(account.limited_to(limits), warned=False)
    budgets.save(tx, account)
    return account


def _owners(limits: Limits, session: Session, turn: Turn) -> list[tuple[spending.OwnerKind, str]]:
    """Whoever may have a budget that covers a turn."""
    owners: list[tuple[spending.OwnerKind, str]] = [("session", key) for key in covered_by(session)]
    if limits:
        owners.append(("agent", session.agent_id))
    if turn.exchange_id is not None:
        owners.append(("exchange", turn.exchange_id))
    return owners


def _owners_of(reservation: Reservation) -> list[tuple[spending.OwnerKind, str]]:
    return [(kind, owner) for kind, owner, _ in orjson.loads(reservation.accounts)]


def _accounts(tx: Tx, limits: Limits, session: Session, turn: Turn) -> list[BudgetAccount]:
    found = budgets.covering(tx, covered_by(session), turn.exchange_id)
    if limits:
        day = usage_rows.today()
        account = budgets.find(tx, "agent", session.agent_id, day) or _first_of_day(tx, session.agent_id, day)
        found.insert(0, account.limited_to(limits))
    return found


def _first_of_day(tx: Tx, agent_id: str, day: str) -> BudgetAccount:
    """The account of an agent for a day, with what the agent spent before it had a budget."""
    used, _ = usage_rows.spent(tx, day, day, agents=[agent_id], limit=1)
    if used is None:
        return BudgetAccount(kind="agent", owner=agent_id, day=day)
    tokens = used.input_tokens + used.output_tokens + used.cache_read_tokens + used.cache_write_tokens
    return BudgetAccount(kind="agent", owner=agent_id, day=day, spent_usd=used.cost_usd, spent_tokens=tokens)


def _names(accounts: list[BudgetAccount]) -> str:
    return orjson.dumps([[a.kind, a.owner, a.day] for a in accounts]).decode()


def _named(tx: Tx, reservation: Reservation) -> list[BudgetAccount]:
    found = (budgets.find(tx, *name) for name in orjson.loads(reservation.accounts))
    return [account for account in found if account is not None]


def _hold(tx: Tx, reservation: Reservation, held: list[BudgetAccount]) -> None:
    for account in held:
        budgets.save(tx, account)
    budgets.hold(tx, replace(reservation, accounts=_names(held)))


def _settle(
    tx: Tx, reservation: Reservation, spent: Amount, *, priced: bool, session_key: str | None = None
) -> None:
    budgets.lock(tx, _owners_of(reservation))
    for account in _named(tx, reservation):
        after = spending.book(account, reservation, spent, priced=priced)
        if (text := spending.warning(after)) and session_key is not None:
            _warn(tx, session_key, text)
            after = replace(after, warned=True)
        budgets.save(tx, after)
    budgets.let_go(tx, reservation.turn_id)


def _warn(tx: Tx, session_key: str, text: str) -> None:
    """Tell the people of the session that all began with."""
    session = session_rows.find(tx, session_key)
    root = session_rows.find(tx, session.root_key) if session else None
    route = delivery_route(root) if root else None
    if root is not None and route is not None:
        deliveries.create(tx, route.delivery(root.key, text, kind="notice"))


def _seconds(reservation: Reservation) -> float:
    return max(0, now_ms() - reservation.created_at_ms) / 1000
