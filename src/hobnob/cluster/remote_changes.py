"""What other gateways have committed: told by ids, read again from the store, passed to the store's watchers.

Reading again also puts things right that overtook each other: what is passed on is the state of now.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from hobnob.cluster import Cluster
from hobnob.events import (
    ApprovalChanged,
    Change,
    DeliveryChanged,
    EntryAppended,
    ExchangeChanged,
    InboxChanged,
    JobChanged,
    PairingChanged,
    SessionChanged,
    SessionDeleted,
    TurnChanged,
)
from hobnob.records import asdict
from hobnob.store import Tx, approvals, deliveries, entries, exchanges, jobs, sessions, turns
from hobnob.store.chats import inbox, pairings
from hobnob.store.engine.postgres import PostgresStore
from hobnob.types import Job, Session, Turn

KIND = "changes"
_REMEMBERED = 2_000  # turns and transcripts whose last state that was passed on is known
Reference = list[Any]


class RemoteChanges:
    """Tells other gateways what this one commits, and passes on what they tell.

    `flush` sends the live events of a session that wait: a change must not overtake them.
    """

    def __init__(self, store: PostgresStore, cluster: Cluster, flush: Callable[[str], None]) -> None:
        self._store = store
        self._flush = flush
        self._cluster = cluster
        self._passed: OrderedDict[str, tuple[Any, ...]] = OrderedDict()
        self._transcripts: dict[str, str] = {}  # of the sessions that are followed here: key and transcript
        store.watch(self._on_own, own_only=True)
        cluster.on(KIND, self._on_others)

    def _on_own(self, changes: list[Change]) -> None:
        for change in changes:
            self._flush(change.session_key)
            self._is_news(change)
        if self._cluster.others:
            self._cluster.tell(KIND, [reference(change) for change in changes])

    async def _on_others(self, references: list[Reference]) -> None:
        wanted = [each for each in references if self._wants(each)]
        if not wanted:
            return
        found = await self._store.read(read, wanted)
        if fresh := [change for change in found if self._is_news(change)]:
            self._store.publish(fresh)

    async def recheck(self, turn_ids: Collection[str], session_keys: Collection[str]) -> Collection[str]:
        """Look for what was missed: which of these turns have ended; new entries and resets of sessions.

        Returns the turns that are gone.
        """
        if not turn_ids and not session_keys:
            return ()
        before = self._transcripts
        known, found, last = await self._store.read(_state, turn_ids, session_keys)
        ended: list[Change] = [TurnChanged(turn) for turn in known.values() if turn.status == "ended"]
        if self._transcripts is not before:  # one was reset meanwhile, perhaps after it was read
            found = []
        reset = {s.key for s in found if before.get(s.key, s.session_id) != s.session_id}
        resets = [SessionChanged(session, "reset") for session in found if session.key in reset]
        if found:
            self._transcripts = {session.key: session.session_id for session in found}
        news = [each for each in [*ended, *last] if self._is_news(each) or each.session_key in reset]
        if resets or news:
            self._store.publish([*resets, *news])
        return set(turn_ids) - known.keys()

    def _wants(self, reference: Reference) -> bool:
        match reference:
            case ["entry", key, turn_id, *_] | ["turn", key, turn_id]:
                return self._wanted(key, turn_id)
            case ["session", key, _]:
                return self._wanted(key, None)
            case _:
                return True

    def _wanted(self, session_key: str, turn_id: str | None) -> bool:
        return any(interest(session_key, turn_id) for interest in self._cluster.interests)

    def _is_news(self, change: Change) -> bool:
        """Whether a turn or a transcript is in another state than when it was last passed on."""
        key: str
        state: tuple[Any, ...]
        match change:
            case TurnChanged(turn):
                key, state = turn.turn_id, (turn.status, turn.claim, turn.abort_reason)
            case SessionChanged(session, _):
                if self._transcripts.get(session.key, session.session_id) != session.session_id:
                    self._transcripts = self._transcripts | {session.key: session.session_id}
                return True
            case EntryAppended(_, entry):
                key, state = entry.session_id, (entry.seq,)
                if self._passed.get(key, (0,)) > state:
                    return True  # a late one: whoever needs it can tell
            case _:
                return True
        if self._passed.get(key) == state:
            return False
        self._passed[key] = state
        self._passed.move_to_end(key)
        if len(self._passed) > _REMEMBERED:
            self._passed.popitem(last=False)
        return True


def reference(change: Change) -> Reference:
    """A change by its ids."""
    match change:
        case EntryAppended(session_key, entry):
            return ["entry", session_key, entry.turn_id, entry.session_id, entry.seq]
        case TurnChanged(turn):
            return ["turn", turn.session_key, turn.turn_id]
        case SessionChanged(session, reason):
            return ["session", session.key, reason]
        case SessionDeleted(session_key, session_id):
            return ["deleted", session_key, session_id]
        case ExchangeChanged(exchange):
            return ["exchange", exchange.exchange_id]
        case DeliveryChanged(delivery):
            return ["delivery", delivery.delivery_id]
        case ApprovalChanged(approval):
            return ["approval", approval.approval_id]
        case InboxChanged(event):
            return ["inbox", event.channel, event.account_id, event.event_id]
        case PairingChanged(pairing):
            return ["pairing", pairing.channel, pairing.account_id, pairing.sender_id]
        case JobChanged(job, "removed", _):
            return ["job_removed", asdict(job)]
        case JobChanged(job, action, run):
            return ["job", job.job_id, action, run.run_id if run else None]


def read(tx: Tx, references: Iterable[Reference]) -> list[Change]:
    """The changes as they are in the store now, in order. What is gone is left out."""
    references = list(references)
    known = turns.by_ids(tx, [each[2] for each in references if each[0] == "turn"])
    return [change for each in _last_of_each(references) for change in _read(tx, each, known)]


def _state(
    tx: Tx, turn_ids: Collection[str], session_keys: Collection[str]
) -> tuple[dict[str, Turn], list[Session], list[EntryAppended]]:
    """The turns by id, the sessions, and the last entry of each session."""
    found = list(sessions.by_keys(tx, session_keys).values())
    last = [
        EntryAppended(session.key, entry)
        for session in found
        for entry in entries.history(tx, session.session_id, limit=1)
    ]
    return turns.by_ids(tx, turn_ids), found, last


def _last_of_each(references: list[Reference]) -> list[Reference]:
    """Without those that are repeated later: both would be read in the same state."""
    last = {repr(each): number for number, each in enumerate(references)}
    return [each for number, each in enumerate(references) if last[repr(each)] == number]


def _read(tx: Tx, reference: Reference, known: dict[str, Turn]) -> Iterator[Change]:
    match reference:
        case ["entry", session_key, _, session_id, seq]:
            for entry in entries.after(tx, session_id, seq - 1, limit=1):
                yield EntryAppended(session_key, entry)
        case ["turn", _, turn_id] if turn_id in known:
            yield TurnChanged(known[turn_id])
        case ["session", key, reason]:
            if (session := sessions.find(tx, key)) is not None:
                yield SessionChanged(session, reason)
        case ["deleted", session_key, session_id]:
            yield SessionDeleted(session_key, session_id)
        case ["exchange", exchange_id]:
            if (exchange := exchanges.find(tx, exchange_id)) is not None:
                yield ExchangeChanged(exchange)
        case ["delivery", delivery_id]:
            if (delivery := deliveries.find(tx, delivery_id)) is not None:
                yield DeliveryChanged(delivery)
        case ["approval", approval_id]:
            if (approval := approvals.find(tx, approval_id)) is not None:
                yield ApprovalChanged(approval)
        case ["inbox", channel, account_id, event_id]:
            if (event := inbox.find(tx, channel, account_id, event_id)) is not None:
                yield InboxChanged(event)
        case ["pairing", channel, account_id, sender_id]:
            if (pairing := pairings.find(tx, channel, account_id, sender_id)) is not None:
                yield PairingChanged(pairing)
        case ["job_removed", fields]:
            yield JobChanged(Job(**fields), "removed")
        case ["job", job_id, action, run_id]:
            job = jobs.find(tx, job_id)
            run = jobs.find_run(tx, run_id) if run_id else None
            if job is not None:
                yield JobChanged(job, action, run)
