"""Runs of jobs when the process is killed between any two commits: nothing is lost, nothing doubled."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.crashes import CrashCases, crash_cases

from hobnob.crashpoints import JOB_POINTS, TURN_POINTS
from hobnob.types import text_of

POINTS = (*JOB_POINTS, *TURN_POINTS[1:], "before-delivery", "after-delivery")


@pytest.fixture(scope="module")
def all_cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashCases]:
    with crash_cases("job_crash_cases.py", tmp_path_factory.mktemp("jobs")) as cases:
        yield cases


@pytest.fixture(params=POINTS)
def cases(request: pytest.FixtureRequest, all_cases: CrashCases) -> list[Any]:
    """How a run ended when it was killed at one point, for each visit of that point."""
    found: list[Any] = all_cases[request.param]
    return found


def test_every_crash_point_is_reached(cases: list[Any]) -> None:
    assert cases[0]["killed"]


@pytest.mark.promise("jobs.runs_once")
def test_the_job_runs_once_and_ends_as_it_would_have(cases: list[Any]) -> None:
    for case in cases:
        assert case["runs"] == [["ok", "All is well."]]
        assert case["job"] == [False, None, "ok", None]


@pytest.mark.promise("jobs.runs_once")
def test_its_transcript_has_the_task_and_the_answer_once(cases: list[Any]) -> None:
    for case in cases:
        said = [(m["role"], text_of(m)) for m in case["transcript"] if m["role"] != "toolResult"]
        assert said == [("user", "Report."), ("assistant", ""), ("assistant", "All is well.")]


@pytest.mark.promise("jobs.answers_are_delivered")
def test_its_answer_is_posted_once_and_its_agent_knows(cases: list[Any]) -> None:
    for case in cases:
        assert case["posted"] == ["All is well."]
        assert [text_of(m) for m in case["main"]] == ["All is well."]
