"""When a scheduled job runs next. Pure functions: the clock is an argument.

All times are milliseconds since 1970 in UTC, so that neither a change of the clock nor of daylight saving
repeats a time that has passed. A cron expression is read in its zone: a fixed time of day happens once on
every day, also when the clock skips or repeats it. Every so many minutes, or every hour, follows the real
time.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from hobnob.records import Struct

MIN_GAP_MS = 2_000  # a job never starts more often
_MAX_MS = 253_370_764_800_000  # the year 9999: Python knows no later dates
_FIELDS = ("second", "minute", "hour", "day of month", "month", "day of week")
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_DURATION = re.compile(r"(\d{1,12})\s*(ms|s|m|h|d|w)", re.IGNORECASE)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}


class BadSchedule(ValueError):
    """A schedule that cannot be used. The message is a sentence that names the wrong part."""


class At(Struct, frozen=True):
    """Once."""

    at_ms: int
    zone: str = "UTC"


class Every(Struct, frozen=True):
    """At the anchor and every so many milliseconds after it. A late run does not move the later ones."""

    every_ms: int
    anchor_ms: int
    zone: str = "UTC"


class Cron(Struct, frozen=True):
    """By a cron expression of 5 fields, or 6 with seconds first, `offset_ms` later."""

    expr: str
    zone: str
    offset_ms: int = 0


Schedule = At | Every | Cron


def next_after(schedule: Schedule, after_ms: int) -> int | None:
    """The first time after `after_ms`; None when there is none."""
    match schedule:
        case At(at_ms):
            return at_ms if at_ms > after_ms else None
        case Every(every_ms, anchor_ms):
            if anchor_ms > after_ms:
                return anchor_ms
            return anchor_ms + ((after_ms - anchor_ms) // every_ms + 1) * every_ms
        case Cron(expr, zone, offset_ms):
            found = _next_match(expr, zone, after_ms - offset_ms)
            return None if found is None else found + offset_ms


def next_run(schedule: Schedule, started_ms: int) -> int | None:
    """The next time for a job that starts at `started_ms`: not within the shortest gap."""
    return next_after(schedule, started_ms + MIN_GAP_MS - 1)


@lru_cache(1024)  # many jobs have the same expression and are due at the same time
def _next_match(expr: str, zone: str, after_ms: int) -> int | None:
    fields = expr.split()
    seconds = 0
    if len(fields) == 6 and fields[0].isdigit():
        # A fixed second is an offset: the library keeps days with a clock change right for 5 fields only.
        seconds, expr = int(fields[0]), " ".join(fields[1:])
        fields = fields[1:]
    if fields[-4].startswith("*/") and not fields[-5].startswith("*") and len(expr.split()) == 5:
        # Written as a range, each of these hours happens once a day, like any fixed time of day.
        expr = " ".join([fields[0], f"0-23{fields[1][1:]}", *fields[2:]])
    tz = zone_info(zone)
    start = datetime.fromtimestamp(max(after_ms // 1000 - seconds, 0), tz)
    try:
        # In the repeated hour of a day, the first matches may be those of its first pass.
        for found in islice(CronSim(expr, start), 100):
            at_ms = (int(found.timestamp()) + seconds) * 1000
            if at_ms > after_ms:
                return at_ms
    except (StopIteration, OverflowError, ValueError):
        return None
    return None


def parse_at(text: str, zone: str | None, now_ms: int) -> At:
    """A time in ISO 8601, or a duration from now such as `20m`. Without an offset it is read in the zone."""
    if duration := duration_ms(text):
        return At(now_ms + duration, zone or host_zone())
    tz = zone_info(zone or "UTC")
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadSchedule(
            f"{text!r} is not a time such as 2026-11-20T08:00, 2026-11-20T08:00+01:00 or 20m."
        ) from None
    found = found.replace(tzinfo=tz) if found.tzinfo is None else found
    try:
        at_ms = int(found.timestamp() * 1000)
    except (OverflowError, ValueError):
        raise BadSchedule(f"{text!r} is out of range.") from None
    if at_ms <= now_ms:
        raise BadSchedule(
            f"{shown(at_ms, zone or 'UTC')} is in the past; it is {shown(now_ms, zone or 'UTC')}."
        )
    return At(at_ms, zone or "UTC")


def parse_every(every_ms: int, anchor_ms: int | None, zone: str | None, now_ms: int) -> Every:
    if not 1 <= every_ms <= 100 * 366 * _UNIT_MS["d"]:
        raise BadSchedule(f"everyMs must be between 1 and 100 years, not {every_ms}.")
    if anchor_ms is not None and not 0 <= anchor_ms <= _MAX_MS:
        raise BadSchedule("anchorMs is out of range.")
    zone_info(zone or "UTC")
    anchor = now_ms + every_ms if anchor_ms is None else anchor_ms
    return Every(every_ms, anchor, zone or host_zone())


def parse_cron(expr: str, zone: str | None, stagger_ms: int = 0, seed: str = "") -> Cron:
    """A cron expression in a zone; `stagger_ms` delays it by less than that, the same for the same seed."""
    expr = _NICKNAMES.get(expr.strip().lower(), " ".join(expr.split()))
    zone = zone or host_zone()
    tz = zone_info(zone)
    if len(expr.split()) not in (5, 6):
        raise BadSchedule(
            f"{expr!r} has {len(expr.split())} fields; a cron expression has 5 (minute, hour, day of month,"
            " month, day of week), or 6 with seconds first."
        )
    try:
        CronSim(expr, datetime(2026, 1, 1, tzinfo=tz))
    except CronSimError as problem:
        raise BadSchedule(f"{expr!r} is not a cron expression: {_wrong_field(expr, str(problem))}.") from None
    found = Cron(expr, zone, _offset(stagger_ms, seed))
    if next_after(found, 1_767_225_600_000) is None:  # from the year 2026 on
        raise BadSchedule(f"{expr!r} never happens: no date matches it.")
    return found


def stored(fields: Mapping[str, Any], seed: str) -> Schedule:
    """A schedule as it was resolved when its job was made, without checking it again."""
    zone = fields.get("tz", "UTC")
    match fields["kind"]:
        case "at":
            return At(int(datetime.fromisoformat(fields["at"]).timestamp() * 1000), zone)
        case "every":
            return Every(fields["everyMs"], fields["anchorMs"], zone)
        case _:
            return Cron(fields["expr"], zone, _offset(fields.get("staggerMs", 0), seed))


def _offset(stagger_ms: int, seed: str) -> int:
    if stagger_ms <= 0:
        return 0
    return int(hashlib.sha256(seed.encode()).hexdigest()[:12], 16) % stagger_ms


def _wrong_field(expr: str, problem: str) -> str:
    fields = expr.split()
    names = _FIELDS[-len(fields) :]
    named = problem.removeprefix("Bad ").replace("-", " ")
    if named in names:
        return f"the {named} is {fields[names.index(named)]!r}"
    return problem


def duration_ms(text: str) -> int | None:
    """A duration such as `90s`, `20m` or `2h` in milliseconds; None for anything else."""
    found = _DURATION.fullmatch(text.strip())
    return int(found[1]) * _UNIT_MS[found[2].lower()] if found else None


@lru_cache(64)
def zone_info(name: str) -> ZoneInfo:
    """A time zone by its name in the IANA database. Raises BadSchedule."""
    try:
        if name and not name.startswith(("/", ".")):
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise BadSchedule(
        f"There is no time zone {name!r}; names are like Europe/Vienna, America/New_York or UTC."
    )


@lru_cache(1)
def host_zone() -> str:
    """The name of this machine's time zone; UTC when it has none."""
    candidates = [os.environ.get("TZ", "").lstrip(":")]
    try:
        candidates.append(str(Path("/etc/localtime").readlink()).partition("zoneinfo/")[2])
    except OSError:
        pass
    try:
        candidates.append(Path("/etc/timezone").read_text().strip())
    except (OSError, UnicodeDecodeError):
        pass
    for name in filter(None, candidates):
        try:
            return zone_info(name).key
        except BadSchedule:
            continue
    return "UTC"


def shown(at_ms: int, zone: str) -> str:
    """A time for people: local time, offset and zone."""
    tz = zone_info(zone)
    local = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)
    return f"{local.astimezone(tz):%Y-%m-%d %H:%M:%S %z} ({zone})"


def described(schedule: Schedule) -> str:
    """A schedule for people, with its zone."""
    match schedule:
        case At(at_ms, zone):
            return f"once, {shown(at_ms, zone)}"
        case Every(every_ms):
            return f"every {_duration(every_ms)}"
        case Cron(expr, zone, offset_ms):
            late = f", {_duration(offset_ms)} later" if offset_ms else ""
            try:
                words = CronSim(expr, datetime(2026, 1, 1)).explain()
            except (CronSimError, ValueError, KeyError, IndexError):  # only the words are missing then
                words = ""
            return f"{expr} ({zone}{late})" + (f": {words[:1].lower()}{words[1:]}" if words else "")


def _duration(ms: int) -> str:
    for unit in ("w", "d", "h", "m", "s"):
        if ms % _UNIT_MS[unit] == 0:
            return f"{ms // _UNIT_MS[unit]} {unit}"
    return f"{ms} ms"
