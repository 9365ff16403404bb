"""The transcript feed: one session's entries for one subscriber, without loss or repeats.

WebSocket connections and event streams use it alike: catch up from a sequence number, drop repeats, notice a
reset, and check credential and access again after the settings were reloaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal

from hobnob.api import Services
from hobnob.api.auth import Principal
from hobnob.events import EntryAppended, Event, SessionChanged, SessionDeleted
from hobnob.types import Entry

_PAGE = 200
Signal = Literal["reset", "ended", "gap"]


class TranscriptFeed:
    """Subscribe to the hub before creating a feed: entries appended while it catches up are then queued.

    `session_id` and `seq` are the position: the transcript (empty while the session does not exist), and its
    last entry that was passed on.
    """

    def __init__(
        self, services: Services, principal: Principal, session_key: str, session_id: str = "", seq: int = 0
    ) -> None:
        self._services = services
        self._principal = principal
        self._settings = services.config.settings
        self._allowed = True
        self.session_key = session_key
        self.session_id = session_id
        self.seq = seq

    async def catch_up(self) -> AsyncIterator[Entry]:
        """The entries after the position, oldest first. Raises SessionNotFound or NotAllowed.

        If the session was reset meanwhile, the new transcript is passed on from its start.
        """
        queries, operator = self._services.sessions.queries, self._principal.operator
        while self.allowed:
            session_id, entries = await queries.entries_after(
                operator, self.session_key, self.seq, limit=_PAGE
            )
            if session_id != self.session_id:
                self.session_id, self.seq = session_id, 0
                continue
            for entry in entries:
                self.seq = entry.seq
                yield entry
            if len(entries) < _PAGE:
                return

    def take(self, event: Event) -> Entry | Signal | None:
        """What an event of the session means: a new entry, a signal, or nothing for this feed.

        After a "gap" the feed has to catch up: entries before this one have not been passed on.

        Entries that were passed on, and those of another transcript, are dropped; so is the reset or the
        deletion of a transcript that catching up has already passed (ids sort by time).
        """
        match event:
            case EntryAppended(_, entry):
                self.session_id = self.session_id or entry.session_id  # the session was created again
                if entry.session_id != self.session_id or entry.seq <= self.seq:
                    return None
                if not self.allowed:
                    return "ended"
                if entry.seq > self.seq + 1:  # another gateway has committed those before it
                    return "gap"
                self.seq = entry.seq
                return entry
            case SessionChanged(session, "reset") if session.session_id > self.session_id:
                self.session_id, self.seq = session.session_id, 0
                return "reset"
            case SessionDeleted(_, session_id) if session_id >= self.session_id:
                self.session_id, self.seq = "", 0
                return "ended"
        return None

    @property
    def allowed(self) -> bool:
        """Whether the credential is valid and may read the session. Checked again after each reload."""
        settings = self._services.config.settings
        if settings is not self._settings:
            self._settings = settings
            self._allowed = self._services.auth.is_current(
                self._principal
            ) and self._services.sessions.queries.may_receive_events(
                self._principal.operator, self.session_key
            )
        return self._allowed
