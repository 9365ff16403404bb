"""Lines of IRC: parse them, cut texts so that they fit, compare names, obey the flood limit. No I/O."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable

from hobnob.records import Struct, field

MAX_LINE = 512
"""Bytes of a line with its end, without tags, as the server passes it on."""
MAX_TAGGED_LINE = 8191 + MAX_LINE
_UNSENDABLE = re.compile(r"[\r\n\0]+")
_FORMATTING = re.compile(
    r"\x03(?:\d{1,2}(?:,\d{1,2})?)?|\x04(?:[0-9A-Fa-f]{6})?|[\x02\x0f\x11\x16\x1d\x1e\x1f]"
)
_TAG_ESCAPES = {":": ";", "s": " ", "\\": "\\", "r": "\r", "n": "\n"}
_TARGET = re.compile(r"[^\s,:*$@!\0][^\s,\0]{0,199}")
_NICK_CHARACTER = r"[\w\[\]\\`^{}|-]"
_RFC1459 = str.maketrans("[]\\~", "{}|^")
_STRICT_RFC1459 = str.maketrans("[]\\", "{}|")


class Line(Struct, frozen=True):
    """A line from the server. `source` is a server, or `nick!user@host`."""

    command: str
    params: tuple[str, ...] = ()
    source: str = ""
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def nick(self) -> str:
        return self.source.partition("!")[0]

    @property
    def text(self) -> str:
        """The last parameter."""
        return self.params[-1] if self.params else ""

    def param(self, index: int) -> str:
        return self.params[index] if index < len(self.params) else ""


def parse(raw: bytes) -> Line | None:
    """Parse a line without its end; None if there is no command in it. Never raises."""
    text = raw.decode("utf-8", "replace")
    tags: dict[str, str] = {}
    source = ""
    if text.startswith("@"):
        head, _, text = text.partition(" ")
        tags = {
            name: _unescaped(value) for name, _, value in (tag.partition("=") for tag in head[1:].split(";"))
        }
    text = text.lstrip(" ")
    if text.startswith(":"):
        head, _, text = text.partition(" ")
        source = head[1:]
    text, trailing, last = text.lstrip(" ").partition(" :")
    words = text.split()
    if not words:
        return None
    return Line(words[0].upper(), tuple([*words[1:], last] if trailing else words[1:]), source, tags)


def _unescaped(value: str) -> str:
    return re.sub(r"\\(.?)", lambda found: _TAG_ESCAPES.get(found[1], found[1]), value)


def sendable(text: str) -> str:
    """A text without what would end a line."""
    return _UNSENDABLE.sub(" ", text).encode("utf-8", "replace").decode()


def is_target(text: str) -> bool:
    """Whether a text is one nick or one room: no list, no mask, nothing that ends the parameter."""
    return bool(_TARGET.fullmatch(text))


def cut(text: str, room: int) -> list[str]:
    """The lines of a text, each of at most `room` bytes. Characters stay whole; blank lines are dropped."""
    pieces: list[str] = []
    for line in text.splitlines():
        rest = sendable(line).rstrip().encode()
        while len(rest) > room:
            end = room
            while end > 0 and rest[end] & 0xC0 == 0x80:  # within a character
                end -= 1
            space = rest.rfind(b" ", end // 2, end + 1)
            end = space if space > 0 else end or room
            pieces.append(rest[:end].decode("utf-8", "replace"))
            rest = rest[end:].lstrip(b" ")
        pieces.append(rest.decode())
    return [piece for piece in pieces if piece.strip()]


def unformatted(text: str) -> str:
    """A text without colours, bold and other control codes."""
    return _FORMATTING.sub("", text)


def mentions(text: str, nick: str) -> bool:
    """Whether the nick is in the text, as a word."""
    pattern = rf"(?<!{_NICK_CHARACTER}){re.escape(nick)}(?!{_NICK_CHARACTER})"
    return re.search(pattern, text, re.IGNORECASE) is not None


def fold(name: str, casemapping: str = "rfc1459") -> str:
    """A nick or the name of a room for comparisons."""
    folded = name.lower()
    if casemapping == "rfc1459":
        return folded.translate(_RFC1459)
    return folded.translate(_STRICT_RFC1459) if casemapping == "strict-rfc1459" else folded


def nicks(wanted: str) -> Iterable[str]:
    """The nick, and what to try while it is taken. The last ones fit servers with a small limit."""
    yield from (wanted, f"{wanted}_", f"{wanted}__")
    yield from (f"{wanted[:6]}_{number}" for number in range(1, 10))


def time_ms(tag: str | None) -> int | None:
    """The time of a `time` tag in milliseconds."""
    try:
        return round(datetime.datetime.fromisoformat(tag).timestamp() * 1000) if tag else None
    except (ValueError, OverflowError):
        return None


class FloodBucket:
    """Servers disconnect clients that write too fast: a few lines at once, then one per interval."""

    def __init__(self, burst: int = 4, interval_s: float = 2.0) -> None:
        self._allowance_s = (burst - 1) * interval_s
        self._interval_s = interval_s
        self._next = 0.0

    def wait_s(self, now: float) -> float:
        """How long the next line has to wait."""
        return max(0.0, self._next - self._allowance_s - now)

    def take(self, now: float) -> float:
        """Count a line. Returns how long it has to wait."""
        wait = self.wait_s(now)
        self._next = max(self._next, now) + self._interval_s
        return wait
