"""What follows a run: the next time, retries, back-off, and the end of a job."""

from typing import Any

import orjson
import pytest

from hobnob.config.cron import FailureAlert
from hobnob.schedule import outcomes
from hobnob.schedule.outcomes import Result
from hobnob.types import Job

START = 1_767_225_600_000  # 2026-01-01T00:00Z
MINUTE, HOUR = 60_000, 3_600_000
HOURLY = {"kind": "cron", "expr": "0 * * * *", "tz": "UTC"}
MINUTELY = {"kind": "cron", "expr": "* * * * *", "tz": "UTC"}
ONCE = {"kind": "at", "at": "2026-01-01T00:00:00Z"}
FAILED, DOWN = Result("error", "it broke"), Result("error", "the model is down", transient=True)


def job(schedule: dict[str, Any], **fields: Any) -> Job:
    return Job(
        agent_id="main",
        name="Test",
        target="isolated",
        schedule=orjson.dumps(schedule).decode(),
        payload='{"kind":"agentTurn","message":"x"}',
        delivery='{"mode":"none"}',
        **fields,
    )


def run(before: Job, result: Result, start: int, took_ms: int = 1000) -> Job:
    running = outcomes.started(before, "turn", start, manual=False)
    return outcomes.finished(running, result, start, start + took_ms)


def test_starting_moves_the_next_time_before_anything_else_happens() -> None:
    running = outcomes.started(job(HOURLY, next_run_at_ms=START), "turn", START, manual=False)
    assert (running.turn_id, running.next_run_at_ms) == ("turn", START + HOUR)


def test_a_manual_run_leaves_the_next_time_alone() -> None:
    running = outcomes.started(job(HOURLY, next_run_at_ms=START + HOUR), "turn", START, manual=True)
    assert running.next_run_at_ms == START + HOUR


def test_times_that_pass_during_a_long_run_are_left_out() -> None:
    after = run(job(HOURLY, next_run_at_ms=START), Result("ok"), START, took_ms=3 * HOUR + 5 * MINUTE)
    assert after.next_run_at_ms == START + 4 * HOUR


def test_a_run_that_failed_before_it_did_anything_is_retried_before_the_next_time() -> None:
    current = job(HOURLY, next_run_at_ms=START)
    at = START
    for delay in outcomes.RETRY_MS:
        current = run(current, DOWN, at)
        assert current.next_run_at_ms == at + 1000 + delay
        at = current.next_run_at_ms
    current = run(current, DOWN, at)
    assert (current.next_run_at_ms, current.attempts) == (START + HOUR, 0)


def test_a_retry_that_would_come_after_the_next_time_is_left_to_it() -> None:
    after = run(job(MINUTELY, next_run_at_ms=START, attempts=1), DOWN, START)
    assert after.attempts == 0 and after.next_run_at_ms == START + MINUTE


def test_a_run_that_failed_while_it_worked_is_not_retried() -> None:
    assert run(job(HOURLY, next_run_at_ms=START), FAILED, START).next_run_at_ms == START + HOUR


def test_failures_in_a_row_make_a_frequent_job_slower_and_a_success_ends_that() -> None:
    current, at, gaps = job(MINUTELY, next_run_at_ms=START), START, []
    for _ in range(6):
        current = run(current, FAILED, at)
        assert current.next_run_at_ms is not None
        gaps.append((current.next_run_at_ms - at) // MINUTE)
        at = current.next_run_at_ms
    assert gaps == [1, 2, 6, 16, 61, 61]
    assert run(current, Result("ok"), at).consecutive_errors == 0


@pytest.mark.promise("jobs.failing_jobs_are_disabled")
def test_ten_failures_in_a_row_disable_a_job() -> None:
    current, at = job(HOURLY, next_run_at_ms=START), START
    for n in range(outcomes.MAX_ERRORS):
        assert current.enabled, n
        current = run(current, FAILED, at)
        at += 2 * HOUR
    assert not current.enabled and current.disabled_reason == "it failed 10 times in a row"


def test_a_run_that_a_person_stopped_does_not_count_as_a_failure() -> None:
    stopped = Result("error", "stopped", counts=False)
    after = run(job(HOURLY, next_run_at_ms=START), stopped, START)
    assert (after.consecutive_errors, after.last_status, after.enabled) == (0, "error", True)


def test_a_job_for_one_time_is_switched_off_after_it() -> None:
    assert not run(job(ONCE, next_run_at_ms=START), Result("ok"), START).enabled
    failed = run(job(ONCE, next_run_at_ms=START), FAILED, START)
    assert not failed.enabled and failed.disabled_reason


def test_a_job_for_one_time_is_tried_again_while_the_model_is_down() -> None:
    after = run(job(ONCE, next_run_at_ms=START), DOWN, START)
    assert after.enabled and after.next_run_at_ms == START + 1000 + outcomes.RETRY_MS[0]


@pytest.mark.promise("jobs.catch_up_once")
def test_jobs_that_are_late_run_once_and_apart() -> None:
    late = [
        outcomes.caught_up(job(HOURLY, next_run_at_ms=START - 9 * HOUR), START, n, 3, skip=False)
        for n in range(3)
    ]
    assert [j.next_run_at_ms for j in late] == [START + 1, START + 5_001, START + 10_001]
    assert [j.missed_at_ms for j in late] == [START - 9 * HOUR] * 3
    started = outcomes.started(late[0], "turn", START + 1, manual=False)
    assert (started.next_run_at_ms, started.missed_at_ms) == (START + HOUR, None)


def test_very_many_late_jobs_are_spread_over_ten_minutes() -> None:
    last = outcomes.caught_up(job(HOURLY, next_run_at_ms=START), START, 9_999, 10_000, skip=False)
    assert last.next_run_at_ms is not None and last.next_run_at_ms - START <= outcomes.CATCH_UP_MS


def test_skipping_missed_jobs_leaves_out_recurring_ones_only() -> None:
    hourly = outcomes.caught_up(job(HOURLY, next_run_at_ms=START - HOUR), START + 1, 0, 1, skip=True)
    assert hourly.next_run_at_ms == START + HOUR
    once = outcomes.caught_up(job(ONCE, next_run_at_ms=START), START + HOUR, 0, 1, skip=True)
    assert once.next_run_at_ms == START + HOUR + 1


def test_a_failing_job_is_reported_after_two_failures_and_then_not_for_an_hour() -> None:
    alert = FailureAlert()
    assert not outcomes.alert_due(job(HOURLY, consecutive_errors=1), alert, START)
    assert outcomes.alert_due(job(HOURLY, consecutive_errors=2), alert, START)
    told = job(HOURLY, consecutive_errors=3, alerted_at_ms=START)
    assert not outcomes.alert_due(told, alert, START + HOUR - 1)
    assert outcomes.alert_due(told, alert, START + HOUR)
    assert not outcomes.alert_due(told, FailureAlert(enabled=False), START + HOUR)
