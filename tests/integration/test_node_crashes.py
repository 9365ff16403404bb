"""Requests of nodes when the gateway is killed at any point: what was acknowledged runs once."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.crashes import CrashCases, crash_cases

from hobnob.crashpoints import TURN_POINTS
from hobnob.types import text_of


@pytest.fixture(scope="module")
def all_cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashCases]:
    with crash_cases("node_crash_cases.py", tmp_path_factory.mktemp("nodes")) as cases:
        yield cases


@pytest.fixture(params=TURN_POINTS)
def case(request: pytest.FixtureRequest, all_cases: CrashCases) -> Any:
    return all_cases[request.param]


@pytest.mark.promise("nodes.durable_requests")
def test_a_request_runs_once_whatever_dies_when(case: Any) -> None:
    assert case["killed"]
    assert case["again"]
    assert case["acknowledged"] in (None, case["again"])
    said = [(m["role"], text_of(m)) for m in case["transcript"] if m["role"] != "toolResult"]
    assert said == [("user", "Report."), ("assistant", ""), ("assistant", "All is well.")]
