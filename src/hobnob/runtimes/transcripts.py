"""The newest messages of sessions that ran lately, kept in memory as a model reads them.

Entries never change, so a turn loads only those that were added since the last turn of its session, and what
was computed for a message (its size, its form on the wire) stays with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from hobnob import briefings
from hobnob.models.history import StoredMessage
from hobnob.runtimes import Message, context
from hobnob.types import Entry, text_of

MAX_CHARS = 4_000_000  # of all kept messages
Position = tuple[str, int]  # the id of a transcript, and its last known entry


class Transcript:
    """The messages of one transcript from `first_seq` to `last_seq`, without a gap."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.first_seq = 1
        self.last_seq = 0
        self.messages: list[StoredMessage] = []
        self.tokens = 0
        self.chars = 0
        self.counted_chars = 0  # in the total of the cache
        self.summary: StoredMessage | None = None
        self.first_kept = 1  # what is before is covered by the summary

    @property
    def is_whole(self) -> bool:
        return self.first_seq <= self.first_kept

    @property
    def not_loaded(self) -> int:
        """How many messages that no summary covers are not in memory."""
        return max(self.first_seq - self.first_kept, 0)

    def for_model(self) -> list[StoredMessage]:
        """The summary, if there is one, and the messages after it."""
        return [*([self.summary] if self.summary is not None else []), *self.messages]

    def append(self, entries: list[Entry]) -> None:
        """Add the entries after `last_seq`; the first ones may begin anywhere."""
        if not entries:
            return
        if not self.last_seq:
            self.first_seq = entries[0].seq
        self.last_seq = entries[-1].seq
        self.messages += self._counted(entries)
        self._drop_covered()

    def prepend(self, entries: list[Entry]) -> None:
        """Add the entries just before `first_seq`."""
        if entries:
            self.first_seq = entries[0].seq
            self.messages[:0] = self._counted(entries)
            self._drop_covered()

    def compact(self, message: Message) -> None:
        """Use the summary of a compaction entry instead of what it covers."""
        first_kept = int(message["compaction"]["firstKeptSeq"])
        if first_kept <= self.first_kept:
            return  # an older one, found while loading backwards
        if self.summary is not None:
            self.tokens -= self.summary.tokens
        shown = {"role": "user", "content": briefings.summary(text_of(message), first_kept - 1)}
        self.summary = StoredMessage(
            shown, seq=0, turn_id=None, tokens=context.tokens(shown), chars=len(shown["content"])
        )
        self.tokens += self.summary.tokens
        self.first_kept = first_kept
        self._drop_covered()

    def _drop_covered(self) -> None:
        covered = 0
        while covered < len(self.messages) and self.messages[covered].seq < self.first_kept:
            self.tokens -= self.messages[covered].tokens
            self.chars -= self.messages[covered].chars
            covered += 1
        del self.messages[:covered]

    def trim(self, budget: int) -> None:
        """Drop the oldest messages when there are many more than a model is sent."""
        if self.tokens <= 2 * budget:
            return
        dropped = 0
        while self.tokens > budget and dropped < len(self.messages) - 1:
            message = self.messages[dropped]
            self.tokens -= message.tokens
            self.chars -= message.chars
            dropped += 1
        del self.messages[:dropped]
        self.first_seq = self.messages[0].seq

    def _counted(self, entries: Iterable[Entry]) -> list[StoredMessage]:
        added = []
        for entry in entries:
            if entry.role == "assistant" and '"compaction"' in entry.body and (found := _compaction(entry)):
                self.compact(found)
            elif (stored := _stored(entry)) is not None:
                added.append(stored)
        self.tokens += sum(message.tokens for message in added)
        self.chars += sum(message.chars for message in added)
        return added


def as_read(message: Message) -> Message:
    """A message as a model reads it: long tool results are cut, messages of others are marked."""
    if message["role"] == "toolResult":
        message = context.cut(message, context.RESULT_CHARS)
    return briefings.marked(message) if "provenance" in message else message


def _compaction(entry: Entry) -> Message | None:
    message = entry.message
    return message if isinstance(message.get("compaction"), dict) else None


def _stored(entry: Entry) -> StoredMessage | None:
    """The message as a model reads it; None for the reason of a failed turn, which is no answer."""
    message = entry.message
    if not message["content"] and "errorMessage" in message:
        return None
    message = as_read(message)
    return StoredMessage(
        message,
        seq=entry.seq,
        turn_id=entry.turn_id,
        tokens=context.tokens(message),
        chars=len(entry.body),
    )


class TranscriptCache:
    """The transcripts of the sessions that ran last, bounded by their size."""

    def __init__(self) -> None:
        self._kept: dict[str, Transcript] = {}  # session key: its transcript, the oldest use first
        self._chars = 0  # of all of them, as counted

    def position(self, session_key: str) -> Position | None:
        """The last entry that is known, so that only later ones need to be loaded."""
        kept = self._kept.get(session_key)
        return (kept.session_id, kept.last_seq) if kept is not None else None

    def update(self, session_key: str, session_id: str, entries: list[Entry]) -> Transcript:
        """The transcript with newly loaded entries: those after the known position, or the newest ones."""
        kept = self._kept.pop(session_key, None)
        follows = not entries or (kept is not None and entries[0].seq == kept.last_seq + 1)
        if kept is None or kept.session_id != session_id or not follows:
            self._chars -= kept.counted_chars if kept is not None else 0
            kept = Transcript(session_id)
        kept.append(entries)
        self._kept[session_key] = kept
        return kept

    def shrink(self, session_key: str) -> None:
        """Count a transcript after its turn; forget those used longest ago while all are too large."""
        if (kept := self._kept.get(session_key)) is not None:
            self._chars += kept.chars - kept.counted_chars
            kept.counted_chars = kept.chars
        while self._chars > MAX_CHARS and len(self._kept) > 1:
            self._chars -= self._kept.pop(next(iter(self._kept))).counted_chars
