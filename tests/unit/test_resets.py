"""When a chat begins anew, by rule and by word."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from hobnob.config import Settings
from hobnob.config.sessions import ResetRule
from hobnob.keys import parse
from hobnob.policy import resets
from hobnob.types import Session

ZONE = "Europe/Vienna"
DAILY, IDLE = ResetRule(mode="daily", atHour=4), ResetRule(mode="idle", idleMinutes=30)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(ZONE)).timestamp() * 1000)


@pytest.mark.promise("life.reset_rules")
@pytest.mark.parametrize(
    ("started", "now", "stale"),
    [
        ("2026-11-16T20:00", "2026-11-17T03:59", False),
        ("2026-11-16T20:00", "2026-11-17T04:00", True),
        ("2026-11-17T04:00", "2026-11-17T23:00", False),
        ("2026-10-24T20:00", "2026-10-25T03:59", False),  # the night has 25 hours
        ("2026-10-24T20:00", "2026-10-25T04:00", True),
    ],
)
def test_a_daily_rule_begins_anew_at_its_hour(started: str, now: str, stale: bool) -> None:
    assert resets.is_stale(DAILY, ms(started), ms(now), ms(now), ZONE) is stale


@pytest.mark.promise("life.reset_rules")
def test_an_idle_rule_counts_from_the_last_message_of_a_person() -> None:
    start = ms("2026-11-17T12:00")
    assert not resets.is_stale(IDLE, 0, start, start + 30 * 60_000 - 1, ZONE)
    assert resets.is_stale(IDLE, 0, start, start + 30 * 60_000, ZONE)
    assert not resets.is_stale(IDLE, 0, None, start, ZONE)


@pytest.mark.promise("life.reset_rules")
def test_with_both_the_first_to_expire_decides() -> None:
    both = ResetRule(mode="daily", atHour=4, idleMinutes=30)
    start = ms("2026-11-17T12:00")
    assert resets.is_stale(both, start, start, start + 30 * 60_000, ZONE)
    assert resets.is_stale(both, ms("2026-11-16T12:00"), start, start, ZONE)


@pytest.mark.promise("life.reset_rules")
@pytest.mark.parametrize(
    ("key", "mode"),
    [
        ("agent:main:main", "daily"),
        ("agent:main:telegram:group:5", "idle"),
        ("agent:main:discord:group:5", "none"),
        ("agent:main:telegram:group:5:thread:7", "daily"),
        ("agent:main:cron:7", None),
        ("agent:main:hook:7", None),
    ],
)
def test_the_rule_of_the_channel_wins_over_that_of_the_type(key: str, mode: str | None) -> None:
    rules: dict[str, Any] = {
        "reset": {"mode": "none"},
        "resetByType": {"dm": {"mode": "daily"}, "group": {"mode": "idle"}, "thread": {"mode": "daily"}},
        "resetByChannel": {"discord": {"mode": "none"}},
    }
    settings = Settings.model_validate({"session": rules})
    rule = resets.rule_for(settings, Session.of(parse(key)))
    assert (rule.mode if rule else None) == mode


@pytest.mark.promise("life.reset_triggers")
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/new", ("/new", "")),
        ("/NEW  hello there ", ("/NEW", "hello there")),
        ("start over", ("start over", "")),
        ("/newer", None),
        ("please /new", None),
    ],
)
def test_a_trigger_is_the_whole_message_or_its_first_word(text: str, found: Any) -> None:
    assert resets.split_trigger(["/new", "Start over", ""], text) == found
