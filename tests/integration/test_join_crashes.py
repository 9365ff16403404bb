"""Joins and yields when the process is killed between any two commits: one answer, one wake, nothing lost."""

from collections.abc import Iterator

import pytest
from tests.integration.crashes import CrashCases, crash_cases

from hobnob.crashpoints import JOIN_POINTS, TURN_POINTS

PROGRAM = "join_crash_cases.py"
POINTS = (*TURN_POINTS, "after-spawn", *JOIN_POINTS)


@pytest.fixture(scope="module")
def join_cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashCases]:
    with crash_cases(PROGRAM, tmp_path_factory.mktemp("join"), "join") as cases:
        yield cases


@pytest.fixture(scope="module")
def yield_cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashCases]:
    with crash_cases(PROGRAM, tmp_path_factory.mktemp("yield"), "yield") as cases:
        yield cases


@pytest.mark.promise("join.survives_a_kill")
@pytest.mark.parametrize("point", POINTS)
def test_a_join_gives_all_results_once_wherever_it_was_killed(join_cases: CrashCases, point: str) -> None:
    for case in join_cases[point]:
        assert case["turn"] == ["ok", "Joined."]
        assert case["exchanges"] == 3
        assert case["said"] == ["Joined."]
        [waited] = case["waited"]
        assert (waited["status"], waited["pending"]) == ("ok", [])
        assert [row["reply"] for row in waited["completed"]] == ["done"] * 3


@pytest.mark.promise("join.survives_a_kill", "join.one_wake_per_batch")
@pytest.mark.parametrize("point", POINTS)
def test_a_batch_wakes_its_session_once_wherever_it_was_killed(yield_cases: CrashCases, point: str) -> None:
    for case in yield_cases[point]:
        assert case["turn"] == ["ok", "Waiting for sub-agents."]
        assert case["exchanges"] == 3
        go, woken = case["inputs"]
        assert go == "Go." and "3 of 3 sub-agents have finished" in woken
        assert case["said"] == ["Woken."]


@pytest.mark.parametrize("point", POINTS)
def test_every_crash_point_of_a_join_is_reached(
    join_cases: CrashCases, yield_cases: CrashCases, point: str
) -> None:
    assert any(case["killed"] for case in (*join_cases[point], *yield_cases[point]))
