"""When a chat begins anew: by the time of day, after a pause, or by a word. Pure functions."""

from __future__ import annotations

from datetime import datetime, timedelta

from hobnob import timing
from hobnob.config import Settings
from hobnob.config.sessions import ResetRule
from hobnob.types import Session

_IDLE_MINUTES = 60
_NOT_CHATS = ("cron", "hook", "node")


def rule_for(settings: Settings, session: Session) -> ResetRule | None:
    """The rule of a session: of its channel, its type, or all; None for sessions that are no chats."""
    if session.kind in _NOT_CHATS or session.spawned_by is not None or session.is_external:
        return None
    rules = settings.session
    channel = session.channel or session.last_channel or ""
    if channel in rules.reset_by_channel:
        return rules.reset_by_channel[channel]
    if session.thread_id is not None and "thread" in rules.reset_by_type:
        return rules.reset_by_type["thread"]
    if session.kind == "group" and "group" in rules.reset_by_type:
        return rules.reset_by_type["group"]
    if session.kind != "group" and "direct" in rules.reset_by_type:
        return rules.reset_by_type["direct"]
    return rules.reset


def is_stale(rule: ResetRule, started_ms: int, last_input_ms: int | None, now_ms: int, zone: str) -> bool:
    """Whether the next message begins a new conversation. Only what people write keeps one alive."""
    if rule.mode == "none":
        return False
    if rule.mode == "daily" and started_ms < _last_boundary(rule.at_hour, now_ms, zone):
        return True
    minutes = rule.idle_minutes or (_IDLE_MINUTES if rule.mode == "idle" else None)
    return minutes is not None and last_input_ms is not None and now_ms - last_input_ms >= minutes * 60_000


def _last_boundary(hour: int, now_ms: int, zone: str) -> int:
    """The last time the clock showed that hour."""
    now = datetime.fromtimestamp(now_ms / 1000, timing.zone_info(zone))
    boundary = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    if boundary > now:
        boundary = (now - timedelta(days=1)).replace(hour=hour, minute=0, second=0, microsecond=0)
    return int(boundary.timestamp() * 1000)


def split_trigger(triggers: list[str], text: str) -> tuple[str, str] | None:
    """The trigger a message begins with, and the rest of the message."""
    text = text.strip()
    known = {trigger.strip().lower() for trigger in triggers if trigger.strip()}
    if text.lower() in known:
        return text, ""
    first, _, rest = text.partition(" ")
    return (first, rest.strip()) if first.lower() in known and rest.strip() else None
