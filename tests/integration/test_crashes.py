"""What is left when the process is killed between any two commits, and what comes of it."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.crashes import CrashCases, crash_cases

from hobnob.crashpoints import TURN_POINTS

UNCLAIMED = ("after-accept", "after-end")
STEP_BETWEEN = ("after-step", "before-tool", "after-tool-result")  # one was committed between two deaths
CASES = [f"{point}:{visit}" for point in TURN_POINTS for visit in (1, 2, 3)]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashCases]:
    with crash_cases("crash_cases.py", tmp_path_factory.mktemp("crashes")) as cases:
        yield cases


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, cases: CrashCases) -> Any:
    return cases[request.param]


@pytest.mark.parametrize("point", TURN_POINTS)
def test_every_crash_point_is_really_reached(cases: CrashCases, point: str) -> None:
    assert cases[f"{point}:1"]["killed"] == [True]


def test_the_turn_is_gone_on_with_under_the_same_run_id_and_answered(case: Any) -> None:
    assert case["accepted"] in (None, case["turn_id"])
    assert (case["outcome"], case["reply"], case["status"]) == ("ok", "Finished.", "done")


def test_accepted_input_is_in_the_transcript_exactly_once(case: Any) -> None:
    said = [m["content"] for m in case["messages"] if m["role"] == "user"]
    assert said == ["go"]


@pytest.mark.promise("transcript.numbered_from_one")
def test_sequence_numbers_have_no_gap(case: Any) -> None:
    assert case["seqs"] == list(range(1, len(case["seqs"]) + 1))


def test_no_step_is_doubled(case: Any) -> None:
    roles = [m["role"] for m in case["messages"]]
    assert roles == ["user", "assistant", "toolResult", "assistant", "toolResult", "assistant"]
    ids = [m["toolCallId"] for m in case["messages"] if m["role"] == "toolResult"]
    assert len(set(ids)) == 2


@pytest.mark.promise("transcript.answers_committed_at_once")
def test_an_effect_that_must_not_happen_twice_does_not(case: Any) -> None:
    assert case["effects"].count("stamp") <= 1
    if case["effects"].count("stamp") == 0:  # it was cut off before it began, and the model was told
        results = [m for m in case["messages"] if m.get("toolName") == "stamp"]
        assert "Interrupted" in results[0]["content"][0]["text"]


def test_a_tool_that_may_be_repeated_has_its_result(case: Any) -> None:
    results = [m for m in case["messages"] if m.get("toolName") == "peek"]
    assert [r["content"][0]["text"] for r in results] == ["peeked"]


@pytest.mark.parametrize("point", [p for p in TURN_POINTS if p not in (*UNCLAIMED, *STEP_BETWEEN)])
def test_a_turn_that_took_the_process_down_twice_is_not_tried_again(cases: CrashCases, point: str) -> None:
    case = cases[f"{point} twice"]
    assert case["killed"] == [True, True]
    assert case["outcome"] == "failed"
    assert "killed 2 times" in case["error"]
    assert case["messages"][-1]["errorMessage"] == case["error"]


@pytest.mark.parametrize("point", STEP_BETWEEN)
def test_a_turn_that_committed_a_step_between_two_deaths_goes_on(cases: CrashCases, point: str) -> None:
    case = cases[f"{point} twice"]
    assert case["killed"] == [True, True]
    assert (case["outcome"], case["reply"]) == ("ok", "Finished.")
