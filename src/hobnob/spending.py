"""Budgets: what a model call may cost before it is made, and what it has cost afterwards. Pure.

A budget belongs to an agent (per day), to a session with everything it spawned, or to an exchange. Before a
model call its worst case is reserved in every budget that covers it; when its usage is known, that is booked
and the rest given back. So parallel calls never spend the same money.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

from hobnob.errors import HobnobError
from hobnob.fixes import config_set
from hobnob.records import Struct, field, replace
from hobnob.types import now_ms

Measure = Literal["usd", "tokens", "turns", "seconds"]
OwnerKind = Literal["agent", "session", "exchange"]
MEASURES: tuple[Measure, ...] = ("usd", "tokens", "turns", "seconds")
WARN_AT = 0.8
MIN_OUTPUT = 256  # tokens; a call that may say less is not worth making
DEFAULT_OUTPUT = 8_192  # of a model whose limit is not known; it is sent as the limit
SLICE_S = 60.0  # of time that is reserved at once


class Limits(Struct, frozen=True):
    """What a budget allows; None means no limit."""

    usd: float | None = None
    tokens: int | None = None
    turns: int | None = None
    seconds: float | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in MEASURES)


class Amount(Struct, frozen=True):
    """Of money, tokens, turns and time in model calls."""

    usd: float = 0.0
    tokens: int = 0
    turns: int = 0
    seconds: float = 0.0


class BudgetAccount(Struct, frozen=True):
    """A budget and what was spent of it. The limits of an agent are those of the settings at the last call.

    `day` is that of an agent's budget in UTC, empty for others. `unpriced_calls` have an unknown price: they
    count as tokens only.
    """

    kind: OwnerKind
    owner: str
    day: str = ""
    usd: float | None = None
    tokens: int | None = None
    turns: int | None = None
    seconds: float | None = None
    spent_usd: float = 0.0
    spent_tokens: int = 0
    spent_turns: int = 0
    spent_seconds: float = 0.0
    reserved_usd: float = 0.0
    reserved_tokens: int = 0
    reserved_seconds: float = 0.0
    unpriced_calls: int = 0
    warned: bool = False
    created_at_ms: int = field(default_factory=now_ms)
    updated_at_ms: int = field(default_factory=now_ms)

    @property
    def limits(self) -> Limits:
        return Limits(usd=self.usd, tokens=self.tokens, turns=self.turns, seconds=self.seconds)

    def limited_to(self, limits: Limits) -> BudgetAccount:
        return replace(self, **{name: getattr(limits, name) for name in MEASURES})

    def spent(self, measure: Measure) -> float:
        return float(getattr(self, f"spent_{measure}"))

    def reserved(self, measure: Measure) -> float:
        return 0.0 if measure == "turns" else float(getattr(self, f"reserved_{measure}"))

    def left(self, measure: Measure) -> float:
        """What is neither spent nor reserved; infinite without a limit."""
        limit = getattr(self, measure)
        return math.inf if limit is None else limit - self.spent(measure) - self.reserved(measure)

    def json(self) -> dict[str, Any]:
        """The budget as clients see it."""
        limited = [name for name in MEASURES if getattr(self, name) is not None]
        return {
            "kind": self.kind,
            "owner": self.owner,
            "day": self.day or None,
            "measures": {
                name: {
                    "limit": getattr(self, name),
                    "spent": _rounded(name, self.spent(name)),
                    "reserved": _rounded(name, self.reserved(name)),
                    "left": _rounded(name, max(0.0, self.left(name))),
                }
                for name in limited
            },
            "unpricedCalls": self.unpriced_calls,
        }


class Reservation(Struct, frozen=True):
    """The worst case of the model call that a turn makes. `accounts` is JSON: kind, owner and day of each."""

    turn_id: str
    accounts: str = "[]"
    input_tokens: int = 0
    output_tokens: int = 0
    input_usd: float = 0.0
    output_usd: float = 0.0
    seconds: float = 0.0
    priced: bool = True
    created_at_ms: int = field(default_factory=now_ms)

    @property
    def amount(self) -> Amount:
        return Amount(
            usd=self.input_usd + self.output_usd,
            tokens=self.input_tokens + self.output_tokens,
            seconds=self.seconds,
        )

    def streamed(self, output_tokens: int, seconds: float) -> Amount:
        """The likely cost of a call that was cut off after so many tokens of its answer."""
        share = min(1.0, output_tokens / self.output_tokens) if self.output_tokens else 0.0
        return Amount(
            usd=self.input_usd + share * self.output_usd,
            tokens=self.input_tokens + min(output_tokens, self.output_tokens),
            seconds=min(seconds, self.seconds) if self.seconds else seconds,
        )


class ModelCall(Struct, frozen=True):
    """A call that is about to be made. The prices are None if they are unknown."""

    turn_id: str
    input_tokens: int
    max_output: int
    input_usd: float | None = None
    output_token_usd: float | None = None
    starts_turn: bool = False

    @property
    def priced(self) -> bool:
        return self.input_usd is not None and self.output_token_usd is not None


class BudgetExceeded(HobnobError):
    """A budget has not enough left."""

    code = "budget.exceeded"
    http_status = 403

    def __init__(self, account: BudgetAccount, measure: Measure, needed: float) -> None:
        self.account, self.measure = account, measure
        limit = getattr(account, measure)
        per_day = " a day" if account.kind == "agent" else ""
        super().__init__(
            f"The budget of {owner_text(account)} has not enough left: {_amount(measure, limit)}{per_day},"
            f" {_amount(measure, account.spent(measure))} spent,"
            f" {_amount(measure, account.reserved(measure))} reserved,"
            f" {_amount(measure, max(0.0, account.left(measure)))} left;"
            f" this call needs at least {_amount(measure, needed)}.",
            fix=_fix(account, measure, account.spent(measure) + account.reserved(measure) + needed),
        )


def owner_text(account: BudgetAccount) -> str:
    match account.kind:
        case "agent":
            return f"the agent {account.owner}"
        case "session":
            return f"the session {account.owner}"
        case "exchange":
            return f"the exchange {account.owner}"


def _fix(account: BudgetAccount, measure: Measure, enough: float) -> str:
    """How to raise a budget, to what would be enough for this call."""
    value = math.ceil(enough * 100) / 100 if measure == "usd" else math.ceil(enough)
    match account.kind:
        case "agent":
            path = f"agents.list[{account.owner}].budget"
            return config_set(f"{path}.{measure}", value)
        case "session":
            return f"hobnob sessions patch {account.owner} --budget {measure}={value}"
        case "exchange":
            return f"Give the next sessions_send a larger budget: {measure} {value}."


def reserve(accounts: Iterable[BudgetAccount], call: ModelCall) -> tuple[Reservation, list[BudgetAccount]]:
    """The reservation for a call, and the accounts with it. Raises BudgetExceeded.

    The answer is limited to what can be paid. A call whose answer could use up more than half of what is left
    gets half, so that calls at the same time can be made too.
    """
    accounts = list(accounts)
    output, seconds = call.max_output, 0.0
    least = min(MIN_OUTPUT, call.max_output)
    for account in accounts:
        if call.starts_turn and account.left("turns") < 1:
            raise BudgetExceeded(account, "turns", 1)
        if account.left("seconds") <= 0:
            raise BudgetExceeded(account, "seconds", 1)
        if account.seconds is not None:
            seconds = min(seconds or SLICE_S, account.left("seconds"))
        output = min(output, _affordable(account, call, least))
    reservation = Reservation(
        turn_id=call.turn_id,
        input_tokens=call.input_tokens,
        output_tokens=output,
        input_usd=call.input_usd or 0.0,
        output_usd=output * (call.output_token_usd or 0.0),
        seconds=seconds,
        priced=call.priced,
    )
    return reservation, [_hold(account, reservation, call.starts_turn) for account in accounts]


def _affordable(account: BudgetAccount, call: ModelCall, least: int) -> int:
    """The longest answer that a budget can pay, in tokens."""
    output = call.max_output
    if account.tokens is not None:
        left = account.left("tokens") - call.input_tokens
        if left < least:
            raise BudgetExceeded(account, "tokens", call.input_tokens + least)
        output = min(output, _share(left, least, output))
    if account.usd is not None and call.input_usd is not None and call.output_token_usd is not None:
        left = account.left("usd") - call.input_usd
        price = call.output_token_usd
        if left < least * price or left < 0:
            raise BudgetExceeded(account, "usd", call.input_usd + least * price)
        if price:
            output = min(output, _share(left / price, least, output))
    return output


def _share(left: float, least: int, wanted: int) -> int:
    return wanted if 2 * wanted <= left else max(least, math.floor(left / 2))


def _hold(account: BudgetAccount, reservation: Reservation, starts_turn: bool) -> BudgetAccount:
    amount = reservation.amount
    return replace(
        account,
        reserved_usd=account.reserved_usd + amount.usd,
        reserved_tokens=account.reserved_tokens + amount.tokens,
        reserved_seconds=account.reserved_seconds + (amount.seconds if account.seconds is not None else 0.0),
        spent_turns=account.spent_turns + starts_turn,
        updated_at_ms=now_ms(),
    )


def longer(
    accounts: Iterable[BudgetAccount], reservation: Reservation
) -> tuple[Reservation, list[BudgetAccount]]:
    """A reservation with more time, and the accounts with it. Raises BudgetExceeded."""
    accounts, more = list(accounts), SLICE_S
    for account in accounts:
        if account.seconds is not None:
            if (left := account.left("seconds")) <= 0:
                raise BudgetExceeded(account, "seconds", 1)
            more = min(more, left)
    held = [
        replace(a, reserved_seconds=a.reserved_seconds + more) if a.seconds is not None else a
        for a in accounts
    ]
    return replace(reservation, seconds=reservation.seconds + more), held


def book(account: BudgetAccount, reservation: Reservation, spent: Amount, *, priced: bool) -> BudgetAccount:
    """The account after a call: what it cost is spent, the rest of its reservation given back."""
    held = reservation.amount
    timed = account.seconds is not None
    return replace(
        account,
        spent_usd=account.spent_usd + spent.usd,
        spent_tokens=account.spent_tokens + spent.tokens,
        spent_seconds=account.spent_seconds + spent.seconds,
        reserved_usd=_given_back(account.reserved_usd, held.usd),
        reserved_tokens=max(0, account.reserved_tokens - held.tokens),
        reserved_seconds=_given_back(account.reserved_seconds, held.seconds if timed else 0.0),
        unpriced_calls=account.unpriced_calls + (not priced),
        updated_at_ms=now_ms(),
    )


def _given_back(reserved: float, held: float) -> float:
    left = reserved - held
    return 0.0 if left < 1e-9 else left  # what adding and subtracting fractions leaves behind


def warning(account: BudgetAccount) -> str | None:
    """What to tell people about a budget that is nearly used up; None if it is not, or was told before."""
    if account.warned:
        return None
    for name in MEASURES:
        limit = getattr(account, name)
        if limit is not None and account.spent(name) >= WARN_AT * limit:
            share = account.spent(name) / limit if limit else 1.0
            return (
                f"⚠️ {share:.0%} of the budget of {owner_text(account)} is spent:"
                f" {_amount(name, account.spent(name))} of {_amount(name, limit)}."
            )
    return None


def _amount(measure: Measure, value: float) -> str:
    match measure:
        case "usd":
            return f"${value:,.4f}" if 0 < value < 1 else f"${value:,.2f}"
        case "tokens":
            return _counted(value, "token")
        case "turns":
            return _counted(value, "turn")
        case "seconds":
            return f"{value:,.0f} s"


def _counted(value: float, noun: str) -> str:
    number = f"{value:,.0f}"
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"


def _rounded(measure: Measure, value: float) -> float | int:
    return round(value, 6) if measure == "usd" else round(value, 3) if measure == "seconds" else round(value)
