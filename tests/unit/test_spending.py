"""Budgets: reservations and bookings of model calls, for all orders in which they can happen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob import spending
from hobnob.records import replace
from hobnob.spending import Amount, BudgetAccount, BudgetExceeded, Limits, ModelCall, Reservation

# A tree: each session is covered by its own budget and those of its ancestors, and each by one of two agents.
TREE = {
    "root": ["root"],
    "left": ["left", "root"],
    "right": ["right", "root"],
    "leaf": ["leaf", "left", "root"],
}
limits = st.builds(
    Limits,
    usd=st.none() | st.floats(0, 2),
    tokens=st.none() | st.integers(0, 20_000),
    turns=st.none() | st.integers(0, 5),
    seconds=st.none() | st.floats(0, 200),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(("reserve", "book", "fail", "cut", "longer")),
        st.sampled_from(sorted(TREE)),
        st.integers(1, 4_000),
        st.floats(0, 1),
    ),
    max_size=40,
)


def account(**limits: float) -> BudgetAccount:
    return BudgetAccount(kind="session", owner="s").limited_to(Limits(**limits))


def call(input_tokens: int = 100, max_output: int = 1_000, **more: float) -> ModelCall:
    return ModelCall(turn_id="t", input_tokens=input_tokens, max_output=max_output, **more)


@pytest.mark.promise("budget.never_exceeded")
@given(st.fixed_dictionaries({name: limits for name in TREE}), steps)
def test_what_is_spent_and_reserved_never_exceeds_a_budget_at_any_level(
    given_limits: dict[str, Limits], history: list[tuple[str, str, int, float]]
) -> None:
    """Whatever parallel children do in whatever order."""
    accounts = {n: BudgetAccount(kind="session", owner=n).limited_to(lim) for n, lim in given_limits.items()}
    running: list[tuple[list[str], Reservation]] = []

    def settle(names: list[str], held: Reservation, spent: Amount) -> None:
        for name in names:
            accounts[name] = spending.book(accounts[name], held, spent, priced=True)

    for action, session, size, share in history:
        names = TREE[session]
        if action == "reserve":
            asked = ModelCall(
                turn_id="t",
                input_tokens=size,
                max_output=size,
                input_usd=size / 10_000,
                output_token_usd=share / 1_000,
                starts_turn=True,
            )
            try:
                held, after = spending.reserve([accounts[n] for n in names], asked)
            except BudgetExceeded:
                continue
            accounts |= {a.owner: a for a in after}
            running.append((names, held))
        elif running:
            names, held = running.pop(0)
            if action == "book":
                spent = held.streamed(int(share * held.output_tokens), share * held.seconds)
                settle(names, held, spent)
            elif action == "fail":
                settle(names, held, Amount())
            elif action == "cut":
                settle(names, held, held.amount)
            else:
                try:
                    held, after = spending.longer([accounts[n] for n in names], held)
                    accounts |= {a.owner: a for a in after}
                except BudgetExceeded:
                    pass
                running.insert(0, (names, held))
        for each in accounts.values():
            for measure in spending.MEASURES:
                assert each.left(measure) >= -1e-6, (each, measure)
    for names, held in running:
        settle(names, held, Amount())
    for each in accounts.values():
        assert (each.reserved_tokens, each.reserved_usd, each.reserved_seconds) == (0, 0.0, 0.0)


def test_the_answer_is_limited_to_what_can_be_paid() -> None:
    held, (after,) = spending.reserve([account(tokens=2_000)], call(input_tokens=1_000, max_output=8_000))
    assert (held.output_tokens, after.reserved_tokens) == (500, 1_500)


def test_siblings_cannot_reserve_the_same_tokens() -> None:
    first = account(tokens=1_000)
    _, (after,) = spending.reserve([first], call(input_tokens=400, max_output=500))
    with pytest.raises(BudgetExceeded) as refused:
        spending.reserve([after], call(input_tokens=400, max_output=500))
    assert "1,000 tokens, 0 tokens spent, 700 tokens reserved, 300 tokens left" in refused.value.message


@pytest.mark.parametrize(
    ("kind", "owner", "setting"),
    [
        ("agent", "agent main", "agents.list[main].budget.tokens"),
        ("session", "session main", "hobnob sessions patch main --budget tokens=356"),
        ("exchange", "exchange main", "sessions_send"),
    ],
)
def test_a_refusal_names_the_budget_its_owner_and_the_setting(
    kind: spending.OwnerKind, owner: str, setting: str
) -> None:
    budget = BudgetAccount(kind=kind, owner="main", tokens=1)
    with pytest.raises(BudgetExceeded) as refused:
        spending.reserve([budget], call())
    assert (refused.value.reported_code, owner in refused.value.message) == ("budget.exceeded", True)
    assert setting in (refused.value.fix or "")


def test_a_refusal_says_one_turn_and_one_token() -> None:
    one_turn = replace(account(turns=1), spent_turns=1)
    with pytest.raises(BudgetExceeded) as refused:
        spending.reserve([one_turn], call(starts_turn=True))
    expected = "1 turn, 1 turn spent, 0 turns reserved, 0 turns left; this call needs at least 1 turn."
    assert expected in refused.value.message
    with pytest.raises(BudgetExceeded) as refused:
        spending.reserve([account(tokens=1)], call())
    assert "1 token, 0 tokens spent" in refused.value.message


def test_a_call_without_a_known_price_counts_as_tokens_only() -> None:
    held, (after,) = spending.reserve([account(usd=0.01, tokens=5_000)], call())
    booked = spending.book(after, held, Amount(tokens=300), priced=False)
    assert (booked.spent_usd, booked.spent_tokens, booked.unpriced_calls) == (0.0, 300, 1)


def test_a_warning_is_given_once_from_four_fifths_on() -> None:
    before = replace(account(tokens=1_000), spent_tokens=799)
    assert spending.warning(before) is None
    at = replace(before, spent_tokens=800)
    assert spending.warning(at) == (
        "⚠️ 80% of the budget of the session s is spent: 800 tokens of 1,000 tokens."
    )
    assert spending.warning(replace(at, warned=True)) is None


def test_a_call_that_was_cut_off_costs_its_input_and_what_was_streamed() -> None:
    held = Reservation(turn_id="t", input_tokens=100, output_tokens=50, input_usd=1.0, output_usd=0.5)
    assert held.streamed(10, 2.0) == Amount(usd=1.1, tokens=110, seconds=2.0)
