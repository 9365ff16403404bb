"""What is done from time to time: putting away finished children, giving up on dead exchanges."""

from __future__ import annotations

import asyncio
import logging

from hobnob import attachments, keys
from hobnob.aftermath import Aftermath
from hobnob.config import Config
from hobnob.errors import HobnobError
from hobnob.store import Change, ExchangeChanged, Store, Tx, exchanges, ledger
from hobnob.store import sessions as rows
from hobnob.types import Exchange, now_ms

EVERY_S = 60.0
EXPIRE_MS = 72 * 3_600_000  # without any news of an exchange; the longest turn takes 48 hours
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
        minutes = self._config.settings.agents.defaults.subagents.archive_after_minutes
        while due := await self._store.read(exchanges.unswept, at - minutes * 60_000):
            for exchange in due:
                await self._put_away(exchange, archive=minutes > 0, due=at - minutes * 60_000)
        for stale in await self._store.read(exchanges.stale, at - EXPIRE_MS):
            await self._store.write(self._aftermath.expire, stale)
        await self._store.write(ledger.forget, at - REMEMBER_MS)

    async def _put_away(self, exchange: Exchange, *, archive: bool, due: int) -> None:
        """Remove the files a finished child was given; then delete it, or archive it when it is time."""
        keep = exchange.cleanup == "keep"
        if exchange.files and not (keep and self._retained()):
            workspace = self._config.workspace(keys.parse(exchange.target_key).agent)
            try:
                await asyncio.to_thread(attachments.remove, workspace, exchange.files)
            except HobnobError as trouble:  # it is not tried again: nobody could make it succeed by waiting
                _log.error("files of a finished sub-agent stay: %s", trouble)
        over = not keep or exchange.updated_at_ms <= due
        await self._store.write(self._retire, exchange.exchange_id, archive, over)

    def _retained(self) -> bool:
        return self._config.settings.tools.sessions_spawn.attachments.retain_on_session_keep

    def _retire(self, tx: Tx, exchange_id: str, archive: bool, over: bool) -> None:
        exchange = exchanges.get(tx, exchange_id)
        child = rows.find(tx, exchange.target_key) if over else None
        if child is not None and exchange.cleanup == "delete":
            self._aftermath.delete(tx, child.key)
        elif child is not None and archive and child.archived_at_ms is None:
            rows.archive(tx, child.key)
        exchanges.settle(tx, exchange_id, swept=over)

    def _changed(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, ExchangeChanged):
                exchange = change.exchange
                if exchange.kind == "spawn" and exchange.state != "open" and not exchange.swept:
                    self._news.set()
