"""Background maintenance: archive finished sub-agents, expire stale exchanges, end sends without rights."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging

from hobnob import attachments, keys, policy
from hobnob.config import Config, Settings
from hobnob.effects import Effects
from hobnob.errors import Conflict, HobnobError, StoreError
from hobnob.events import Change, ExchangeChanged
from hobnob.store import Store, Tx, exchanges, purge_entries, turns
from hobnob.store import sessions as session_rows
from hobnob.store.chats import pairings, threads
from hobnob.types import Exchange, Session, now_ms
from hobnob.workspaces.service import Workspaces

INTERVAL_S = 60.0
EXCHANGE_EXPIRY_MS = 72 * 3_600_000  # without a change of an exchange; the longest turn takes 48 hours
_CLOSED_THREADS_KEPT_MS = 30 * 24 * 3_600_000
_log = logging.getLogger(__name__)


class Maintenance:
    def __init__(self, store: Store, config: Config, effects: Effects, workspaces: Workspaces) -> None:
        self._store = store
        self._config = config
        self._effects = effects
        self._workspaces = workspaces
        self._wakeup = asyncio.Event()
        self._checked: Settings | None = None  # the settings by which open sends were checked
        store.watch(self._on_changes)
        config.watchers.append(self._wakeup.set)

    async def run(self) -> None:
        """Run every minute, when a spawn has ended, and after a reload of the settings."""
        while True:
            self._wakeup.clear()
            await self.run_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S):  # not wait_for: that can swallow a cancellation
                    await self._wakeup.wait()

    async def run_once(self, at_ms: int | None = None) -> None:
        """Do what is due, now or at a given time. A failed job does not keep the others from running."""
        at = now_ms() if at_ms is None else at_ms
        for job in (
            self._end_withdrawn_sends,
            self._clean_up_spawns,
            self._expire_exchanges,
            self._close_threads,
        ):
            try:
                await job(at)
            except StoreError as error:  # for example a full disk: retried next time
                _log.error("maintenance skipped: store unavailable: %s", error)

    async def _end_withdrawn_sends(self, at: int) -> None:
        """After a reload: end the turns of sends that the settings no longer allow."""
        settings = self._config.settings
        if settings is not self._checked:
            if ended := await self._store.write(self._effects.end_withdrawn_sends):
                _log.info("turns ended because their sender may no longer send there: %d", ended)
            self._checked = settings

    async def _clean_up_spawns(self, at: int) -> None:
        minutes = self._config.settings.agents.defaults.subagents.archive_after_minutes
        due_ms, after = at - minutes * 60_000, (0, "")
        while page := await self._store.read(exchanges.unswept, due_ms, after=after):
            for exchange in page:
                await self._clean_up(exchange, archive=minutes > 0, due_ms=due_ms)
            after = (page[-1].updated_at_ms, page[-1].exchange_id)

    async def _expire_exchanges(self, at: int) -> None:
        before_ms = at - EXCHANGE_EXPIRY_MS
        for stale in await self._store.read(exchanges.stale, before_ms):
            await self._store.write(self._effects.expire_exchange, stale.exchange_id, before_ms)

    async def _close_threads(self, at: int) -> None:
        """Give back threads of chats that their sub-agents no longer use."""

        def close(tx: Tx) -> None:
            for thread in threads.open_ones(tx):
                if reason := threads.expired(thread, at):
                    threads.close(tx, thread, reason)

        if await self._store.read(threads.open_ones):
            await self._store.write(close)
        await self._store.write(threads.forget_closed, at - _CLOSED_THREADS_KEPT_MS)
        await self._store.write(pairings.forget_expired, at)

    async def _clean_up(self, exchange: Exchange, *, archive: bool, due_ms: int) -> None:
        """Remove the attachments of a finished child; then delete it, or archive it when it is due."""
        keep = exchange.cleanup == "keep"
        if exchange.files and not (keep and self._retains_attachments()):
            try:
                await self._remove_attachments(exchange.target_key, exchange.files)
            except HobnobError as error:  # not retried: it would fail again
                _log.error("attachments of a finished sub-agent not removed: %s", error)
        await self._store.write(self._retire_child, exchange.exchange_id, archive, due_ms)
        if exchange.cleanup == "delete":
            await purge_entries(self._store)

    async def _remove_attachments(self, key: str, rel_dir: str) -> None:
        """Remove the attachments of a child, in its sandbox if there still is one."""
        child = await self._store.read_small(session_rows.find, key)
        agent_id = keys.parse(key).agent
        own = self._config.settings.home_name
        if own and child and child.home not in (None, own):
            raise Conflict(f"the folder {rel_dir} of agent {agent_id} is on the gateway {child.home}.")
        if not self._config.workspace(agent_id).exists():
            return
        sandboxed = child is None or policy.is_sandboxed(self._config.settings, child)
        sandboxed = sandboxed and await self._workspaces.sandbox.ready() is None
        with attachments.explained_errors(rel_dir, "removed from"):
            job = attachments.remove_job(rel_dir)
            await self._workspaces.run_job(agent_id, policy.Confinement(sandboxed, "rw"), job)

    def _retains_attachments(self) -> bool:
        return self._config.settings.tools.sessions_spawn.attachments.retain_on_session_keep

    def _retire_child(self, tx: Tx, exchange_id: str, archive: bool, due_ms: int) -> None:
        exchange = exchanges.get(tx, exchange_id)
        tx.lock("session", exchange.target_key)  # before the look: a message may be about to be accepted
        child = session_rows.find(tx, exchange.target_key)
        done = child is None or self._is_done(tx, exchange, child, due_ms)
        if child is not None and done and exchange.cleanup == "delete":
            self._effects.delete_session(tx, child.key)
        elif child is not None and done and archive and child.archived_at_ms is None:
            session_rows.archive(tx, child.key)
        exchanges.mark_cleaned(tx, exchange_id, swept=done)

    def _is_done(self, tx: Tx, exchange: Exchange, child: Session, due_ms: int) -> bool:
        """Whether a child can be retired: not while it or its own children work."""
        if turns.open_of(tx, child.key) or exchanges.live_children(tx, child.key):
            return False
        if (thread := threads.of_session(tx, child.key)) and thread.mode == "session":
            return False
        return exchange.cleanup == "delete" or max(exchange.updated_at_ms, child.updated_at_ms) <= due_ms

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ExchangeChanged):
                exchange = change.exchange
                if exchange.kind == "spawn" and exchange.state != "open" and not exchange.swept:
                    self._wakeup.set()


async def keep_memory_low() -> None:
    """Return freed memory to the system every minute."""
    while True:
        await asyncio.sleep(INTERVAL_S)
        await asyncio.to_thread(release_free_memory)


def release_free_memory() -> None:
    """Return freed memory to the system. The C library keeps what threads have freed after a large read."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
