"""Which agent and session a chat message reaches, and whether it is let in: the rules as tables."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hobnob import keys, routing
from hobnob.config import Settings
from hobnob.inbound import Address, Inbound, Quote, Sender
from hobnob.records import replace
from hobnob.routing import Decision, Facts

ANN = Sender(id="123", name="Ann", username="ann")


def message(text: str = "hello", *, room: str | None = None, **more: Any) -> Inbound:
    fields: dict[str, Any] = {
        "event_id": "1",
        "message_id": "1",
        "sender": ANN,
        "chat_id": room or "123",
        "chat_type": "group" if room else "direct",
        "address": Address("to"),
        "text": text,
    }
    return Inbound(**fields | more)


def decide(
    channel: dict[str, Any], event: Inbound, facts: Facts | None = None, account: str = "default", **more: Any
) -> Decision:
    settings = Settings.model_validate({"channels": {"telegram": {"botToken": "x"} | channel}} | more)
    return routing.decide(settings, "telegram", account, event, facts or Facts())


@pytest.mark.promise("channels.nobody_by_default")
@pytest.mark.parametrize(
    ("channel", "facts", "action", "code"),
    [
        ({}, Facts(), "pair", "access.pairing"),
        ({}, Facts(pairing_pending=True), "refuse", "access.pairing_pending"),
        ({}, Facts(open_requests=3), "refuse", "access.pairing_full"),
        ({}, Facts(paired=True), "turn", "ok"),
        ({"allowFrom": [123]}, Facts(), "turn", "ok"),
        ({"allowFrom": ["telegram:123"]}, Facts(), "turn", "ok"),
        ({"allowFrom": ["tg:123"]}, Facts(), "turn", "ok"),
        ({"allowFrom": ["discord:123"]}, Facts(), "pair", "access.pairing"),
        ({"allowFrom": ["Ann"]}, Facts(), "pair", "access.pairing"),
        ({"allowFrom": ["ann"], "dangerouslyAllowNameMatching": True}, Facts(), "turn", "ok"),
        ({"owners": ["123"]}, Facts(), "turn", "ok"),
        ({"owners": ["Ann"], "dangerouslyAllowNameMatching": True}, Facts(), "pair", "access.pairing"),
        ({"dmPolicy": "allowlist", "allowFrom": ["9"]}, Facts(), "refuse", "access.sender"),
        ({"dmPolicy": "allowlist", "allowFrom": ["9"]}, Facts(paired=True), "refuse", "access.sender"),
        ({"dmPolicy": "allowlist", "allowFrom": ["123"]}, Facts(), "turn", "ok"),
        ({"dmPolicy": "open", "allowFrom": ["*"]}, Facts(), "turn", "ok"),
        ({"dmPolicy": "disabled", "owners": ["123"]}, Facts(), "refuse", "access.dm_disabled"),
    ],
)
def test_who_may_write_directly(channel: dict[str, Any], facts: Facts, action: str, code: str) -> None:
    decision = decide(channel, message(), facts)
    assert (decision.action, decision.code) == (action, code)


@pytest.mark.parametrize(
    ("channel", "more", "action", "code"),
    [
        ({}, {"mentioned": True}, "refuse", "access.group_not_listed"),
        ({"groupPolicy": "disabled"}, {"mentioned": True}, "refuse", "access.groups_disabled"),
        ({"groupPolicy": "open"}, {"mentioned": True}, "turn", "ok"),
        (
            {"groupPolicy": "open", "groups": {"-9": {}}},
            {"mentioned": True},
            "refuse",
            "access.group_not_listed",
        ),
        ({"groups": {"-1": {}}}, {"mentioned": True}, "turn", "ok"),
        ({"groups": {"*": {}}}, {"mentioned": True}, "turn", "ok"),
        ({"groups": {"-1": {"enabled": False}}}, {"mentioned": True}, "refuse", "access.group_disabled"),
        ({"groups": {"-1": {}}}, {}, "context", "access.mention"),
        ({"groups": {"-1": {}}, "historyLimit": 0}, {}, "refuse", "access.mention"),
        ({"groups": {"-1": {"requireMention": False}}}, {}, "turn", "ok"),
        ({"groups": {"-1": {}}}, {"quote": Quote(message_id="7", own=True)}, "turn", "ok"),
        ({"groups": {"-1": {}}}, {"quote": Quote(message_id="7")}, "context", "access.mention"),
        (
            {"groups": {"-1": {}}, "groupAllowFrom": ["9"]},
            {"mentioned": True},
            "refuse",
            "access.group_sender",
        ),
        ({"groups": {"-1": {}}, "groupAllowFrom": []}, {"mentioned": True}, "refuse", "access.group_sender"),
        ({"groups": {"-1": {}}, "groupAllowFrom": ["123"]}, {"mentioned": True}, "turn", "ok"),
        ({"groups": {"-1": {}}, "allowFrom": ["9"]}, {"mentioned": True}, "refuse", "access.group_sender"),
        (
            {"groups": {"-1": {"allowFrom": ["9"]}}, "groupAllowFrom": ["123"]},
            {"mentioned": True},
            "refuse",
            "access.group_sender",
        ),
        (
            {"groups": {"-1": {"allowFrom": ["9"]}}},
            {"quote": Quote(message_id="7", own=True)},
            "refuse",
            "access.group_sender",
        ),
        ({"groups": {"-1": {"allowFrom": ["9"]}}, "owners": ["123"]}, {"mentioned": True}, "turn", "ok"),
    ],
)
def test_who_may_speak_in_groups(
    channel: dict[str, Any], more: dict[str, Any], action: str, code: str
) -> None:
    decision = decide(channel, message(room="-1", **more))
    assert (decision.action, decision.code) == (action, code)


def test_a_pairing_lets_nobody_into_groups() -> None:
    decision = decide(
        {"groups": {"-1": {}}, "groupAllowFrom": []}, message(room="-1", mentioned=True), Facts(paired=True)
    )
    assert decision.code == "access.group_sender"


@pytest.mark.parametrize(
    ("text", "agent", "shared", "addressed"),
    [
        ("Robin, are you there?", {"name": "Robin"}, None, True),
        ("@robin hello", {"identity": {"name": "Robin"}}, None, True),
        ("Robinson is here", {"name": "Robin"}, None, False),
        ("hey bot", {"name": "Robin", "groupChat": {"mentionPatterns": ["\\bbot\\b"]}}, None, True),
        ("hey Robin", {"name": "Robin", "groupChat": {"mentionPatterns": []}}, None, False),
        ("computer, help", {}, ["^computer"], True),
        ("main thing", {}, None, False),
    ],
)
def test_what_addresses_an_agent_in_a_group(
    text: str, agent: dict[str, Any], shared: list[str] | None, addressed: bool
) -> None:
    more: dict[str, Any] = {"agents": {"list": [{"id": "main"} | agent]}}
    if shared is not None:
        more["messages"] = {"groupChat": {"mentionPatterns": shared}}
    decision = decide({"groups": {"-1": {}}}, message(text, room="-1"), **more)
    assert (decision.action == "turn") is addressed


@pytest.mark.parametrize(
    ("allow", "mentioned", "count", "code"),
    [
        (False, True, 0, "access.bot"),
        ("mentions", False, 0, "access.bot"),
        ("mentions", True, 0, "ok"),
        (True, None, 0, "ok"),
        (True, None, 20, "access.bot_loop"),
    ],
)
def test_messages_of_bots(allow: Any, mentioned: bool | None, count: int, code: str) -> None:
    event = message(sender=replace(ANN, is_bot=True), mentioned=mentioned)
    channel = {"allowBots": allow, "dmPolicy": "open", "allowFrom": ["*"]}
    assert decide(channel, event, Facts(bot_messages=count)).code == code


def test_commands_are_for_owners() -> None:
    everybody = {"dmPolicy": "open", "allowFrom": ["*"]}
    assert decide(everybody, message("/new"), Facts(is_command=True)).code == "command.not_owner"
    owner = decide(everybody | {"owners": ["123"]}, message("/new"), Facts(is_command=True))
    assert (owner.action, owner.owner) == ("command", True)
    by_pairing = decide({}, message("/new"), Facts(is_command=True, paired=True, paired_owner=True))
    assert by_pairing.action == "command"
    for_all = {"commands": {"ownerAllowFrom": ["telegram:123"]}}
    assert decide(everybody, message("/new"), Facts(is_command=True), **for_all).action == "command"
    elsewhere = {"commands": {"ownerAllowFrom": ["discord:123"]}}
    assert decide(everybody, message("/new"), Facts(is_command=True), **elsewhere).action == "refuse"


def test_a_command_of_an_owner_needs_no_mention_but_a_listed_group() -> None:
    owner = {"owners": ["123"]}
    command = Facts(is_command=True)
    assert decide(owner | {"groups": {"-1": {}}}, message("/status", room="-1"), command).action == "command"
    assert decide(owner, message("/status", room="-1"), command).code == "access.group_not_listed"


@pytest.mark.parametrize(
    ("scope", "event", "key"),
    [
        ("main", {}, "agent:main:main"),
        ("per-peer", {}, "agent:main:direct:123"),
        ("per-channel-peer", {}, "agent:main:telegram:direct:123"),
        ("per-account-channel-peer", {}, "agent:main:telegram:default:direct:123"),
        ("main", {"room": "-1001"}, "agent:main:telegram:group:-1001"),
        (
            "main",
            {"room": "-1001", "thread_id": "7", "thread_word": "topic"},
            "agent:main:telegram:group:-1001:topic:7",
        ),
        ("main", {"room": "C0AB", "chat_type": "channel"}, "agent:main:telegram:channel:c0ab"),
    ],
)
def test_the_session_of_a_message(scope: str, event: dict[str, Any], key: str) -> None:
    channel = {"dmPolicy": "open", "allowFrom": ["*"], "groups": {"*": {"requireMention": False}}}
    decision = decide(channel, message(**event), session={"dmScope": scope})
    assert decision.session_key == key


def test_one_person_on_two_channels_has_one_session_if_linked() -> None:
    channel = {"allowFrom": ["123"]}
    links = {"dmScope": "per-peer", "identityLinks": {"ann": ["telegram:123", "discord:9"]}}
    assert decide(channel, message(), session=links).session_key == "agent:main:direct:ann"


def test_a_thread_that_belongs_to_a_sub_agent_reaches_it_without_a_mention() -> None:
    child = "agent:main:subagent:11111111-1111-1111-1111-111111111111"
    event = message(room="-1", thread_id="7")
    decision = decide({"groups": {"-1": {}}}, event, Facts(bound_to=child))
    assert (decision.action, decision.session_key, decision.addressed) == ("turn", child, True)
    refused = decide({"groups": {"-1": {"allowFrom": ["9"]}}}, event, Facts(bound_to=child))
    assert refused.code == "access.group_sender"


AGENTS = {"agents": {"list": [{"id": name} for name in ("main", "a", "b", "c")]}}
ROOM = {"peer": {"kind": "group", "id": "-1"}}


@pytest.mark.parametrize(
    ("bindings", "agent"),
    [
        ([], "main"),
        ([("a", {})], "a"),
        ([("a", {"accountId": "work"})], "main"),
        ([("a", {"accountId": "*"})], "a"),
        ([("a", {"accountId": "*"}), ("b", {})], "b"),
        ([("a", {}), ("b", ROOM)], "b"),
        ([("a", {"peer": {"kind": "group", "id": "*"}}), ("b", ROOM)], "b"),
        ([("a", {"peer": {"kind": "group", "id": "*"}}), ("b", {})], "a"),
        ([("a", {"peer": {"kind": "direct", "id": "-1"}})], "main"),
        ([("a", {"guildId": "g"}), ("b", {})], "a"),
        ([("a", {"guildId": "g"}), ("b", {"guildId": "g", "roles": ["r"]})], "b"),
        ([("a", {"guildId": "other"})], "main"),
        ([("a", {"teamId": "g"}), ("b", {})], "a"),
        ([("a", ROOM), ("b", ROOM)], "a"),
        ([("a", ROOM), ("b", {"peer": {"kind": "group", "id": "7"}})], "b"),
        ([("gone", ROOM)], "main"),
    ],
)
def test_the_most_exact_binding_chooses_the_agent(
    bindings: list[tuple[str, dict[str, Any]]], agent: str
) -> None:
    sender = replace(ANN, roles=("r",))
    event = message(room="-1", mentioned=True, space_id="g", thread_id="7", sender=sender)
    rules = [{"agentId": a, "match": {"channel": "telegram"} | match} for a, match in bindings]
    channel = {"groups": {"-1": {}}, "accounts": {"work": {"botToken": "y"}}}
    assert decide(channel, event, bindings=rules, **AGENTS).agent_id == agent


def test_a_topic_may_name_its_agent() -> None:
    channel = {"groups": {"-1": {"agentId": "a", "topics": {"7": {"agentId": "b"}}}}}
    assert decide(channel, message(room="-1", mentioned=True), **AGENTS).agent_id == "a"
    assert decide(channel, message(room="-1", thread_id="7", mentioned=True), **AGENTS).agent_id == "b"


@pytest.mark.parametrize(
    ("channel", "sender", "moves"),
    [
        ({"allowFrom": ["123"]}, "123", True),
        ({"allowFrom": ["9"], "dmPolicy": "pairing"}, "123", False),
        ({"allowFrom": ["9", "123"]}, "123", True),
        ({"owners": ["9"], "allowFrom": ["123", "9"]}, "123", False),
        ({"owners": ["123"], "allowFrom": ["9"]}, "123", True),
        ({"dmPolicy": "open", "allowFrom": ["*"]}, "123", True),
    ],
)
@pytest.mark.promise("channels.strangers_do_not_move_the_route")
def test_a_stranger_does_not_redirect_the_announcements_of_the_owner(
    channel: dict[str, Any], sender: str, moves: bool
) -> None:
    event = message(sender=Sender(id=sender))
    assert decide(channel, event, Facts(paired=True)).moves_route is moves


def test_an_account_has_its_own_rules_and_else_those_of_its_channel() -> None:
    channel = {
        "allowFrom": ["123"],
        "groups": {"-1": {}},
        "accounts": {"work": {"botToken": "y", "groups": {}, "allowFrom": []}},
    }
    assert decide(channel, message()).action == "turn"
    assert decide(channel, message(), account="work").action == "pair"
    assert (
        decide(channel, message(room="-1", mentioned=True), account="work").code == "access.group_not_listed"
    )


def test_a_refusal_names_the_setting_that_would_allow_it() -> None:
    refused = decide({}, message(room="-1", mentioned=True))
    assert refused.why == "The setting channels.telegram.groups does not list the group -1."
    assert [(fix.path, fix.value) for fix in refused.fix] == [("channels.telegram.groups.-1", {})]


@given(
    chat=st.text(min_size=1, max_size=80),
    sender=st.text(min_size=1, max_size=80),
    thread=st.text(max_size=40),
)
def test_ids_of_any_form_become_keys_that_parse_to_themselves(chat: str, sender: str, thread: str) -> None:
    channel = {"dmPolicy": "open", "allowFrom": ["*"], "groups": {"*": {"requireMention": False}}}
    scope = {"dmScope": "per-channel-peer"}
    who = Sender(id=sender)
    for event in (
        message(sender=who),
        message(room=chat, sender=who, thread_id=thread or None),
    ):
        key = decide(channel, event, session=scope).session_key
        assert str(keys.parse(key)) == key


def test_a_message_of_an_account_that_is_not_configured_any_more_is_refused() -> None:
    """Not judged by the rules of the channel: those may be wider."""
    channel = {"accounts": {"work": {"botToken": "y"}}, "dmPolicy": "open", "allowFrom": ["*"]}
    decision = decide(channel, message(), account="old")
    assert (decision.action, decision.code) == ("refuse", "access.account")


def test_a_group_with_rules_for_tools_keeps_its_own_session() -> None:
    """In the main session the rules would hold for everybody, or for nobody."""
    channel = {"groups": {"-1": {"tools": {"deny": ["exec"]}}, "-2": {}}}
    scope = {"session": {"groupScope": "main"}}
    ruled = decide(channel, message(room="-1", mentioned=True), **scope)
    free = decide(channel, message(room="-2", mentioned=True), **scope)
    assert (ruled.session_key, free.session_key) == ("agent:main:telegram:group:-1", "agent:main:main")
