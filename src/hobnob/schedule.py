"""What is done from time to time: putting away finished children, giving up on dead exchanges."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from hobnob import attachments, keys
from hobnob.aftermath import Aftermath
from hobnob.config import Config
from hobnob.errors import HobnobError
from hobnob.store import Change, ExchangeChanged, Store, Tx, exchanges, ledger
from hobnob.store import sessions as rows
from hobnob.types import Exchange, now_ms

EVERY_S = 60.0
EXPIRE_MS = 24 * 3_600_000  # an open exchange in which nothing happened for so long is given up
REMEMBER_MS = 7 * 24 * 3_600_000  # how long a repeated request gets its first answer
_log = logging.getLogger(__name__)


class Sweeper:
    def __init__(self, store: Store, config: Config, aftermath: Aftermath) -> None:
        self._store = store
        self._config = config
        self._aftermath = aftermath
        self._news = asyncio.Event()

    async def run(self) -> None:
        self._store.watch(self._changed)
        while True:
            self._news.clear()
            try:
                await self.sweep()
            except (HobnobError, OSError) as trouble:
                _log.error("finished sub-agents could not be put away: %s", trouble)
            try:
                await asyncio.wait_for(self._news.wait(), EVERY_S)
            except TimeoutError:
                continue

    async def sweep(self, at_ms: int | None = None) -> None:
        """Do what is due at a time, now by default."""
        at = now_ms() if at_ms is None else at_ms
        for exchange in await self._store.read(exchanges.unswept):
            await self._put_away(exchange, at)
        for stale in await self._store.read(exchanges.stale, at - EXPIRE_MS):
            await self._store.write(self._aftermath.expire, stale)
        await self._store.write(ledger.forget, at - REMEMBER_MS)

    async def _put_away(self, exchange: Exchange, at_ms: int) -> None:
        """Delete a finished child, or archive it once its time has come. Files handed over go first."""
        keep_files = self._config.settings.tools.sessions_spawn.attachments.retain_on_session_keep
        if exchange.files and not (keep_files and exchange.cleanup == "keep"):
            agent_id = keys.parse(exchange.target_key).agent
            workspace = self._config.workspace(agent_id)
            await asyncio.to_thread(attachments.remove, workspace, exchange.files)
        after = self._config.settings.agents.defaults.subagents.archive_after_minutes
        if exchange.cleanup == "keep" and after and exchange.updated_at_ms + after * 60_000 > at_ms:
            return
        await self._store.write(self._retire, exchange, bool(after))

    def _retire(self, tx: Tx, exchange: Exchange, archive: bool) -> None:
        child = rows.find(tx, exchange.target_key)
        if child is not None and exchange.cleanup == "delete":
            self._aftermath.delete(tx, child.key)
        elif child is not None and archive and child.archived_at_ms is None:
            rows.archive(tx, child.key)
        exchanges.save(tx, replace(exchanges.get(tx, exchange.exchange_id), swept=True))

    def _changed(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ExchangeChanged):
                exchange = change.exchange
                if exchange.kind == "spawn" and exchange.state != "open" and not exchange.swept:
                    self._news.set()
