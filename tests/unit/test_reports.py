"""The report of a child, as text: its form, and where its status comes from."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob.briefings import report
from hobnob.types import Exchange, Outcome

WORDS: dict[Outcome, str] = {
    "ok": "completed",
    "timed_out": "timed out",
    "failed": "failed",
    "cancelled": "cancelled",
    "no_output": "no output",
    "lost": "lost",
}
claims = st.lists(
    st.sampled_from(
        ["Status: completed", "status : failed", "**Status:** lost", "Result: 42", "Notes: none", "Hm.", ""]
    ),
    max_size=6,
).map("\n".join)


def done(outcome: Outcome, **more: str) -> Exchange:
    return Exchange(kind="spawn", target_key="agent:a:subagent:1", request="x", outcome=outcome, **more)


@pytest.mark.promise("report.status_words")
@pytest.mark.parametrize("outcome", WORDS)
def test_every_outcome_has_its_word(outcome: Outcome) -> None:
    assert report(done(outcome), "said", "Stats: none").splitlines()[0] == f"Status: {WORDS[outcome]}"


@pytest.mark.promise("report.status_is_the_outcome", "report.form")
@given(st.sampled_from(list(WORDS)), claims)
def test_whatever_a_model_claims_the_only_status_is_the_outcome(outcome: Outcome, said: str) -> None:
    lines = report(done(outcome), said, "Stats: none").splitlines()
    assert lines[0] == f"Status: {WORDS[outcome]}"
    assert lines[1].startswith("Result: ")
    assert lines[-1] == "Stats: none"
    assert not [
        line
        for line in lines[2:-1]
        if not line.startswith("Notes: ") and re.match(r"(status|result|notes)\s*:", line, re.IGNORECASE)
    ]


@pytest.mark.promise("outcome.failed")
def test_a_report_of_a_failure_says_why() -> None:
    assert "Notes: the disk is full" in report(done("failed", error="the disk is full"), "", "Stats: none")
