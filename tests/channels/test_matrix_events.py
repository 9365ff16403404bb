"""Matrix events, translated: whatever people send."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob.channels import Outgoing
from hobnob.channels.matrix import events
from hobnob.inbound import Address

ME = "@bot:example.org"
ROOM = events.Room("!r:example.org", "Room", {"@ann:example.org": "Ann", ME: "Bot", "@bob:example.org": ""})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["body", "msgtype", "url", "filename", "info", "m.relates_to", "m.mentions", "formatted_body"]


def message(**content: Any) -> dict[str, Any]:
    body = {"msgtype": "m.text", "body": "hello"} | content
    return {"type": "m.room.message", "event_id": "$1", "sender": "@ann:example.org", "content": body}


def member(user: str, membership: str, before: str | None = None) -> dict[str, Any]:
    unsigned = {"prev_content": {"membership": before}} if before else {}
    content = {"membership": membership}
    return {"type": "m.room.member", "state_key": user, "content": content, "unsigned": unsigned}


@given(st.dictionaries(st.sampled_from(NAMES), JSON), JSON)
def test_any_content_is_translated_or_skipped(content: dict[str, Any], at: Any) -> None:
    event = message(**content) | {"origin_server_ts": at}
    events.files(event)
    if events.is_message(event, ME):
        found = events.inbound(event, ROOM, ME, "inbound", None)
        assert found.chat_id == ROOM.id and isinstance(found.text, str)
        assert type(found).from_json(found.json()) == found


@given(JSON)
def test_any_event_is_a_message_or_not(event: Any) -> None:
    if isinstance(event, dict):
        assert events.is_message(event, ME) in (True, False)
        assert events.since_invitation([event], ME) in ([], [event])


@pytest.mark.parametrize(
    ("content", "mentioned"),
    [
        ({"m.mentions": {"user_ids": [ME]}}, True),
        ({"m.mentions": {"room": True}}, True),
        ({"body": f"{ME}: hello"}, True),
        ({"formatted_body": f'<a href="https://matrix.to/#/{ME}">Bot</a>: hello'}, True),
        ({"m.mentions": {"user_ids": ["@ann:example.org"]}}, False),
        ({}, False),
    ],
)
def test_a_mention_is_an_entry_or_the_own_id(content: dict[str, Any], mentioned: bool) -> None:
    assert events.is_mentioned({"body": "hello", **content}, ME) is mentioned


def test_what_was_said_before_the_last_invitation_is_left_out() -> None:
    old, new = message(body="old"), message(body="new")
    assert (
        events.since_invitation([old, member(ME, "invite"), new, member(ME, "join", "invite")], ME)[0] == new
    )
    assert events.since_invitation([old, member(ME, "join"), new], ME) == [new]
    before = [member(ME, "join"), old, member(ME, "leave", "join"), old, member(ME, "join", "leave")]
    assert events.since_invitation([*before, new], ME) == [new]
    assert (
        events.since_invitation([old, member(ME, "join", "join"), member("@x:y", "join"), new], ME)[0] == old
    )


def test_the_caption_of_a_file_is_its_text_but_its_name_is_not() -> None:
    file = {"msgtype": "m.image", "url": "mxc://example.org/abc", "filename": "a.png"}
    with_caption = events.inbound(message(**file, body="look"), ROOM, ME, "inbound", None)
    assert (with_caption.text, with_caption.media[0].name) == ("look", "a.png")
    without = events.inbound(message(**file | {"body": "a.png"}), ROOM, ME, "inbound", None)
    assert (without.text, without.media[0].kind) == ("", "image")


def test_the_answered_message_of_a_thread_for_old_clients_is_no_reply() -> None:
    related = {"rel_type": "m.thread", "event_id": "$root", "m.in_reply_to": {"event_id": "$last"}}
    assert events.replied_to({"m.relates_to": {**related, "is_falling_back": True}}) is None
    assert events.replied_to({"m.relates_to": {**related, "is_falling_back": False}}) == "$last"


def test_a_message_of_ours_mentions_nobody() -> None:
    assert events.message("@room @ann:example.org")["m.mentions"] == {}


def test_an_answer_in_a_thread_names_a_message_for_old_clients() -> None:
    part = Outgoing(key="1", address=Address("!r", "$root"))
    assert events.relates_to(part)["m.relates_to"] == {
        "rel_type": "m.thread",
        "event_id": "$root",
        "is_falling_back": True,
        "m.in_reply_to": {"event_id": "$root"},
    }
