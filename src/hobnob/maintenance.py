"""What is done from time to time: putting away finished children, giving up on dead exchanges."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from hobnob import attachments, keys, policy
from hobnob.config import Config
from hobnob.effects import Effects
from hobnob.errors import HobnobError, StoreError
from hobnob.events import Change, ExchangeChanged
from hobnob.store import Store, Tx, exchanges, ledger, turns
from hobnob.store import sessions as rows
from hobnob.types import Exchange, Session, now_ms
from hobnob.workspaces.service import Workspaces

INTERVAL_S = 60.0
EXCHANGE_EXPIRY_MS = 72 * 3_600_000  # without any news of an exchange; the longest turn takes 48 hours
IDEMPOTENCY_TTL_MS = 7 * 24 * 3_600_000  # how long a repeated request gets its first answer
_log = logging.getLogger(__name__)


class Maintenance:
    def __init__(self, store: Store, config: Config, effects: Effects, workspaces: Workspaces) -> None:
        self._store = store
        self._config = config
        self._effects = effects
        self._workspaces = workspaces
        self._news = asyncio.Event()

    async def run(self) -> None:
        self._store.watch(self._changed)
        while True:
            self._news.clear()
            await self.sweep()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL_S):  # not wait_for: that can swallow a cancellation
                    await self._news.wait()

    async def sweep(self, at_ms: int | None = None) -> None:
        """Do what is due at a time, now by default. What cannot be done does not hold up the rest."""
        at = now_ms() if at_ms is None else at_ms
        for job in (self._put_away_all, self._expire_all, self._forget):
            try:
                await job(at)
            except StoreError as trouble:  # a full disk, say: again next time
                _log.error("what is done from time to time has to wait: %s", trouble)

    async def _put_away_all(self, at: int) -> None:
        minutes = self._config.settings.agents.defaults.subagents.archive_after_minutes
        due_ms, after = at - minutes * 60_000, (0, "")
        while page := await self._store.read(exchanges.unswept, due_ms, after=after):
            for exchange in page:
                await self._put_away(exchange, archive=minutes > 0, due_ms=due_ms)
            after = (page[-1].updated_at_ms, page[-1].exchange_id)

    async def _expire_all(self, at: int) -> None:
        for stale in await self._store.read(exchanges.stale, at - EXCHANGE_EXPIRY_MS):
            await self._store.write(self._effects.expire, stale.exchange_id, at - EXCHANGE_EXPIRY_MS)

    async def _forget(self, at: int) -> None:
        await self._store.write(ledger.forget, at - IDEMPOTENCY_TTL_MS)

    async def _put_away(self, exchange: Exchange, *, archive: bool, due_ms: int) -> None:
        """Remove the files a finished child was given; then delete it, or archive it when it is time."""
        keep = exchange.cleanup == "keep"
        if exchange.files and not (keep and self._retained()):
            try:
                await self._take_back(exchange.target_key, exchange.files)
            except HobnobError as trouble:  # not tried again: waiting would not make it succeed
                _log.error("files of a finished sub-agent stay: %s", trouble)
        await self._store.write(self._retire, exchange.exchange_id, archive, due_ms)

    async def _take_back(self, key: str, rel_dir: str) -> None:
        """Remove files a child was given: where it worked, or here when there is no sandbox any more."""
        child = await self._store.read_small(rows.find, key)
        agent_id = keys.parse(key).agent
        if not self._config.workspace(agent_id).exists():
            return
        boxed = child is None or policy.is_sandboxed(self._config.settings, child)
        boxed = boxed and await self._workspaces.sandbox.ready() is None
        with attachments.explained_errors(rel_dir, "removed from"):
            job = attachments.remove_job(rel_dir)
            await self._workspaces.run_job(agent_id, policy.Confinement(boxed, "rw"), job)

    def _retained(self) -> bool:
        return self._config.settings.tools.sessions_spawn.attachments.retain_on_session_keep

    def _retire(self, tx: Tx, exchange_id: str, archive: bool, due_ms: int) -> None:
        exchange = exchanges.get(tx, exchange_id)
        child = rows.find(tx, exchange.target_key)
        over = child is None or self._is_over(tx, exchange, child, due_ms)
        if child is not None and over and exchange.cleanup == "delete":
            self._effects.delete(tx, child.key)
        elif child is not None and over and archive and child.archived_at_ms is None:
            rows.archive(tx, child.key)
        exchanges.settle(tx, exchange_id, swept=over)

    def _is_over(self, tx: Tx, exchange: Exchange, child: Session, due_ms: int) -> bool:
        """Whether nobody needs a child any more: not while it works, or while its own children do."""
        if turns.open_of(tx, child.key) or exchanges.live_children(tx, child.key):
            return False
        return exchange.cleanup == "delete" or max(exchange.updated_at_ms, child.updated_at_ms) <= due_ms

    def _changed(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ExchangeChanged):
                exchange = change.exchange
                if exchange.kind == "spawn" and exchange.state != "open" and not exchange.swept:
                    self._news.set()
