"""When a job runs next, over the changes of daylight saving in three zones."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob import timing
from hobnob.timing import BadSchedule, next_after, parse_at, parse_cron, parse_every

# Europe and America change by an hour, on different days; Lord Howe by half an hour, in the other season.
ZONES = ("Europe/Vienna", "America/New_York", "Australia/Lord_Howe")
MINUTE, DAY = 60_000, 86_400_000
# Days on which the clock changes, with the days around them, in each zone in 2026.
CHANGES = {
    "Europe/Vienna": (date(2026, 3, 29), date(2026, 10, 25)),
    "America/New_York": (date(2026, 3, 8), date(2026, 11, 1)),
    "Australia/Lord_Howe": (date(2026, 4, 5), date(2026, 10, 4)),
}
near_changes = st.sampled_from([(zone, day) for zone, days in CHANGES.items() for day in days])


def ms(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def times(schedule: timing.Schedule, start: int, end: int) -> list[int]:
    found: list[int] = []
    at: int | None = start
    while (at := next_after(schedule, at)) is not None and at < end:
        found.append(at)
    return found


@pytest.mark.promise("jobs.daylight_saving")
@given(near_changes, st.integers(0, 23), st.integers(0, 59), st.booleans())
def test_a_fixed_time_of_day_happens_once_on_each_day_of_a_clock_change(
    change: tuple[str, date], hour: int, minute: int, with_seconds: bool
) -> None:
    zone, day = change
    expr = f"{'15 ' if with_seconds else ''}{minute} {hour} * * *"
    first = ms(f"{day - timedelta(days=2)}T00:00", zone)
    last = ms(f"{day + timedelta(days=2)}T00:00", zone)
    found = times(parse_cron(expr, zone), first - 1, last)
    days = [datetime.fromtimestamp(at / 1000, ZoneInfo(zone)).date() for at in found]
    assert days == [day + timedelta(days=n) for n in range(-2, 2)]


@pytest.mark.promise("jobs.daylight_saving")
@given(near_changes, st.sampled_from([1, 5, 10, 15, 30]))
def test_every_few_minutes_follows_the_real_time_over_a_clock_change(
    change: tuple[str, date], step: int
) -> None:
    zone, day = change
    first, last = ms(f"{day}T00:00", zone), ms(f"{day + timedelta(days=1)}T00:00", zone)
    found = times(parse_cron(f"*/{step} * * * *", zone), first - 1, last)
    assert {b - a for a, b in pairwise(found)} == {step * MINUTE}
    assert len(found) == (last - first) // (step * MINUTE)


@pytest.mark.promise("jobs.daylight_saving")
@given(near_changes, st.sampled_from([2, 3, 4, 6, 8, 12]))
def test_every_few_hours_has_each_of_its_hours_once_on_the_day_of_a_clock_change(
    change: tuple[str, date], step: int
) -> None:
    zone, day = change
    first, last = ms(f"{day}T00:00", zone), ms(f"{day + timedelta(days=1)}T00:00", zone)
    assert len(times(parse_cron(f"0 */{step} * * *", zone), first - 1, last)) == 24 // step


@given(st.sampled_from(ZONES), st.integers(0, 366 * 24 * 60), st.integers(0, 59), st.integers(0, 23))
def test_looking_from_any_moment_finds_the_same_times(zone: str, start: int, minute: int, hour: int) -> None:
    schedule = parse_cron(f"{minute} {hour} * * *", zone)
    begin = ms("2026-01-01T00:00") + start * MINUTE
    first = next_after(schedule, begin)
    assert first is not None and first > begin
    assert next_after(schedule, first - 1) == first
    assert next_after(schedule, (begin + first) // 2) == first


@given(st.integers(1, 10 * DAY), st.integers(0, 10**12), st.integers(0, 10**13))
def test_intervals_stay_on_their_grid_however_late_one_looks(every: int, anchor: int, after: int) -> None:
    found = next_after(timing.Every(every, anchor), after)
    assert found is not None and found > after
    assert (found - anchor) % every == 0 and (found - every <= after or found == anchor)


def test_a_time_once_passed_is_never_repeated() -> None:
    at = parse_at("2026-11-20T08:00", "Europe/Vienna", 0)
    assert next_after(at, 0) == ms("2026-11-20T07:00")
    assert next_after(at, at.at_ms) is None


def test_a_time_without_an_offset_is_in_the_zone_else_in_utc() -> None:
    assert parse_at("2026-11-20T08:00", None, 0).at_ms == ms("2026-11-20T08:00")
    assert parse_at("2026-11-20T08:00+05:00", "Europe/Vienna", 0).at_ms == ms("2026-11-20T03:00")
    assert parse_at("20m", None, 1000).at_ms == 1000 + 20 * MINUTE


def test_a_job_starts_at_most_every_two_seconds() -> None:
    each_second = parse_cron("* * * * * *", "UTC")
    start = ms("2026-01-01T00:00")
    assert timing.next_run(each_second, start) == start + timing.MIN_GAP_MS


@pytest.mark.promise("jobs.bad_schedules_are_explained")
@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("61 * * * *", "the minute is '61'"),
        ("0 25 * * *", "the hour is '25'"),
        ("0 0 * * MOO", "the day of week is 'MOO'"),
        ("99 0 0 * * *", "the second is '99'"),
        ("8 o'clock", "has 2 fields"),
        ("", "has 0 fields"),
        ("0 0 31 2 *", "day of month"),
    ],
)
def test_a_wrong_expression_is_refused_with_the_wrong_part(expr: str, words: str) -> None:
    with pytest.raises(BadSchedule, match=words):
        parse_cron(expr, "UTC")


@pytest.mark.promise("jobs.bad_schedules_are_explained")
@pytest.mark.parametrize("zone", ["Mars/Base", "../etc/passwd", "/etc/localtime", "Europe/Vienna\n"])
def test_a_wrong_zone_is_refused_by_name(zone: str) -> None:
    with pytest.raises(BadSchedule, match="no time zone"):
        parse_cron("0 8 * * *", zone)


def test_a_time_in_the_past_is_refused_with_the_current_time() -> None:
    now = ms("2026-11-20T09:00")
    with pytest.raises(
        BadSchedule, match=r"2026-11-20 09:00:00 \+0100 .* is in the past; it is 2026-11-20 10:00"
    ):
        parse_at("2026-11-20T09:00", "Europe/Vienna", now)


def test_a_staggered_job_keeps_its_own_delay() -> None:
    delayed = parse_cron("0 * * * *", "UTC", 300_000, "job-1")
    assert delayed == parse_cron("0 * * * *", "UTC", 300_000, "job-1")
    assert 0 <= delayed.offset_ms < 300_000
    assert delayed.offset_ms != parse_cron("0 * * * *", "UTC", 300_000, "job-2").offset_ms
    start = ms("2026-01-01T00:00")
    assert next_after(delayed, start - 1) == start + delayed.offset_ms


def test_nicknames_are_expressions() -> None:
    assert parse_cron("@daily", "UTC").expr == "0 0 * * *"


def test_a_description_names_the_zone() -> None:
    assert timing.described(parse_cron("0 8 * * 1-5", "Europe/Vienna")) == (
        "0 8 * * 1-5 (Europe/Vienna): at 08:00 on Monday through Friday"
    )
    assert timing.described(parse_every(90_000, None, "UTC", 0)) == "every 90 s"
    assert timing.shown(0, "Europe/Vienna") == "1970-01-01 01:00:00 +0100 (Europe/Vienna)"


def test_the_zone_of_the_machine_is_a_zone() -> None:
    assert timing.zone_info(timing.host_zone())
    assert datetime.now(UTC)
