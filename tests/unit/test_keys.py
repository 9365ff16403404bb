"""The session key: what is read, what is refused, what is shown."""

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hobnob import keys
from hobnob.errors import BadKey
from hobnob.keys import SessionKey, Shape, Thread, Viewer, display, parse

HELPER = Viewer(agent="helper")
UUID = "0193a6c2-7b1d-7f00-8000-0123456789ab"


@pytest.mark.promise(
    "keys.main_is_the_callers",
    "keys.any_main_has_kind_main",
    "keys.short_forms_are_read",
    "keys.kind_is_structural",
    "keys.groups_and_channels",
    "keys.short_group_keys_are_read",
)
@pytest.mark.parametrize(
    ("text", "canonical", "kind"),
    [
        ("main", "agent:helper:main", "main"),
        ("MAIN", "agent:helper:main", "main"),
        ("agent:other:main", "agent:other:main", "main"),
        ("cron:7", "agent:helper:cron:7", "cron"),
        ("agent:x:cron:7", "agent:x:cron:7", "cron"),
        ("agent:x:cron:7:run:9", "agent:x:cron:7:run:9", "cron"),
        (f"hook:{UUID}", f"agent:helper:hook:{UUID}", "hook"),
        ("node-kitchen", "agent:helper:node-kitchen", "node"),
        ("node:kitchen", "agent:helper:node-kitchen", "node"),
        (f"subagent:{UUID}", f"agent:helper:subagent:{UUID}", "other"),
        (f"agent:codex:acp:{UUID}", f"agent:codex:acp:{UUID}", "other"),
        (f"agent:x:dashboard:{UUID}", f"agent:x:dashboard:{UUID}", "other"),
        ("agent:x:openai-user:ann", "agent:x:openai-user:ann", "other"),
        ("telegram:group:-100", "agent:helper:telegram:group:-100", "group"),
        ("slack:channel:C1", "agent:helper:slack:channel:c1", "group"),
        ("agent:x:slack:channel:C1", "agent:x:slack:channel:c1", "group"),
        ("agent:x:matrix:group:!r:home.org", "agent:x:matrix:group:!r:home.org", "group"),
        ("agent:x:direct:ann", "agent:x:direct:ann", "other"),
        ("agent:x:telegram:dm:5", "agent:x:telegram:direct:5", "other"),
        ("agent:x:telegram:bot2:direct:5", "agent:x:telegram:bot2:direct:5", "other"),
        ("agent:x:discord:acct:guild-1:channel-2", "agent:x:discord:acct:channel:2", "group"),
        ("agent:x:discord:guild-1:channel-2", "agent:x:discord:channel:2", "group"),
        ("agent:x:telegram:group:5:topic:9", "agent:x:telegram:group:5:topic:9", "group"),
        ("agent:x:main:thread:9", "agent:x:main:thread:9", "other"),
        ("agent:x::main", "agent:x:main", "main"),
        ("notes", "agent:helper:notes", "other"),
    ],
)
def test_every_form_of_the_grammar_is_read(text: str, canonical: str, kind: str) -> None:
    key = parse(text, HELPER)
    assert (str(key), key.kind) == (canonical, kind)


def test_a_key_is_taken_apart_into_its_parts() -> None:
    key = parse("agent:x:telegram:bot2:direct:5:thread:9")
    assert key == SessionKey("x", Shape.DIRECT, "5", "telegram", "bot2", threads=(Thread("9"),))
    assert (key.chat_type, key.thread, str(key.parent)) == ("direct", "9", "agent:x:telegram:bot2:direct:5")


def test_the_parent_of_a_thread_is_cut_at_the_last_mark() -> None:
    key = parse("agent:x:slack:channel:c1:thread:1:topic:2")
    assert key.parent == parse("agent:x:slack:channel:c1:thread:1")


def test_the_own_main_key_is_another_word_for_main() -> None:
    viewer = Viewer(agent="helper", main_key="Home")
    assert parse("home", viewer) == parse("agent:helper:HOME", viewer) == keys.main_of("helper")


def test_current_is_the_session_one_is_in() -> None:
    own = parse("agent:helper:cron:7")
    assert parse("current", Viewer(agent="helper", own=own)) == own
    with pytest.raises(BadKey, match="current"):
        parse("current", HELPER)


@pytest.mark.promise("keys.reserved_never_created")
@pytest.mark.parametrize("word", ["global", "unknown", "GLOBAL", "agent:x:global"])
def test_reserved_words_name_no_session(word: str) -> None:
    with pytest.raises(BadKey, match="reserved"):
        parse(word)


@pytest.mark.promise("keys.global_scope_is_main", "keys.global_is_never_shown")
@pytest.mark.parametrize("word", ["global", "unknown"])
def test_global_scope_reads_reserved_words_as_main_and_never_shows_them(word: str) -> None:
    viewer = Viewer(agent="helper", global_scope=True)
    assert parse(word, viewer) == keys.main_of("helper")
    assert display(parse(word, viewer), viewer) == "main"


@pytest.mark.promise(
    "keys.empty_is_refused",
    "keys.too_long_is_refused",
    "keys.control_characters_are_refused",
    "keys.path_pieces_are_refused",
    "keys.malformed_agent_is_refused",
    "keys.refusal_shows_the_grammar",
)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        ":::",
        "agent:",
        "agent:x",
        "agent:-x:main",
        "agent:a b:main",
        "agent:" + "a" * 65 + ":main",
        "agent:x:agent:y:main",
        "cron",
        "cron:",
        "node-",
        "hook:",
        "group:5",
        "slack:group",
        "thread:5",
        "main:thread",
        "main:thread:thread:5",
        "../../etc/passwd",
        "hook:..",
        "hook:a/../b",
        "hook:a/./b",
        "hook:a\\b",
        "hook:‥",  # two dot leader, folds to two dots
        "hook:a\x00b",
        "hook:a\nb",
        "hook:a\u200bb",
        "hook:a\u2028b",
        "hook:\ud800",
        "a" * 513,
        "a" * 510,  # short enough, but not with its agent in front
        "ﷺ" * 300,  # 300 characters that fold to many more
    ],
)
def test_a_bad_key_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(BadKey) as refusal:
        parse(text)
    assert refusal.value.fix == keys.GRAMMAR


@pytest.mark.promise(
    "keys.own_main_is_shown_as_main", "keys.other_main_is_shown_in_full", "keys.short_forms_are_shown"
)
@pytest.mark.parametrize(
    ("viewer", "shown"),
    [
        (
            Viewer(agent="x"),
            ["main", "cron:7", "node-n", "hook:h", "agent:x:subagent:s", "agent:x:slack:group:g"],
        ),
        (
            HELPER,
            [f"agent:x:{r}" for r in ("main", "cron:7", "node-n", "hook:h", "subagent:s", "slack:group:g")],
        ),
        (
            Viewer(agent="x", short=False),
            [f"agent:x:{r}" for r in ("main", "cron:7", "node-n", "hook:h", "subagent:s", "slack:group:g")],
        ),
    ],
)
def test_keys_are_short_for_their_own_agent_and_full_for_everybody_else(
    viewer: Viewer, shown: list[str]
) -> None:
    own = ["main", "cron:7", "node-n", "hook:h", "subagent:s", "slack:group:g"]
    assert [display(parse(text, Viewer(agent="x")), viewer) for text in own] == shown


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("main", "agent:x:main"),
        ("per-peer", "agent:x:direct:u1"),
        ("per-channel-peer", "agent:x:telegram:direct:u1"),
        ("per-account-channel-peer", "agent:x:telegram:bot:direct:u1"),
    ],
)
def test_a_direct_chat_lives_where_dm_scope_says(scope: keys.DmScope, expected: str) -> None:
    key = keys.for_direct("x", "U1", channel="Telegram", account="bot", scope=scope)
    assert str(key) == expected
    assert parse(str(key)) == key


def test_identity_links_join_one_person_on_two_channels() -> None:
    links = {"Ann": ["telegram:U1", "u2"]}
    one = keys.for_direct("x", "u1", channel="telegram", scope="per-peer", links=links)
    two = keys.for_direct("x", "U2", channel="slack", scope="per-peer", links=links)
    assert str(one) == str(two) == "agent:x:direct:ann"


def test_a_group_without_channel_or_id_says_unknown() -> None:
    assert str(keys.for_group("x", "", channel="")) == "agent:x:unknown:group:unknown"


@pytest.mark.parametrize(
    ("channel", "peer", "account"),
    [
        ("cron", "1", "a"),
        ("node-1", "1", "a"),
        ("irc", "x:thread:y", "a"),
        ("irc", "1", "direct"),
        ("a" * 500, "1", "a"),
    ],
)
def test_ids_that_would_be_read_as_grammar_are_refused(channel: str, peer: str, account: str) -> None:
    with pytest.raises(BadKey):
        keys.for_direct("x", peer, channel=channel, account=account, scope="per-account-channel-peer")


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(["group", "channel"]))
def test_a_key_made_of_somebody_elses_ids_reads_back_as_itself(channel: str, group: str, kind: Any) -> None:
    try:
        key = keys.for_group("x", group, channel=channel, chat_type=kind)
    except BadKey:
        return
    assert parse(str(key)) == key


@pytest.mark.parametrize("unseen", ["\ufe0f", "\u034f", "\u1160", "\u3164"])
def test_characters_that_show_nothing_make_no_other_session(unseen: str) -> None:
    assert parse(f"hook:fi{unseen}n") == parse("hook:fin")


words = st.text(st.characters(codec="utf-8"), max_size=40)
key_texts = st.one_of(
    words,
    st.builds("agent:{}:{}".format, st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True), words),
    st.lists(
        st.sampled_from(
            "agent main cron run hook node node- subagent acp dm direct group channel thread topic discord "
            "guild-1 channel-2 global unknown current slack a B é ß İ ﬁ Ⅸ ： .".split()
        ),
        max_size=9,
    ).map(":".join),
)
viewers = st.builds(
    Viewer,
    agent=st.sampled_from(["main", "x"]),
    main_key=st.sampled_from(["main", "Home"]),
    global_scope=st.booleans(),
    short=st.booleans(),
)


def read(text: str, viewer: Viewer) -> SessionKey:
    try:
        return parse(text, viewer)
    except BadKey:
        assume(False)
        raise


@given(key_texts, viewers)
@example("agent:x:cron:a:run:b:run:c", Viewer())
def test_the_canonical_form_reads_back_to_the_same_key(text: str, viewer: Viewer) -> None:
    key = read(text, viewer)
    assert parse(str(key), viewer) == key


@given(key_texts, viewers)
def test_what_a_viewer_is_shown_reads_back_to_the_same_session(text: str, viewer: Viewer) -> None:
    key = read(text, viewer)
    assert parse(display(key, viewer), viewer) == key


@pytest.mark.promise("keys.control_characters_are_refused", "keys.path_pieces_are_refused")
@given(key_texts, viewers)
def test_nothing_dangerous_gets_into_a_key(text: str, viewer: Viewer) -> None:
    canonical = str(read(text, viewer))
    assert len(canonical) <= keys.MAX_LENGTH
    assert ".." not in canonical
    assert canonical.isprintable()


@given(key_texts, viewers)
def test_case_variants_of_a_key_are_one_session(text: str, viewer: Viewer) -> None:
    # A few letters, such as the dotless i, have an upper case that is another letter's: not a variant.
    assume(all(c.upper().casefold() == c.lower().casefold() == c.casefold() for c in text))
    key = read(text, viewer)
    assert read(text.upper(), viewer) == read(text.lower(), viewer) == key


@pytest.mark.parametrize("variant", ["hook:ﬁn", "hook:FIN", "ｈｏｏｋ：ｆｉｎ", "hook:ﬁN"])
def test_unicode_variants_of_a_key_are_one_session(variant: str) -> None:
    assert parse(variant) == parse("hook:fin")
