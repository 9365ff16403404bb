"""Lines of IRC: parsing, cutting, comparing names, and the flood limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob.channels.irc.lines import (
    FloodBucket,
    Line,
    cut,
    fold,
    is_target,
    mentions,
    nicks,
    parse,
    unformatted,
)


def test_a_line_with_tags_source_and_trailing_text_is_parsed() -> None:
    line = parse(rb"@time=2026-11-17T20:00:00.000Z;msgid=a\:b\s\\ :ann!u@h PRIVMSG #room :hi: there")
    assert line == Line(
        "PRIVMSG", ("#room", "hi: there"), "ann!u@h", {"time": "2026-11-17T20:00:00.000Z", "msgid": "a;b \\"}
    )


@given(st.binary(max_size=600))
def test_any_bytes_can_be_parsed(raw: bytes) -> None:
    parsed = parse(raw)
    assert parsed is None or parsed.command


@given(st.text(max_size=700), st.integers(4, 400))
def test_cut_lines_fit_and_keep_every_visible_character(text: str, room: int) -> None:
    pieces = cut(text, room)
    assert all(len(piece.encode()) <= room for piece in pieces)
    assert not any(character in piece for piece in pieces for character in "\r\n\0")
    shown = text.encode("utf-8", "replace").decode().replace("\0", " ")
    assert "".join("".join(pieces).split()) == "".join(shown.split())


def test_a_cut_is_made_at_a_space_if_there_is_one() -> None:
    assert cut("one two three", 8) == ["one two", "three"]


def test_characters_of_several_bytes_stay_whole() -> None:
    assert cut("ü" * 5, 5) == ["üü", "üü", "ü"]


@pytest.mark.parametrize("target", ["", "a b", "ann,bob", ":ann", "$*", "*", "ann\r\nQUIT", "a\0b"])
def test_a_target_that_would_reach_others_or_begin_a_command_is_refused(target: str) -> None:
    assert not is_target(target)


@pytest.mark.parametrize("target", ["ann", "#room", "&local", "a|b", "a\\b", "[x]{y}`^_-"])
def test_nicks_and_rooms_with_unusual_characters_are_targets(target: str) -> None:
    assert is_target(target)


def test_a_nick_is_a_mention_only_as_a_word() -> None:
    assert mentions("Bot: hello", "bot") and mentions("hello, bot!", "bot")
    assert not mentions("robots and bot_", "bot")


def test_a_nick_of_special_characters_is_taken_literally() -> None:
    assert mentions("[a|b]: hello", "[a|b]")
    assert not mentions("a hello", "[a|b]")


def test_names_are_compared_as_the_server_says() -> None:
    assert fold("A[\\]~") == "a{|}^"
    assert fold("A[", "ascii") == "a["


def test_colours_are_removed() -> None:
    assert unformatted("\x0304,12red\x03 \x02bold\x0f \x04ff0000x") == "red bold x"


def test_the_first_alternative_of_a_taken_nick_has_an_underscore() -> None:
    assert list(nicks("hobnob"))[:3] == ["hobnob", "hobnob_", "hobnob__"]


def test_four_lines_pass_at_once_and_then_one_in_two_seconds() -> None:
    bucket = FloodBucket()
    assert [bucket.take(100.0) for _ in range(6)] == [0, 0, 0, 0, 2, 4]
    assert bucket.wait_s(103.0) == 3
    assert bucket.wait_s(200.0) == 0
