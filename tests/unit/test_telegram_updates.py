"""Updates of the Telegram Bot API as inbound messages."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hobnob.channels.telegram.updates import Bot, events, translate
from hobnob.inbound import Address, Inbound

BOT = Bot(99, "my_bot")
ANN = {"id": 7, "is_bot": False, "first_name": "Ann", "last_name": "Lee", "username": "ann"}
PRIVATE = {"id": 7, "type": "private", "first_name": "Ann"}
GROUP = {"id": -100, "type": "supergroup", "title": "Team"}
FORUM = {"id": -200, "type": "supergroup", "title": "Forum", "is_forum": True}


def message(chat: dict[str, Any] = PRIVATE, **more: Any) -> dict[str, Any]:
    return {"message_id": 5, "date": 1_700_000_000, "chat": chat, "from": ANN, "text": "hi"} | more


def read(chat: dict[str, Any] = PRIVATE, **more: Any) -> Inbound:
    [found] = events(translate([{"update_id": 1, "message": message(chat, **more)}], BOT))
    return found


def test_a_direct_message_says_who_wrote_it_where_and_when():
    found = read()
    assert (found.event_id, found.message_id, found.chat_type, found.at_ms) == (
        "7:5",
        "5",
        "direct",
        1_700_000_000_000,
    )
    assert (found.sender.id, found.sender.name, found.sender.username) == ("7", "Ann Lee", "ann")
    assert found.address == Address("7")


def test_a_mention_is_found_after_characters_of_two_units():
    text = "😀 @My_Bot hello"
    entity = {"type": "mention", "offset": 3, "length": 7}
    assert read(GROUP, text=text, entities=[entity]).mentioned is True
    assert read(GROUP, text=text, entities=[{"type": "mention", "offset": 0, "length": 2}]).mentioned is False


def test_a_mention_without_a_username_counts_for_the_bot_only():
    def mention(user: int) -> list[dict[str, Any]]:
        return [{"type": "text_mention", "offset": 0, "length": 2, "user": {"id": user}}]

    assert read(GROUP, entities=mention(99)).mentioned is True
    assert read(GROUP, entities=mention(8)).mentioned is False


def test_a_command_to_this_bot_is_a_mention_and_loses_the_name():
    entity = {"type": "bot_command", "offset": 0, "length": 14}
    found = read(GROUP, text="/status@my_bot now", entities=[entity])
    assert (found.text, found.mentioned) == ("/status now", True)


def test_a_command_to_another_bot_is_no_mention():
    entity = {"type": "bot_command", "offset": 0, "length": 13}
    found = read(GROUP, text="/status@other now", entities=[entity])
    assert (found.text, found.mentioned) == ("/status@other now", False)


def test_a_message_in_a_topic_is_answered_there():
    found = read(FORUM, message_thread_id=40, is_topic_message=True)
    assert (found.thread_id, found.thread_word, found.address) == ("40", "topic", Address("-200", "40"))


def test_a_message_in_no_topic_of_a_forum_is_in_the_general_one():
    assert read(FORUM).thread_id == "1"


def test_a_reply_in_an_ordinary_group_is_in_no_topic():
    assert read(GROUP, message_thread_id=40).thread_id is None


def test_the_message_that_opened_a_topic_is_not_quoted():
    opened = {
        "message_id": 40,
        "date": 1,
        "chat": FORUM,
        "from": {"id": 99, "is_bot": True, "first_name": "B"},
    }
    topic = {"message_thread_id": 40, "is_topic_message": True}
    assert read(FORUM, **topic, reply_to_message=opened).quote is None
    assert read(FORUM, **topic, reply_to_message=opened | {"forum_topic_created": {}}).quote is None


def test_an_answer_to_the_bot_quotes_its_message():
    answered = {
        "message_id": 4,
        "date": 1,
        "chat": GROUP,
        "from": {"id": 99, "is_bot": True, "first_name": "B"},
    }
    quote = read(GROUP, reply_to_message=answered | {"text": "yes"}).quote
    assert quote is not None and quote.own and (quote.message_id, quote.text) == ("4", "yes")


def test_an_anonymous_administrator_writes_for_the_group():
    anonymous = {"id": 1087968824, "is_bot": True, "first_name": "Group"}
    sender = read(GROUP, **{"from": anonymous, "sender_chat": GROUP}).sender
    assert (sender.id, sender.name, sender.is_bot) == ("-100", "Team", False)


def test_a_post_in_a_channel_comes_from_the_channel():
    chat = {"id": -300, "type": "channel", "title": "News"}
    post = {"message_id": 5, "date": 1, "chat": chat, "text": "hi"}
    [found] = events(translate([{"update_id": 1, "channel_post": post}], BOT))
    assert (found.sender.id, found.chat_type) == ("-300", "channel")


def test_the_largest_size_of_a_photo_is_taken():
    [photo] = read(text="", photo=[{"file_id": "s"}, {"file_id": "l", "file_size": 9}]).media
    assert (photo.ref, photo.kind, photo.size) == ("l", "image", 9)


def test_the_files_of_an_album_are_one_message_with_its_caption():
    def photo(number: int, **more: Any) -> dict[str, Any]:
        made = message(GROUP, message_id=number, photo=[{"file_id": f"f{number}"}], media_group_id="1")
        del made["text"]
        return {"update_id": number, "message": made | more}

    named = {"caption": "@my_bot look", "caption_entities": [{"type": "mention", "offset": 0, "length": 7}]}
    [album] = events(translate([photo(1), photo(2, **named), photo(3)], BOT))
    assert [m.ref for m in album.media] == ["f1", "f2", "f3"]
    assert (album.text, album.mentioned, album.event_id) == ("@my_bot look", True, "-100:1")


def test_own_messages_and_service_messages_are_no_messages():
    own = message(GROUP, **{"from": {"id": 99, "is_bot": True, "first_name": "B"}})
    service = {k: v for k, v in message(GROUP).items() if k != "text"} | {"new_chat_title": "New"}
    found = translate([{"update_id": 1, "message": own}, {"update_id": 2, "message": service}], BOT)
    assert ([update.id for update in found], events(found)) == ([1, 2], [])


def test_messages_of_other_bots_are_marked():
    assert read(GROUP, **{"from": {"id": 5, "is_bot": True, "first_name": "B"}}).sender.is_bot


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([*sorted(message(FORUM)), "entities", "photo", "document", "reply_to_message"]), json)
def test_a_malformed_update_is_skipped_and_the_offset_moves_on(field, value):
    updates = [
        {"update_id": 1, "message": message(FORUM) | {field: value}},
        {"update_id": 2, "message": message()},
    ]
    found = translate(updates, BOT)
    assert [update.id for update in found] == [1, 2]
    assert found[1].event is not None
