"""What follows a finished turn, over all short histories."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob import exchanges
from hobnob.exchanges import CARRIED_CHARS, NextTurn, TurnResult, is_skip, reply_text
from hobnob.records import replace
from hobnob.types import Exchange

REQUESTER, TARGET = "agent:a:main", "agent:b:main"
ENDS = (
    "delivered no_route announce_skip reply_skip empty policy failed cancelled"
    " undelivered ambiguous deleted expired"
).split()
LOOP_ENDS = (None, "reply_skip", "max_turns", "empty", "failed", "policy")

runs = st.one_of(
    st.builds(
        TurnResult, st.just("ok"), st.sampled_from(["yes", "more?", "fine, REPLY_SKIP it is", " 42 \n"])
    ),
    st.builds(TurnResult, st.just("ok"), st.sampled_from(["REPLY_SKIP", " ANNOUNCE_SKIP\n"])),
    st.sampled_from(
        [
            TurnResult("no_output"),
            TurnResult("ok", "  "),
            TurnResult("failed", "half", "why"),
            TurnResult("timed_out", "ha"),
        ]
    ),
    st.sampled_from([TurnResult("cancelled", "", "stopped"), None]),  # None: the session takes no turn
)


def play(
    exchange: Exchange, history: list[TurnResult | None]
) -> tuple[Exchange, list[tuple[NextTurn, TurnResult]], Any]:
    """Run an exchange through a history. Returns how it stands, its turns, and what was posted."""
    turns: list[tuple[NextTurn, TurnResult]] = []
    due = iter(history)
    exchange, next_ = exchanges.after(exchange, next(due, None) or TurnResult("failed"))
    while isinstance(next_, NextTurn):
        ran = next(due, TurnResult("ok", "REPLY_SKIP"))
        if ran is None:
            exchange, next_ = exchanges.refused(exchange)
            continue
        turns.append((next_, ran))
        exchange, next_ = exchanges.after(exchange, ran)
    return exchange, turns, next_


def sent(max_turns: int = 5, **more: Any) -> Exchange:
    fields = {"requester_key": REQUESTER, "target_key": TARGET, "request": "hi", "max_turns": max_turns}
    return Exchange(**(fields | more))


@pytest.mark.promise("loop.at_most_the_limit", "loop.requester_first", "loop.alternates")
@given(st.integers(0, 5), st.lists(runs, max_size=9))
def test_the_loop_alternates_beginning_with_the_requester_and_never_exceeds_its_limit(
    most: int, history: list[TurnResult | None]
) -> None:
    _, turns, _ = play(sent(most), history)
    sides = [run.side for run, _ in turns if run.step == "reply"]
    assert len(sides) <= most
    assert sides == (["requester", "target"] * 3)[: len(sides)]


@pytest.mark.promise("announce.once_after_the_loop")
@given(st.integers(0, 5), st.lists(runs, max_size=9))
def test_there_is_at_most_one_announce_turn_and_nothing_after_it(
    most: int, history: list[TurnResult | None]
) -> None:
    exchange, turns, _ = play(sent(most), history)
    steps = [run.step for run, _ in turns]
    assert steps.count("announce") <= 1
    assert "announce" not in steps[:-1]
    if exchange.first_reply and exchange.end_reason not in ("policy", "cancelled"):
        assert steps[-1] == "announce"  # whatever was answered is announced, or decided not to be


@pytest.mark.promise("exchange.always_ends", "exchange.says_why_it_ended")
@given(st.integers(0, 5), st.lists(runs, max_size=9))
def test_an_exchange_is_over_or_has_a_message_to_deliver(most: int, history: list[TurnResult | None]) -> None:
    exchange, turns, post = play(sent(most), history)
    if post is None:
        assert exchange.state in ("done", "failed")
        assert exchange.end_reason in ENDS
    else:
        assert (exchange.state, exchange.phase) == ("open", "delivery")
        assert post.text == reply_text(turns[-1][1].text) != ""
    assert exchange.loop_end in LOOP_ENDS
    assert exchanges.after(replace(exchange, state="done"), TurnResult("ok", "more"))[1] is None


@pytest.mark.promise("loop.alternates")
@given(st.integers(1, 5), st.lists(runs, max_size=9))
def test_each_turn_of_the_loop_is_given_the_latest_reply(most: int, history: list[TurnResult | None]) -> None:
    exchange, turns, _ = play(sent(most), history)
    latest = exchange.first_reply
    for run, ran in turns:
        if run.step == "reply":
            assert run.text == latest
            latest = reply_text(ran.text) if reply_text(ran.text) and not ran.failed else latest
    assert exchange.last_reply == latest


@given(st.lists(runs, max_size=3))
def test_whatever_becomes_of_a_child_it_is_reported_or_silent_by_choice(
    history: list[TurnResult | None],
) -> None:
    exchange, turns, post = play(sent(kind="spawn"), history)
    assert [run.step for run, _ in turns] in ([], ["announce"])
    if post is None:
        assert exchange.end_reason in ("announce_skip", "policy")


@pytest.mark.promise(
    "loop.not_for_people", "loop.not_with_itself", "loop.zero_means_none", "announce.without_a_loop_too"
)
@pytest.mark.parametrize(
    ("requester", "most"), [(None, 5), (TARGET, 5), (REQUESTER, 0)], ids=["nobody", "itself", "no turns"]
)
def test_without_anybody_to_reply_to_the_announce_step_comes_at_once(
    requester: str | None, most: int
) -> None:
    exchange, next_ = exchanges.after(sent(most, requester_key=requester), TurnResult("ok", "yes"))
    assert next_ == NextTurn("announce", "target")
    assert exchange.loop_end is None


@pytest.mark.parametrize(
    ("ran", "state", "end"),
    [
        (TurnResult("failed", "", "no model"), "failed", "failed"),
        (TurnResult("timed_out", "half"), "failed", "failed"),
        (TurnResult("cancelled"), "failed", "cancelled"),
        (TurnResult("no_output"), "done", "empty"),
        (TurnResult("ok", "REPLY_SKIP"), "done", "reply_skip"),
    ],
)
def test_without_a_first_reply_nothing_follows(ran: TurnResult, state: str, end: str) -> None:
    exchange, next_ = exchanges.after(sent(), ran)
    assert (exchange.state, exchange.end_reason, next_) == (state, end, None)


@pytest.mark.promise(
    "loop.skip_ends_it", "loop.empty_reply_ends_it", "loop.failed_turn_ends_it", "loop.denied_policy_ends_it"
)
@pytest.mark.parametrize(
    ("ran", "loop_end"),
    [
        (TurnResult("ok", "REPLY_SKIP"), "reply_skip"),
        (TurnResult("no_output"), "empty"),
        (TurnResult("failed"), "failed"),
        (None, "policy"),
    ],
)
def test_however_the_loop_ends_it_is_announced(ran: TurnResult | None, loop_end: str) -> None:
    exchange, _ = exchanges.after(sent(), TurnResult("ok", "yes"))
    exchange, next_ = exchanges.after(exchange, ran) if ran else exchanges.refused(exchange)
    assert (exchange.loop_end, next_) == (loop_end, NextTurn("announce", "target"))


def test_the_loop_ends_after_its_last_turn() -> None:
    exchange, next_ = exchanges.after(sent(2), TurnResult("ok", "1"))
    for text in ("2", "3"):
        assert isinstance(next_, NextTurn)
        assert next_.step == "reply"
        exchange, next_ = exchanges.after(exchange, TurnResult("ok", text))
    assert (exchange.loop_end, exchange.last_reply, next_) == (
        "max_turns",
        "3",
        NextTurn("announce", "target"),
    )


@pytest.mark.parametrize(
    ("state", "ended", "why"),
    [
        ("delivered", "done", "delivered"),
        ("failed", "failed", "undelivered"),
        ("ambiguous", "done", "ambiguous"),
    ],
)
def test_the_end_of_its_delivery_ends_an_exchange(state: Any, ended: str, why: str) -> None:
    exchange = exchanges.delivered(sent(phase="delivery"), state)
    assert (exchange.state, exchange.end_reason) == (ended, why)
    assert exchanges.delivered(sent(phase="delivery"), "pending").state == "open"


@pytest.mark.promise("loop.skip_ends_it")
@pytest.mark.parametrize("text", ["REPLY_SKIP", "  ANNOUNCE_SKIP \n", "\tREPLY_SKIP"])
def test_a_control_word_alone_is_a_skip(text: str) -> None:
    assert is_skip(text)
    assert reply_text(text) == ""


@pytest.mark.promise("loop.skip_within_text_does_not")
@pytest.mark.parametrize(
    "text", ["reply_skip", "REPLY_SKIP.", "I say REPLY_SKIP", "ANNOUNCE_SKIP please", "`REPLY_SKIP`", "SKIP"]
)
def test_a_control_word_within_other_text_is_not_a_skip(text: str) -> None:
    assert not is_skip(text)
    assert reply_text(text) == text


def test_a_reply_that_is_too_long_to_be_passed_on_is_cut_and_says_so() -> None:
    assert reply_text("x" * CARRIED_CHARS) == "x" * CARRIED_CHARS
    cut = reply_text("x" * 5_000_000)
    assert len(cut) < CARRIED_CHARS + 200
    assert "4,968,000 of 5,000,000 characters left out" in cut
