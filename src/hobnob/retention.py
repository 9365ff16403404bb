"""Retention: remove what is older than `session.maintenance` says, in small steps.

Rows are found by reads and removed a few at a time, so that no turn waits long for the writer. A run can be
interrupted between any two steps: each leaves the store consistent, and the next run goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

from hobnob import crashpoints
from hobnob.config import Config
from hobnob.config.fields import duration_ms
from hobnob.config.sessions import Maintenance
from hobnob.delivery_routes import WEBCHAT
from hobnob.effects import Effects
from hobnob.errors import StoreError
from hobnob.keys import Shape
from hobnob.records import Struct
from hobnob.store import Store, Tx, purge_entries
from hobnob.store import retention as old_rows
from hobnob.store import sessions as session_rows
from hobnob.store.costs import budgets
from hobnob.store.retention import START, Cursor, Rule
from hobnob.types import Session, now_ms

INTERVAL_S = 300.0
BATCH = 200  # rows in one transaction
_BUDGET_DAYS_MS = 32 * 24 * 3_600_000
_COPIES_KEPT_S = 2 * 24 * 3600
_PAUSE_S = 0.01  # between two transactions
_SYNTHETIC = frozenset({Shape.CRON, Shape.HOOK, Shape.SUBAGENT, Shape.ACP, Shape.OPENAI, Shape.OPENRESPONSES})
_BY_PEER = frozenset({Shape.NODE, Shape.OPENAI_USER, Shape.OPENRESPONSES_USER})
_COUNTED = {"delete": "sessionsDeleted", "archive": "sessionsArchived"}
_log = logging.getLogger(__name__)
Action = Literal["delete", "archive"]
Counts = dict[str, int]  # what was removed: how much


class Limits(Struct, frozen=True):
    """Which sessions are due: unused since, archived since, or from this one on beyond the maximum number."""

    unused_since_ms: int
    archived_since_ms: int
    beyond: tuple[int, str] | None = None

    @property
    def until_ms(self) -> int:
        """No session used after this time is due."""
        return max(self.unused_since_ms, self.archived_since_ms, self.beyond[0] if self.beyond else 0)


def action_for(session: Session, limits: Limits) -> Action | None:
    """What is due for an unused session. Pure: whether it is in use is for the caller to check.

    Main sessions and chats stay. Sessions that nobody talks in are deleted. A conversation is archived first,
    and deleted when it has been in the archive for long.
    """
    used = session.updated_at_ms
    beyond = limits.beyond is not None and (-used, session.key) >= (-limits.beyond[0], limits.beyond[1])
    due = used < limits.unused_since_ms or beyond
    if session.kind == "main":
        return None
    if session.shape in _SYNTHETIC:
        return "delete" if due else None
    if session.archived_at_ms is not None:
        return "delete" if used < limits.archived_since_ms else None
    return "archive" if due and not _is_chat(session) else None


def _is_chat(session: Session) -> bool:
    """Whether people or devices reach the session by a fixed address: it must take their next message."""
    routed = session.last_channel not in (None, WEBCHAT)
    return session.channel is not None or routed or session.shape in _BY_PEER


class Retention:
    """`on_removal` is called after rows were removed: others may remember them."""

    def __init__(
        self, store: Store, config: Config, effects: Effects, on_removal: Callable[[], None]
    ) -> None:
        self._store = store
        self._on_removal = on_removal
        self._config = config
        self._effects = effects
        self._running = asyncio.Lock()
        self._reported: Counts = {}

    @property
    def _settings(self) -> Maintenance:
        return self._config.settings.session.maintenance

    async def run(self) -> None:
        """Remove what is due every few minutes; with mode `warn`, say what that would be."""
        while True:
            try:
                await purge_entries(self._store)  # of sessions deleted just before a crash
                await asyncio.sleep(INTERVAL_S)
                await self._run_by_mode()
                await asyncio.to_thread(self._remove_copies)
                if self._config.transcripts is None:
                    await self._store.write(old_rows.forget_files)
            except StoreError as error:  # for example a full disk: retried next time
                _log.error("retention skipped: store unavailable: %s", error)
                await asyncio.sleep(INTERVAL_S)

    def _remove_copies(self) -> None:
        """Remove copies of files that were to be sent: deliveries are given up after a day."""
        folder = self._config.home / "outgoing"
        oldest = time.time() - _COPIES_KEPT_S
        try:
            copies = list(folder.iterdir()) if folder.is_dir() else []
        except OSError as error:  # it may be on a disk that several gateways share
            _log.warning("old copies of files in %s not removed: %s", folder, error)
            return
        for copy in copies:
            with suppress(OSError):  # not ours, or another gateway has just removed it
                if copy.is_file() and copy.stat().st_mtime < oldest:
                    copy.unlink()

    async def _run_by_mode(self) -> None:
        dry_run = self._settings.mode == "warn"
        counts = {name: count for name, count in (await self.clean_up(dry_run=dry_run)).items() if count}
        listed = ", ".join(f"{name}={count}" for name, count in counts.items())
        if counts and not dry_run:
            _log.info("retention removed: %s", listed)
        elif counts and counts != self._reported:
            _log.warning('retention would remove: %s; session.maintenance.mode is "warn"', listed)
        self._reported = counts

    async def clean_up(self, *, dry_run: bool = False, at_ms: int | None = None) -> Counts:
        """Remove what is due, now or at a given time, or only count it. Returns how much of what."""
        async with self._running:
            at = now_ms() if at_ms is None else at_ms
            counts: Counter[str] = Counter(dict.fromkeys(_COUNTED.values(), 0))
            for archived in (False, True):
                counts += await self._clean_sessions(at, archived=archived, dry_run=dry_run)
            found = {name: counts[name] for name in _COUNTED.values()}
            for rule, before in self._rules(at):
                found[rule.name] = await self._clean_rows(rule, before, dry_run=dry_run)
            if not dry_run:
                self._on_removal()
                day = datetime.fromtimestamp((at - _BUDGET_DAYS_MS) / 1000, UTC).date().isoformat()
                await self._store.write(budgets.forget_before, day)
                await purge_entries(self._store)
            return found

    def _rules(self, at: int) -> list[tuple[Rule, int | str]]:
        """The rules for rows, each with the time before which a row is old."""
        maintenance = self._settings
        cron = self._config.settings.cron
        usage_before = max(at - duration_ms(maintenance.usage_retention), 0)
        return [
            (old_rows.TRANSCRIPTS, at - duration_ms(maintenance.reset_archive_retention)),
            (old_rows.JOB_TRANSCRIPTS, at - duration_ms(cron.session_retention)),
            (old_rows.JOB_RUNS, at - duration_ms(cron.run_retention)),
            (old_rows.EXCHANGES, at - duration_ms(maintenance.exchange_retention)),
            (old_rows.TURNS, at - duration_ms(maintenance.turn_retention)),
            (old_rows.DELIVERIES, at - duration_ms(maintenance.delivery_retention)),
            (old_rows.APPROVALS, at - duration_ms(maintenance.approval_retention)),
            (old_rows.INBOX, at - duration_ms(maintenance.inbox_retention)),
            (old_rows.USAGE, datetime.fromtimestamp(usage_before / 1000, UTC).date().isoformat()),
            (old_rows.WAITS, at - duration_ms(maintenance.idempotency_retention)),
            (old_rows.IDEMPOTENCY_KEYS, at - duration_ms(maintenance.idempotency_retention)),
        ]

    async def _clean_rows(self, rule: Rule, before: int | str, *, dry_run: bool) -> int:
        count, after = 0, START
        while True:
            ids, at = await self._store.read(old_rows.due, rule, before, after, limit=BATCH)
            if dry_run:
                count += len(ids)
            elif ids:
                count += await self._store.write(old_rows.remove, rule, ids)
                await self._after_step()
            if at is None:
                return count
            after = at

    async def _clean_sessions(self, at: int, *, archived: bool, dry_run: bool) -> Counter[str]:
        maintenance = self._settings
        limits = Limits(
            at - duration_ms(maintenance.prune_after),
            at - duration_ms(maintenance.archive_retention),
            await self._store.read(old_rows.first_beyond, maintenance.max_entries, archived=archived),
        )
        counts: Counter[str] = Counter()
        after: Cursor | None = START
        while after is not None:
            found, after = await self._store.read(
                old_rows.idle_sessions, limits.until_ms, after, archived=archived, limit=BATCH
            )
            for session in found:
                if (due := action_for(session, limits)) is None:
                    continue
                if dry_run:
                    counts[_COUNTED[due]] += not await self._store.read_small(old_rows.in_use, session.key)
                elif await self._store.write(self._apply, session, due):
                    counts[_COUNTED[due]] += 1
                    await self._after_step()
        return counts

    def _apply(self, tx: Tx, session: Session, action: Action) -> bool:
        """Delete or archive a session unless it is in use, or was used since it was found."""
        tx.lock("session", session.key)  # before the look: a message may be about to be accepted
        current = session_rows.find(tx, session.key)
        if current is None or current.updated_at_ms != session.updated_at_ms:
            return False
        if old_rows.in_use(tx, session.key):
            return False
        if action == "delete":
            self._effects.delete_session(tx, session.key)
        else:
            session_rows.archive(tx, session.key)
        return True

    async def _after_step(self) -> None:
        """Let the writes that wait go first."""
        crashpoints.point("after-removal")
        await asyncio.sleep(_PAUSE_S)
