"""Waits for several runs, over all short histories of their ends, the clock and repeated questions."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob import joins
from hobnob.errors import BadInput
from hobnob.joins import Mode, Wait

RUNS = ["a", "b", "c"]
DEADLINE = 100
EVENTS = [*RUNS, "deadline", "ask"]


def wait_for(runs: list[str], mode: Mode) -> Wait:
    return Wait(
        wait_id="w",
        session_key="agent:a:main",
        kind="join",
        ids=joins.encoded(runs),
        needed=joins.needed(mode, len(runs)),
        deadline_ms=DEADLINE,
    )


def play(wait: Wait, history: tuple[str, ...] | list[str]) -> list[Wait]:
    """The wait after each event. Any of them may be the moment at which somebody looks."""
    ended: set[str] = set()
    at, seen = 0, [joins.after(wait, ended, 0)]
    for event in history:
        if event in RUNS:
            ended.add(event)
        at = DEADLINE if event == "deadline" else at
        seen.append(joins.after(seen[-1], ended, at))
    return seen


ALL_HISTORIES = [history for length in range(6) for history in product(EVENTS, repeat=length)]


@pytest.mark.promise("join.all_any_n", "join.asking_again_gives_the_same")
@pytest.mark.parametrize("mode", ["all", "any", 2])
def test_a_wait_ends_once_and_its_answer_never_changes(mode: Mode) -> None:
    for history in ALL_HISTORIES:
        seen = play(wait_for(RUNS, mode), history)
        answers = [(w.state, w.ended) for w in seen if w.state != "open"]
        assert len(set(map(str, answers))) <= 1, history
        first_closed = next((i for i, w in enumerate(seen) if w.state != "open"), None)
        if first_closed is not None:
            assert all(w is seen[first_closed] for w in seen[first_closed:]), history


@pytest.mark.promise("join.all_any_n", "join.partial_results_at_the_deadline")
@pytest.mark.parametrize("mode", ["all", "any", 2])
def test_a_wait_is_done_with_enough_runs_and_timed_out_with_fewer(mode: Mode) -> None:
    needed = joins.needed(mode, len(RUNS))
    for history in ALL_HISTORIES:
        last = play(wait_for(RUNS, mode), history)[-1]
        before = history[: history.index("deadline")] if "deadline" in history else history
        in_time = list(dict.fromkeys(e for e in before if e in RUNS))
        if len(in_time) >= needed:
            assert last.state == "done"
            assert sorted(in_time[:needed]) == last.ended
        elif "deadline" in history:
            assert (last.state, last.ended) == ("timeout", sorted(in_time))
        else:
            assert last.state == "open"


@given(st.lists(st.sampled_from(EVENTS), max_size=12), st.integers(0, 12), st.sampled_from(["all", "any", 2]))
def test_forgetting_everything_but_the_row_changes_nothing(
    history: list[str], crash_at: int, mode: Mode
) -> None:
    """After a restart, what has ended is read from the store in one go."""
    whole = play(wait_for(RUNS, mode), history)
    crash_at = min(crash_at, len(history))
    ended = {event for event in history[:crash_at] if event in RUNS}
    at = DEADLINE if "deadline" in history[:crash_at] else 0
    resumed = joins.after(whole[crash_at], ended, at)
    assert resumed == whole[crash_at]


@pytest.mark.parametrize("mode", [0, 4, -1])
def test_a_number_of_runs_that_there_are_not_is_refused(mode: int) -> None:
    with pytest.raises(BadInput, match="from 1 to 3"):
        joins.needed(mode, 3)


def test_results_come_in_the_order_that_was_asked_for() -> None:
    assert joins.after(wait_for(["c", "a"], "all"), {"a", "c", "x"}, 0).ended == ["c", "a"]
