"""Session keys: the grammar, the parser and the display form. No other module parses key strings.

`parse` reads a key from a caller's point of view (`Viewer`): `main` is the main session of the caller's
agent, `cron:7` its cron job. `str(key)` is the canonical form that is stored, `display` the form for a
viewer; both parse to the same key.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from hobnob.errors import BadKey
from hobnob.records import Struct, replace

Kind = Literal["main", "group", "cron", "hook", "node", "other"]
ChatType = Literal["direct", "group", "channel"]
DmScope = Literal["main", "per-peer", "per-channel-peer", "per-account-channel-peer"]

MAX_LENGTH = 512
DEFAULT_AGENT = "main"
RESERVED = ("global", "unknown")

GRAMMAR = """\
A session key is one of
  main                                      the main session of your agent
  cron:<job>, hook:<id>, node-<id>          a session of a scheduled job, a hook or a device
  subagent:<id>                             a sub-agent of your agent
  agent:<agent>:<any of the above>          the same for another agent
  agent:<agent>:<channel>:group:<id>        a group chat (or :channel:<id>)
  agent:<agent>:<channel>:direct:<peer>     a direct chat
  <any of these>:thread:<id>                a thread in it (or :topic:<id>)
An agent id has 1 to 64 letters, digits, - or _, and starts with a letter or digit.
A key has at most 512 characters, no control characters, no backslash and no `..`."""


class Shape(StrEnum):
    """The type of a key. For keys with a prefix, the value is that prefix."""

    MAIN = "main"
    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"
    CRON = "cron"
    NODE = "node"
    HOOK = "hook"
    SUBAGENT = "subagent"
    ACP = "acp"
    DASHBOARD = "dashboard"
    OPENAI = "openai"
    OPENAI_USER = "openai-user"
    OPENRESPONSES = "openresponses"
    OPENRESPONSES_USER = "openresponses-user"
    CUSTOM = "custom"


_PREFIXED = {
    s.value: s
    for s in (
        Shape.HOOK,
        Shape.SUBAGENT,
        Shape.ACP,
        Shape.DASHBOARD,
        Shape.OPENAI,
        Shape.OPENAI_USER,
        Shape.OPENRESPONSES,
        Shape.OPENRESPONSES_USER,
    )
}
_CHATS = {"group": Shape.GROUP, "channel": Shape.CHANNEL, "direct": Shape.DIRECT, "dm": Shape.DIRECT}
_CHAT_TYPES: dict[Shape, ChatType] = {
    Shape.DIRECT: "direct",
    Shape.GROUP: "group",
    Shape.CHANNEL: "channel",
}
_KINDS: dict[Shape, Kind] = {
    Shape.MAIN: "main",
    Shape.GROUP: "group",
    Shape.CHANNEL: "group",
    Shape.CRON: "cron",
    Shape.HOOK: "hook",
    Shape.NODE: "node",
}
_SHORT_FORMS = {Shape.MAIN, Shape.CRON, Shape.HOOK, Shape.NODE}
_THREADS = ("thread", "topic")
# Invisible characters are removed: keys that differ only in them would look the same.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_ESCAPED = frozenset("\\%")
_WORDS = frozenset({*_THREADS, *_CHATS, "agent", "run"})
_MAX_ID = 256  # of an id in a key that is made from it
_AGENT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class Thread(Struct, frozen=True):
    """A thread in a conversation; Telegram calls it a topic."""

    id: str
    word: str = "thread"


class SessionKey(Struct, frozen=True):
    """A parsed key. Use `parse` or the functions below to make one; all parts are case-folded."""

    agent: str
    shape: Shape
    id: str = ""
    channel: str | None = None
    account: str | None = None
    cron_run: str | None = None
    threads: tuple[Thread, ...] = ()

    def __str__(self) -> str:
        return f"agent:{self.agent}:{self.rest}"

    @property
    def rest(self) -> str:
        """The canonical key without its agent."""
        return ":".join([self._base, *(f"{t.word}:{t.id}" for t in self.threads)])

    @property
    def _base(self) -> str:
        match self.shape:
            case Shape.MAIN:
                return "main"
            case Shape.CUSTOM:
                return self.id
            case Shape.NODE:
                return f"node-{self.id}"
            case Shape.CRON:
                return f"cron:{self.id}" + (f":run:{self.cron_run}" if self.cron_run else "")
            case Shape.DIRECT | Shape.GROUP | Shape.CHANNEL:
                return ":".join(p for p in (self.channel, self.account, self.shape.value, self.id) if p)
            case _:
                return f"{self.shape.value}:{self.id}"

    @property
    def kind(self) -> Kind:
        """The kind, by structure. A thread of a group is a group; a thread of a main session is not main."""
        kind = _KINDS.get(self.shape, "other")
        return "other" if kind == "main" and self.threads else kind

    @property
    def chat_type(self) -> ChatType | None:
        return _CHAT_TYPES.get(self.shape)

    @property
    def thread(self) -> str | None:
        return self.threads[-1].id if self.threads else None

    @property
    def parent(self) -> SessionKey | None:
        """The conversation this thread belongs to."""
        return replace(self, threads=self.threads[:-1]) if self.threads else None

    @property
    def is_main(self) -> bool:
        return self.kind == "main"

    @property
    def is_child(self) -> bool:
        """Created by a spawn: a sub-agent or an external harness."""
        return self.shape in (Shape.SUBAGENT, Shape.ACP)

    @property
    def is_external(self) -> bool:
        """Run by a harness; the `agent` of the key is then the harness id."""
        return self.shape is Shape.ACP


class Viewer(Struct, frozen=True):
    """The point of view from which keys are parsed and displayed."""

    agent: str = DEFAULT_AGENT
    own: SessionKey | None = None
    main_key: str = "main"
    global_scope: bool = False
    short: bool = True


@lru_cache(1024)
def parse(text: str, viewer: Viewer | None = None) -> SessionKey:
    """Parse a key from the viewer's point of view. Raises BadKey, with the grammar as `fix`."""
    viewer = viewer or Viewer()
    parts = [p for p in (part.strip() for part in fold(text).split(":")) if p]
    if not parts:
        raise _bad("A session key must not be empty")
    if parts == ["current"]:
        if viewer.own is None:
            raise _bad("`current` works only inside a session")
        return viewer.own
    agent = viewer.agent
    if parts[0] == "agent":
        if len(parts) < 3:
            raise _bad("A key that starts with `agent:` needs an agent and a session after it")
        agent, parts = agent_id(parts[1]), parts[2:]
        if parts[0] == "agent":
            raise _bad("The key contains `agent:` twice")
    base, threads = _split_threads(parts)
    key = replace(_parse_base(agent, base, viewer), threads=threads)
    _check_length(str(key))
    return key


def agent_of(key: str) -> str:
    """The agent of a canonical key."""
    return key.split(":", 2)[1]


def rest_of(key: str) -> str:
    """The part of a canonical key after its agent."""
    return key.split(":", 2)[2]


def display(key: SessionKey, viewer: Viewer) -> str:
    """The key in its form for `viewer`: short for keys of the viewer's own agent, else canonical."""
    if viewer.short and key.agent == viewer.agent and key.shape in _SHORT_FORMS:
        return key.rest
    return str(key)


def display_stored(key: str, viewer: Viewer) -> str:
    """Like `display`, for a canonical key. A key of another agent is returned unparsed."""
    return display(parse(key), viewer) if key.startswith(f"agent:{viewer.agent}:") else key


def canonical_prefix(text: str, main_key: str = "main") -> str:
    """A prefix of a key, with aliases replaced by the words of canonical keys."""
    aliases = {"dm": "direct", fold(main_key): "main"}
    return ":".join(aliases.get(word, word) for word in fold(text).split(":"))


def agent_id(text: str) -> str:
    """An agent id, folded and checked."""
    folded = fold(text).strip()
    if not _AGENT_ID.fullmatch(folded):
        raise _bad(f"{text!r} is not an agent id")
    return folded


def for_direct(
    agent: str,
    peer: str,
    *,
    channel: str,
    account: str = "default",
    scope: DmScope = "main",
    links: Mapping[str, Sequence[str]] | None = None,
) -> SessionKey:
    """The session of a direct chat with `peer`, by `session.dmScope`."""
    if scope == "main":
        return main_of(agent)
    channel = _part(channel)
    peer = _linked(channel, _part(peer), links or {})
    return _checked(
        SessionKey(
            agent_id(agent),
            Shape.DIRECT,
            peer,
            channel=None if scope == "per-peer" else channel,
            account=_part(account, "default") if scope == "per-account-channel-peer" else None,
        )
    )


def for_group(agent: str, group: str, *, channel: str, chat_type: ChatType = "group") -> SessionKey:
    """The session of a group chat or channel; a missing channel or id becomes `unknown`."""
    return _checked(SessionKey(agent_id(agent), _CHATS[chat_type], _part(group), channel=_part(channel)))


def in_thread(key: SessionKey, thread_id: str, word: str = "thread") -> SessionKey:
    """The session of a thread in a conversation."""
    return _checked(replace(key, threads=(*key.threads, Thread(_part(thread_id), word))))


def escaped(text: str) -> str:
    """An id of another system in a form that a key may contain. Case is lost, as in every part of a key.

    Characters that no key may contain, and parts that are words of the grammar, are percent-encoded.
    """
    parts = []
    for part in unicodedata.normalize("NFKC", text)[:_MAX_ID].split(":"):
        part = "".join(
            _percent(c) if c in _ESCAPED or not c.isprintable() or c.isspace() else c for c in part
        )
        if "." in part.split("/") or ".." in part:
            part = part.replace(".", "%2e")
        if part.casefold() in _WORDS:
            part = _percent(part[0]) + part[1:]
        parts.append(part)
    return ":".join(parts)[:_MAX_ID]


def _percent(char: str) -> str:
    return "".join(f"%{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))


def main_of(agent: str) -> SessionKey:
    return SessionKey(agent_id(agent), Shape.MAIN)


def fold(text: str) -> str:
    """Normalise case and Unicode form. Raises BadKey for characters that no key may contain."""
    _check_length(text)
    folded = _INVISIBLE.sub("", text).strip()
    # Case folding can undo the normal form and the reverse: repeat until nothing changes.
    while (again := unicodedata.normalize("NFKC", folded).casefold()) != folded:
        folded = again
    _check_length(folded)
    for char in folded:
        if not char.isprintable() or char == "\\":
            raise _bad(f"A session key must not contain the character U+{ord(char):04X}")
    if ".." in folded or "." in re.split("[:/]", folded):
        raise _bad("A session key must not contain path segments such as `..`")
    return folded


def _check_length(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise _bad(f"A session key has at most {MAX_LENGTH} characters, this one has {len(text)}")


def _split_threads(parts: list[str]) -> tuple[list[str], tuple[Thread, ...]]:
    marks = [i for i, part in enumerate(parts) if part in _THREADS]
    base = parts[: marks[0]] if marks else parts
    if not base:
        raise _bad("A thread needs the key of its conversation before it")
    threads = []
    for start, end in pairwise([*marks, len(parts)]):
        if not parts[start + 1 : end]:
            raise _bad(f"`:{parts[start]}:` needs an id after it")
        threads.append(Thread(":".join(parts[start + 1 : end]), parts[start]))
    return base, tuple(threads)


# The first rule that matches decides: a prefix such as `cron`, then `direct`, then a chat type after the
# channel or its account, then a custom key.
def _parse_base(agent: str, base: list[str], viewer: Viewer) -> SessionKey:
    head, tail = base[0], base[1:]
    if not tail:
        if head == "main" or head == fold(viewer.main_key) or (viewer.global_scope and head in RESERVED):
            return SessionKey(agent, Shape.MAIN)
        if head in RESERVED:
            raise _bad(f"`{head}` is reserved and names no session")
    if head == "cron" or head in _PREFIXED or head == "node" or head.startswith("node-"):
        return _parse_prefixed(agent, head, tail)
    return _parse_chat(agent, base) or SessionKey(agent, Shape.CUSTOM, ":".join(base))


def _parse_prefixed(agent: str, head: str, tail: list[str]) -> SessionKey:
    if head.startswith("node-"):
        head, tail = "node", [p for p in (head.removeprefix("node-"), *tail) if p]
    if not tail:
        raise _bad(f"`{head}` needs an id after it")
    if head == "cron" and len(tail) > 2 and tail[-2] == "run":
        return SessionKey(agent, Shape.CRON, ":".join(tail[:-2]), cron_run=tail[-1])
    return SessionKey(agent, Shape(head), ":".join(tail))


def _parse_chat(agent: str, base: list[str]) -> SessionKey | None:
    if base[0] in ("direct", "dm"):
        if not base[1:]:
            raise _bad("A direct chat needs a peer after it")
        return SessionKey(agent, Shape.DIRECT, ":".join(base[1:]))
    if base[0] == "discord" and base[-1].startswith("channel-") and base[-2].startswith("guild-"):
        account = base[1] if len(base) == 4 else None
        return SessionKey(agent, Shape.CHANNEL, base[-1].removeprefix("channel-"), "discord", account)
    if base[0] in _CHATS:
        raise _bad(f"`{base[0]}` needs a channel before it")
    for mark in (1, 2):
        if mark < len(base) and base[mark] in _CHATS:
            if not base[mark + 1 :]:
                raise _bad(f"`:{base[mark]}:` needs an id after it")
            account = base[1] if mark == 2 else None
            return SessionKey(agent, _CHATS[base[mark]], ":".join(base[mark + 1 :]), base[0], account)
    return None


def _checked(key: SessionKey) -> SessionKey:
    """A key built from ids of another system. Raises BadKey unless it parses to itself."""
    if parse(str(key)) != key:
        raise _bad(f"{key} is ambiguous: an id in it is a word of the grammar")
    return key


def _part(text: str, missing: str = "unknown") -> str:
    """An id of another system as part of a key: folded, and without a thread marker."""
    parts = [p for p in (part.strip() for part in fold(text).split(":")) if p]
    if any(part in _THREADS for part in parts):
        raise _bad(f"The id {text!r} contains `thread` or `topic`, which mark a thread")
    return ":".join(parts) or missing


def _linked(channel: str, peer: str, links: Mapping[str, Sequence[str]]) -> str:
    for name, ids in links.items():
        if {peer, f"{channel}:{peer}"} & {fold(i) for i in ids}:
            return _part(name)
    return peer


def _bad(reason: str) -> BadKey:
    return BadKey(f"{reason}.", fix=GRAMMAR)
