"""Which unused sessions are deleted, archived or kept."""

from typing import Any

import pytest

from hobnob.keys import parse
from hobnob.retention import Limits, action_for
from hobnob.types import Session

DAY = 24 * 3_600_000
LIMITS = Limits(unused_since_ms=100 * DAY, archived_since_ms=50 * DAY)


def unused(key: str, day: int, **fields: Any) -> Session:
    return Session.of(parse(key), updated_at_ms=day * DAY, **fields)


@pytest.mark.parametrize(
    "key", ["hook:1", "cron:7", "subagent:x", "agent:claude:acp:x", "agent:main:openai:x"]
)
def test_what_nobody_talks_in_is_deleted(key: str) -> None:
    assert action_for(unused(key, 99), LIMITS) == "delete"
    assert action_for(unused(key, 99, archived_at_ms=1), LIMITS) == "delete"
    assert action_for(unused(key, 100), LIMITS) is None


@pytest.mark.parametrize("key", ["agent:main:dashboard:x", "agent:main:mine", "main:thread:7"])
def test_a_conversation_is_archived_and_after_long_deleted(key: str) -> None:
    assert action_for(unused(key, 99), LIMITS) == "archive"
    assert action_for(unused(key, 99, last_channel="webchat"), LIMITS) == "archive"
    assert action_for(unused(key, 51, archived_at_ms=1), LIMITS) is None
    assert action_for(unused(key, 49, archived_at_ms=1), LIMITS) == "delete"


@pytest.mark.parametrize(
    "key",
    ["main", "agent:main:irc:group:a", "agent:main:irc:direct:ann", "node-1", "agent:main:openai-user:u"],
)
def test_main_sessions_and_chats_are_kept(key: str) -> None:
    assert action_for(unused(key, 0), LIMITS) is None


def test_a_session_with_a_delivery_route_is_kept() -> None:
    assert action_for(unused("agent:main:mine", 0, last_channel="telegram"), LIMITS) is None


def test_a_main_session_is_not_even_deleted_from_the_archive() -> None:
    assert action_for(unused("main", 0, archived_at_ms=1), LIMITS) is None


def test_beyond_the_maximum_number_the_longest_unused_are_due() -> None:
    limits = Limits(unused_since_ms=0, archived_since_ms=0, beyond=(7 * DAY, "agent:main:hook:m"))
    due = [key for key in ("hook:a", "hook:m", "hook:z") if action_for(unused(key, 7), limits)]
    assert due == ["hook:m", "hook:z"]
    assert action_for(unused("hook:z", 8), limits) is None
    assert action_for(unused("hook:a", 6), limits) == "delete"
