"""Slack's events as inbound messages, and its names of emoji."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob.channels.slack import emoji, events
from hobnob.channels.slack.events import Conversation, Malformed, Me, Names, Person
from hobnob.inbound import Inbound

ME = Me("UBOT", "BBOT", "T1", "hobnob")
NAMES = Names(
    {"UANN": Person("Ann", "ann"), "UAPP": Person("Deploy", "deploy", is_bot=True)},
    {"C1": Conversation("general", "channel"), "G1": Conversation("mpdm-ann--bob", "group")},
)


def inbound(**event: Any) -> Inbound:
    message = {"type": "message", "channel": "C1", "user": "UANN", "ts": "1700000000.000100", "text": "hi"}
    return events.inbound(message | event, ME, NAMES)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("<@UBOT> hello", "hello"),
        ("<@UBOT>: hello", "hello"),
        ("  <@UBOT|hobnob>, /new", "/new"),
        ("<@UBOT>", "@hobnob"),
        ("hello <@UBOT>", "hello @hobnob"),
        ("<@UANN> and <@UX|Xaver> and <@UY>", "@Ann and @Xaver and @UY"),
        ("<#C1|general> <#C2>", "#general #C2"),
        ("<!here> <!subteam^S1|@team> <!date^1^{date}|today>", "@here @team today"),
        ("<https://example.org>", "https://example.org"),
        ("<https://example.org|here>", "here (https://example.org)"),
        ("<https://example.org|example.org>", "https://example.org"),
        ("<mailto:a@example.org|a@example.org>", "a@example.org"),
        ("1 &lt; 2 &amp;&amp; 3 &gt; 2", "1 < 2 && 3 > 2"),
        ("&amp;lt;", "&lt;"),
        ("&lt;@UBOT&gt;", "<@UBOT>"),
        ("a < b > c <", "a < b > c <"),
    ],
)
def test_markup_is_shown_as_people_read_it(written: str, read: str) -> None:
    assert events.readable(written, ME, NAMES.people) == read


@pytest.mark.parametrize(
    ("event", "chat_type", "chat_id", "to"),
    [
        ({"channel": "D1", "channel_type": "im"}, "direct", "UANN", "user:UANN"),
        ({"channel": "D1"}, "direct", "UANN", "user:UANN"),
        ({"channel_type": "channel"}, "channel", "C1", "channel:C1"),
        ({"channel": "C9", "channel_type": "group"}, "channel", "C9", "channel:C9"),
        ({"channel": "G1", "channel_type": "mpim"}, "group", "G1", "channel:G1"),
        ({"channel": "G1", "type": "app_mention"}, "group", "G1", "channel:G1"),
    ],
)
def test_the_kind_of_conversation_decides_where_a_message_belongs(
    event: dict[str, str], chat_type: str, chat_id: str, to: str
) -> None:
    found = inbound(**event)
    assert (found.chat_type, found.chat_id, found.address.to) == (chat_type, chat_id, to)


def test_a_message_and_its_mention_have_the_same_id() -> None:
    message = inbound(text="<@UBOT> hi", channel_type="channel", client_msg_id="x")
    mention = inbound(text="<@UBOT> hi", type="app_mention")
    assert message == mention
    assert message.event_id == "C1:1700000000.000100" and message.mentioned


def test_the_root_of_a_thread_is_not_in_it() -> None:
    assert inbound(thread_ts="1700000000.000100").thread_id is None
    assert inbound(thread_ts="1600000000.000100").thread_id == "1600000000.000100"


def test_messages_of_other_bots_are_marked() -> None:
    by_user = inbound(user="UAPP")
    by_app = inbound(user="UAPP", bot_id="B2")
    legacy = inbound(user=None, bot_id="B3", subtype="bot_message", username="Alerts")
    assert [m.sender.is_bot for m in (by_user, by_app, legacy)] == [True, True, True]
    assert (by_app.sender.id, by_app.sender.aliases) == ("UAPP", ("B2",))
    assert (legacy.sender.id, legacy.sender.name) == ("B3", "Alerts")


def test_a_message_of_a_bot_without_text_says_what_its_attachments_say() -> None:
    found = inbound(bot_id="B2", text="", attachments=[{"fallback": "Build 7 failed"}, {"color": "red"}])
    assert found.text == "Build 7 failed"


def test_files_are_listed_with_what_is_claimed_of_them() -> None:
    files = [
        {
            "id": "F1",
            "name": "a.png",
            "mimetype": "image/png",
            "size": 3,
            "url_private_download": "https://u/1",
        },
        {"id": "F2", "mimetype": "application/pdf", "size": "big", "url_private": "https://u/2"},
        {"id": "F3", "file_access": "check_file_info"},
        {"id": "F4", "mode": "tombstone"},
    ]
    media = inbound(subtype="file_share", files=files).media
    assert [(m.ref, m.kind, m.size) for m in media] == [
        ("https://u/1", "image", 3),
        ("https://u/2", "file", None),
        ("F3", "file", None),
    ]


@pytest.mark.parametrize(
    "event",
    [
        {"user": "UBOT"},
        {"bot_id": "BBOT", "user": None},
        {"subtype": "message_changed"},
        {"subtype": "channel_join"},
        {"hidden": True},
        {"type": "reaction_added"},
    ],
)
def test_own_messages_changes_and_notices_are_no_messages(event: dict[str, Any]) -> None:
    assert not events.is_message({"type": "message", "user": "UANN", "text": "x"} | event, ME)


values = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.lists(st.integers(), max_size=2)
fields = st.sampled_from("channel user ts text thread_ts bot_id files attachments team username".split())


@given(st.dictionaries(fields, values | st.lists(st.dictionaries(st.text(max_size=4), values), max_size=2)))
def test_any_event_becomes_a_message_or_is_malformed(event: dict[str, Any]) -> None:
    whole = {"type": "message", "channel": "C1", "user": "UANN", "ts": "1.1"} | event
    list(events.people(whole))
    list(events.conversations(whole))
    try:
        assert isinstance(events.inbound(whole, ME, NAMES), Inbound)
    except Malformed:
        pass


@pytest.mark.parametrize(
    ("written", "name"),
    [("👀", "eyes"), (":eyes:", "eyes"), ("eyes", "eyes"), ("❤️", "heart"), ("🦊", "fox_face"), ("", "")],
)
def test_an_emoji_has_slacks_name(written: str, name: str) -> None:
    assert emoji.name(written) == name
