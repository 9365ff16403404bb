"""MCP grants: issue tokens with which a client acts as one session, and look them up.

Who made a grant, and whether that credential is still valid, is checked in `hobnob.api.mcp.access`. A harness
gets a grant of its own turn, which ends with the turn.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from hobnob.records import Struct
from hobnob.store import Store, turns
from hobnob.store.access import mcp_grants
from hobnob.types import McpGrant, Session, Turn, now_ms

PREFIX = "hm_"
DEFAULT_TTL_S = 3600
MAX_TTL_S = 90 * 86_400
_TURN_TTL_S = 30 * 86_400  # longer than any turn: the grant of a turn ends with it
Waiting = Callable[[], AbstractAsyncContextManager[None]]


class TurnGrant(Struct, frozen=True):
    """What a harness needs to reach the MCP server as its own session."""

    url: str
    token: str


class McpGrants:
    """The grants of a gateway. `url` is the address of its MCP endpoint, None while it does not listen."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, Waiting] = {}
        self.url: str | None = None

    async def issue(self, grant: Callable[[str], McpGrant]) -> tuple[McpGrant, str]:
        """Save the grant that is made for the hash of a new token. Returns it with the token."""
        token = PREFIX + secrets.token_urlsafe(32)
        return await self._store.write(mcp_grants.create, grant(token_hash(token))), token

    async def by_token(self, token: str) -> McpGrant | None:
        """The grant of a token, None when it never was one, has expired or was revoked."""
        if not token.startswith(PREFIX):
            return None
        grant = await self._store.read_small(mcp_grants.by_hash, token_hash(token))
        return grant if grant is not None and is_open(grant) else None

    async def find(self, grant_id: str) -> McpGrant | None:
        return await self._store.read_small(mcp_grants.find, grant_id)

    async def page(self, credential: str | None = None) -> list[McpGrant]:
        """The grants that people made, newest first; with a credential, only its own."""
        return await self._store.read(mcp_grants.page, credential)

    async def revoke(self, grant_id: str) -> McpGrant:
        """Revoke a grant. Raises NotFound."""
        return await self._store.write(mcp_grants.revoke, grant_id)

    async def used(self, grant: McpGrant) -> None:
        """Keep the time of the last use, to the minute."""
        if mcp_grants.needs_use_mark(grant):
            await self._store.write(mcp_grants.mark_used, grant.grant_id)

    # -- grants of turns

    @asynccontextmanager
    async def of_turn(
        self, session: Session, turn: Turn, waiting: Waiting
    ) -> AsyncIterator[TurnGrant | None]:
        """A grant for the harness that runs a turn, deleted at the end; None if the gateway does not listen.

        `waiting` lends the slot of the turn to other turns while a call of the harness waits.
        """
        if self.url is None:
            yield None
            return

        def make(token_hash: str) -> McpGrant:
            expires = now_ms() + _TURN_TTL_S * 1000
            key, turn_id = session.key, turn.turn_id
            return McpGrant(
                token_hash=token_hash, session_key=key, turn_id=turn_id, expires_at_ms=expires, name="harness"
            )

        grant, token = await self.issue(make)
        self._waiting[turn.turn_id] = waiting
        try:
            yield TurnGrant(self.url, token)
        finally:
            self._waiting.pop(turn.turn_id, None)
            await self._store.write(mcp_grants.delete, grant.grant_id)

    async def running_turn(self, grant: McpGrant) -> tuple[Turn, Waiting] | None:
        """The turn of a harness's grant and how it lends its slot, None when it does not run here."""
        assert grant.turn_id is not None
        waiting = self._waiting.get(grant.turn_id)
        turn = await self._store.read_small(turns.find, grant.turn_id)
        if waiting is None or turn is None or turn.status != "running":
            return None
        return turn, waiting


def token_hash(token: str) -> str:
    """Tokens have 256 random bits, so that a plain hash of one cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_open(grant: McpGrant) -> bool:
    """Whether a grant has neither expired nor been revoked."""
    return grant.revoked_at_ms is None and now_ms() < grant.expires_at_ms
