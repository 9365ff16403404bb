"""Routing of chat messages: which agent and session, and whether the message is let in. Pure functions.

`decide` is the one place where this is decided, for every channel. It depends on the settings, the message
and a few stored facts, and on nothing else.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from hobnob import keys
from hobnob.config import Settings
from hobnob.config.agents import Agent
from hobnob.config.channels import (
    ChannelAccount,
    Group,
    Place,
    account_ids,
    account_of,
    default_account,
)
from hobnob.config.channels.chats import BindingMatch
from hobnob.config.tools import ToolRules
from hobnob.fixes import Fix
from hobnob.inbound import Inbound, Sender
from hobnob.keys import SessionKey
from hobnob.records import Struct, replace
from hobnob.types import Session

Action = Literal["turn", "command", "context", "pair", "refuse"]
MAX_OPEN_REQUESTS = 3
_DEFAULT_HISTORY = 50
_PATTERN_CHARS = 2_000  # the part of a text in which a mention is looked for
_DEBOUNCE_MS = {"telegram": 300}
_LONG_TEXT = 4_000  # a text of this length was probably split by the sender's app: more is to come
_LONG_DEBOUNCE_MS = 1_500
_PREFIX = re.compile(r"\s*([A-Za-z][\w-]*)\s*:")
_PREFIXES = {"telegram": ("tg",), "imessage": ("sms", "auto")}


class Facts(Struct, frozen=True, kw_only=True):
    """What the store knows: about the sender, the thread and the chat."""

    paired: bool = False
    paired_owner: bool = False
    has_paired_owner: bool = False
    pairing_pending: bool = False
    open_requests: int = 0
    bound_to: str | None = None
    """The session a thread belongs to."""
    bot_messages: int = 0
    """Messages of this bot in this chat within the window of the loop protection."""
    is_command: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What becomes of a message. A refusal has the rule (`code`), a sentence, and what would allow it.

    `addressed`: the sender expects an answer. `moves_route`: later messages of the session, such as
    announcements, go to this chat. `history_limit`: how many earlier messages the agent is shown.
    """

    action: Action
    code: str
    why: str
    fix: tuple[Fix, ...] = ()
    agent_id: str = ""
    session_key: str = ""
    owner: bool = False
    addressed: bool = True
    moves_route: bool = True
    debounce_ms: int = 0
    history_limit: int = 0
    group: Group | None = field(default=None, repr=False)


def decide(settings: Settings, channel: str, account_id: str, event: Inbound, facts: Facts) -> Decision:
    """What becomes of a message from a chat."""
    root = settings.channels.configured.get(channel)
    if root is None:
        return _refuse("access.channel", f"the channel {channel} is not configured", ())
    if account_id not in account_ids(root):
        why = f"the setting channels.{channel} has no account {account_id} any more"
        return _refuse("access.account", why, ())
    account = account_of(root, account_id)
    path = f"channels.{channel}" + (f".accounts.{account_id}" if account_id in _accounts(root) else "")
    owner = is_owner(settings, channel, account, event.sender) or facts.paired_owner
    group = account.group(_place(event)) if event.chat_type != "direct" else None
    agent = _agent(settings, channel, account_id, root, event, group)
    routed = Decision(
        action="turn",
        code="ok",
        why="The sender may write to the bot.",
        agent_id=agent.id,
        session_key=str(_key(settings, channel, account_id, event, agent, group, facts)),
        owner=owner,
        moves_route=_moves_route(settings, channel, account, event, owner, facts.has_paired_owner),
        group=group,
    )
    if event.unverified:
        return _refuse("access.unverified_sender", event.unverified, (), routed)
    if not event.text.strip() and not event.media:
        return _refuse("message.empty", "the message has neither text nor files", (), routed)
    if event.sender.is_bot and (refused := _bot(settings, account, path, event, facts, routed)):
        return refused
    if event.chat_type == "direct":
        return _direct(account, path, event, facts, settings, channel, routed)
    return _in_group(settings, channel, account, path, event, facts, group, routed)


def is_owner(settings: Settings, channel: str, account: ChannelAccount, sender: Sender) -> bool:
    """Whether the settings name the sender as owner. By id only: anybody can take a name."""
    on_all = [text for text in settings.commands.owner_allow_from if _prefixed(channel, text)]
    return listed(channel, sender, [*account.owners, *on_all], names=False)


def channel_prefix(text: str) -> str | None:
    """The name of a channel that an address or an entry of a list begins with."""
    found = _PREFIX.match(text)
    return found[1].casefold() if found else None


def listed(channel: str, sender: Sender, entries: Iterable[str], *, names: bool) -> bool:
    """Whether a list of senders contains this one. An entry may begin with the name of the channel."""
    known = {text.casefold() for text in sender.ids}
    if names:
        known |= {text.casefold() for text in (sender.name, sender.username) if text}
    for entry in entries:
        wanted = bare(channel, entry).casefold()
        mask = wanted.replace("[", "[[]")  # on IRC a bracket is a character of a nick
        if wanted in known or ("!" in wanted and any(fnmatch.fnmatchcase(i, mask) for i in known)):
            return True
    return False


def mention_pattern(settings: Settings, agent: Agent) -> re.Pattern[str] | None:
    """What addresses an agent in a group: its patterns, else those for all agents, else its name."""
    own, shared = agent.group_chat.mention_patterns, settings.messages.group_chat.mention_patterns
    patterns = own if own is not None else shared
    if patterns is None:
        name = agent.identity.name or agent.name
        patterns = [rf"(?<!\w)@?{re.escape(name)}(?!\w)"] if name else []
    return _compiled(tuple(patterns))


@lru_cache(64)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{p})" for p in patterns), re.IGNORECASE) if patterns else None


def group_tools(settings: Settings, session: Session) -> ToolRules | None:
    """The rules for tools of the group that a session belongs to. Keys are folded, so ids are compared so."""
    root = settings.channels.configured.get(session.channel or "")
    if root is None or session.chat_type not in ("group", "channel"):
        return None
    account = account_of(root, session.last_account_id or default_account(root))
    groups = account.listed_groups()
    own = next((g for name, g in groups.items() if _folded(name) == session.peer), groups.get("*"))
    return own.tools if own else None


@lru_cache(1024)
def _folded(name: str) -> str:
    return keys.fold(keys.escaped(name))


def _direct(
    account: ChannelAccount,
    path: str,
    event: Inbound,
    facts: Facts,
    settings: Settings,
    channel: str,
    routed: Decision,
) -> Decision:
    named = listed(channel, event.sender, account.allow_from, names=account.dangerously_allow_name_matching)
    allow = Fix(f"{path}.allowFrom", [*account.allow_from, event.sender.id])
    match account.dm_policy:
        case "disabled":
            fix = (Fix(f"{path}.dmPolicy", "pairing"),)
            return _refuse("access.dm_disabled", f"the setting {path}.dmPolicy is disabled", fix, routed)
        case "open":
            admitted = "*" in account.allow_from or named or routed.owner
        case "allowlist":
            admitted = named or routed.owner
        case "pairing":
            admitted = named or routed.owner or facts.paired
    if not admitted and account.dm_policy == "pairing":
        return _pairing(path, facts, allow, routed)
    if not admitted:
        why = f"the setting {path}.allowFrom does not include the sender {event.sender.id}"
        return _refuse("access.sender", why, (allow,), routed)
    return _admitted(settings, channel, event, facts, routed)


def _pairing(path: str, facts: Facts, allow: Fix, routed: Decision) -> Decision:
    if facts.pairing_pending:
        why = "the sender was given a pairing code, which nobody has approved yet"
        return _refuse("access.pairing_pending", why, (allow,), routed)
    if facts.open_requests >= MAX_OPEN_REQUESTS:
        why = f"{facts.open_requests} pairing requests of this account wait for an answer already"
        return _refuse("access.pairing_full", why, (allow,), routed)
    why = f"the setting {path}.dmPolicy is pairing and the sender is not known: a code is sent"
    return replace(routed, action="pair", code="access.pairing", why=_sentence(why), fix=(allow,))


def _in_group(
    settings: Settings,
    channel: str,
    account: ChannelAccount,
    path: str,
    event: Inbound,
    facts: Facts,
    group: Group | None,
    routed: Decision,
) -> Decision:
    policy = account.group_policy or settings.channels.defaults.group_policy
    listing = f"{path}.{account.group_settings()}"
    if policy == "disabled":
        fix = (Fix(f"{path}.groupPolicy", "allowlist"),)
        return _refuse("access.groups_disabled", f"the setting {path}.groupPolicy is disabled", fix, routed)
    place = event.space_id if account.group_settings() == "guilds" and event.space_id else event.chat_id
    if group is None and (policy == "allowlist" or account.lists_groups):
        fix = (Fix(f"{listing}.{place}", {}),)
        return _refuse(
            "access.group_not_listed", f"the setting {listing} does not list the group {place}", fix, routed
        )
    group = group or Group()
    if not group.enabled:
        fix = (Fix(f"{listing}.{place}.enabled", True),)
        return _refuse("access.group_disabled", f"the group {place} is disabled in {listing}", fix, routed)
    if not routed.owner and not _may_address(channel, account, group, event.sender):
        fix = (Fix(f"{path}.groupAllowFrom", [*(account.group_allow_from or []), event.sender.id]),)
        why = f"the sender {event.sender.id} may not address the bot in groups ({path}.groupAllowFrom)"
        return _refuse("access.group_sender", why, fix, routed)
    if facts.is_command:
        return _admitted(settings, channel, event, facts, routed)
    mentioned = _is_mentioned(settings, event, routed.agent_id)
    required = group.require_mention is not False
    if not mentioned and required and not facts.bound_to:
        limit = history_limit(settings, account)
        why = "the message does not address the bot, and this group requires a mention"
        fixes = (Fix(f"{listing}.{place}.requireMention", False),)
        if not limit:
            return _refuse("access.mention", why, fixes, routed)
        context = replace(routed, action="context", code="access.mention", addressed=False, fix=fixes)
        return replace(context, why=_sentence(f"{why}; it is shown with the next one that does"))
    routed = replace(routed, addressed=mentioned or bool(facts.bound_to))
    return _admitted(
        settings, channel, event, facts, replace(routed, history_limit=history_limit(settings, account))
    )


def _admitted(settings: Settings, channel: str, event: Inbound, facts: Facts, routed: Decision) -> Decision:
    if facts.is_command and routed.owner:
        return replace(routed, action="command", why="An owner gave a command.")
    if facts.is_command:
        why = "slash commands are for owners, and the sender is none"
        fix = Fix(
            "commands.ownerAllowFrom", [*settings.commands.owner_allow_from, f"{channel}:{event.sender.id}"]
        )
        return _refuse("command.not_owner", why, (fix,), routed)
    return replace(routed, debounce_ms=_debounce_ms(settings, channel, event))


def _bot(
    settings: Settings, account: ChannelAccount, path: str, event: Inbound, facts: Facts, routed: Decision
) -> Decision | None:
    if not account.allow_bots or (account.allow_bots == "mentions" and not event.mentioned):
        fix = (Fix(f"{path}.allowBots", True if account.allow_bots else "mentions"),)
        return _refuse("access.bot", f"the sender is a bot ({path}.allowBots)", fix, routed)
    limits = settings.channels.defaults.bot_loop_protection
    if limits.enabled and facts.bot_messages >= limits.max_events_per_window:
        why = f"the bot wrote {facts.bot_messages} messages in {limits.window_seconds} seconds"
        fix = (Fix("channels.defaults.botLoopProtection.maxEventsPerWindow", facts.bot_messages + 1),)
        return _refuse("access.bot_loop", why, fix, routed)
    return None


def _may_address(channel: str, account: ChannelAccount, group: Group, sender: Sender) -> bool:
    """Whether a sender may address the bot in a group. Without any list, every member of the group may."""
    own = group.allow_from if group.allow_from is not None else group.users
    if group.roles is not None and set(group.roles) & set(sender.roles):
        return True
    shared = account.group_allow_from
    if shared is None and account.allow_from:
        shared = account.allow_from
    senders = own if own is not None else [] if group.roles is not None else shared
    if senders is None or "*" in senders:
        return True
    return listed(channel, sender, senders, names=account.dangerously_allow_name_matching)


def _is_mentioned(settings: Settings, event: Inbound, agent_id: str) -> bool:
    if event.mentioned or (event.quote is not None and event.quote.own):
        return True
    agent = settings.agent(agent_id)
    pattern = mention_pattern(settings, agent) if agent else None
    return pattern is not None and pattern.search(event.text[:_PATTERN_CHARS]) is not None


def history_limit(settings: Settings, account: ChannelAccount) -> int:
    """How many messages of a group that were not addressed to the bot it is shown."""
    shared = settings.messages.group_chat.history_limit
    return next(n for n in (account.history_limit, shared, _DEFAULT_HISTORY) if n is not None)


def _debounce_ms(settings: Settings, channel: str, event: Inbound) -> int:
    inbound = settings.messages.inbound
    chosen = inbound.by_channel.get(channel, inbound.debounce_ms)
    wait = _DEBOUNCE_MS.get(channel, 0) if chosen is None else chosen
    return max(wait, _LONG_DEBOUNCE_MS) if wait and len(event.text) >= _LONG_TEXT else wait


def _moves_route(
    settings: Settings, channel: str, account: ChannelAccount, event: Inbound, owner: bool, paired_owner: bool
) -> bool:
    """A message of somebody else in the shared main session does not redirect the owner's announcements."""
    scope = settings.session.dm_scope if event.chat_type == "direct" else settings.session.group_scope
    if scope != "main" or owner:
        return True
    named = [entry for entry in account.allow_from if entry != "*"]
    known = account.owners or settings.commands.owner_allow_from or paired_owner
    return not known and (len(named) != 1 or listed(channel, event.sender, named, names=False))


def _key(
    settings: Settings,
    channel: str,
    account_id: str,
    event: Inbound,
    agent: Agent,
    group: Group | None,
    facts: Facts,
) -> SessionKey:
    if facts.bound_to:
        return keys.parse(facts.bound_to)
    chat = keys.escaped(event.chat_id)
    if event.chat_type == "direct":
        key = keys.for_direct(
            agent.id,
            keys.escaped(event.sender.id),
            channel=channel,
            account=account_id,
            scope=settings.session.dm_scope,
            links=settings.session.identity_links,
        )
    elif settings.session.group_scope == "main" and (group is None or group.tools is None):
        key = keys.main_of(agent.id)
    else:
        key = keys.for_group(agent.id, chat, channel=channel, chat_type=event.chat_type)
    if event.thread_id is None or key.is_main:
        return key
    return keys.in_thread(key, keys.escaped(event.thread_id), event.thread_word)


def _agent(
    settings: Settings,
    channel: str,
    account_id: str,
    root: ChannelAccount,
    event: Inbound,
    group: Group | None,
) -> Agent:
    """The agent of the most exact binding; among equal ones, of the first."""
    if group is not None and group.agent_id and (agent := settings.agent(group.agent_id)):
        return agent
    ranked = [
        (rank, i, binding.agent_id)
        for i, binding in enumerate(settings.bindings)
        if (rank := _rank(binding.match, channel, account_id, root, event)) is not None
    ]
    chosen = settings.agent(min(ranked)[2]) if ranked else None
    return chosen or settings.default_agent


def _rank(
    match: BindingMatch, channel: str, account_id: str, root: ChannelAccount, event: Inbound
) -> int | None:
    """How exact a match is, 0 for the most exact; None if the message does not match."""
    wanted = default_account(root) if match.account_id is None else match.account_id
    if match.channel.casefold() != channel or wanted not in ("*", account_id):
        return None
    if match.guild_id not in (None, event.space_id) or match.team_id not in (None, event.space_id):
        return None
    if match.roles and not set(match.roles) & set(event.sender.roles):
        return None
    if match.peer is not None:
        own = event.sender.ids if event.chat_type == "direct" else (event.chat_id,)
        thread = event.thread_id if event.chat_type != "direct" else None
        if match.peer.kind != event.chat_type or match.peer.id not in (*own, thread, "*"):
            return None
        return 2 if match.peer.id == "*" else 0 if match.peer.id == thread or thread is None else 1
    if match.guild_id is not None:
        return 3 if match.roles else 4
    if match.team_id is not None:
        return 5
    return 7 if match.account_id == "*" else 6


def _place(event: Inbound) -> Place:
    return Place(event.chat_id, event.chat_name, event.space_id, event.thread_id)


def _accounts(root: ChannelAccount) -> dict[str, ChannelAccount]:
    found: dict[str, ChannelAccount] = getattr(root, "accounts", {})
    return found


def _prefixed(channel: str, entry: str) -> bool:
    """Whether an entry of a list of senders begins with the name of the channel."""
    return channel_prefix(entry) in (channel, *_PREFIXES.get(channel, ()))


def bare(channel: str, entry: str) -> str:
    """An address, or an entry of a list of senders, without the name of the channel."""
    entry = entry.strip()
    return _PREFIX.sub("", entry, count=1).strip() if _prefixed(channel, entry) else entry


def _refuse(code: str, why: str, fix: tuple[Fix, ...], routed: Decision | None = None) -> Decision:
    refused = Decision(action="refuse", code=code, why=_sentence(why), fix=fix)
    if routed is None:
        return refused
    return replace(routed, action="refuse", code=code, why=_sentence(why), fix=fix)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
