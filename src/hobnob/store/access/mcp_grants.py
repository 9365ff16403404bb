"""Verbs on MCP grants: tokens with which a client acts as one session."""

from __future__ import annotations

from hobnob.errors import NotFound
from hobnob.store.engine.tx import Tx
from hobnob.types import McpGrant, now_ms

MAX_LISTED = 500
KEPT_MS = 7 * 86_400_000  # after its end, a grant is still listed
_USE_STEP_MS = 60_000  # precision of the time of the last use: not every call is a write


def create(tx: Tx, grant: McpGrant) -> McpGrant:
    """Save a grant. Grants that ended long ago are deleted."""
    tx.run("mcp_grants_expire", before_ms=now_ms() - KEPT_MS)
    tx.put("mcp_grant_insert", grant)
    return grant


def find(tx: Tx, grant_id: str) -> McpGrant | None:
    return tx.get(McpGrant, "mcp_grant_get", grant_id=grant_id)


def by_hash(tx: Tx, token_hash: str) -> McpGrant | None:
    return tx.get(McpGrant, "mcp_grant_by_hash", token_hash=token_hash)


def page(tx: Tx, credential: str | None = None) -> list[McpGrant]:
    """The newest grants that people made, newest first; with a credential, only its own."""
    return tx.all(McpGrant, "mcp_grants_list", credential=credential, limit=MAX_LISTED)


def count(tx: Tx) -> int:
    """How many grants are not revoked, those of turns too."""
    return int(tx.value("mcp_grants_count"))


def revoke(tx: Tx, grant_id: str) -> McpGrant:
    """Revoke a grant; one that was revoked before stays so. Raises NotFound."""
    tx.run("mcp_grant_revoke", grant_id=grant_id, now_ms=now_ms())
    grant = find(tx, grant_id)
    if grant is None:
        raise NotFound(f"There is no MCP grant {grant_id}.", fix="`hobnob mcp grants` shows the grants.")
    return grant


def delete(tx: Tx, grant_id: str) -> None:
    """Delete the grant of a turn that has ended."""
    tx.run("mcp_grant_delete", grant_id=grant_id)


def needs_use_mark(grant: McpGrant) -> bool:
    return grant.used_at_ms is None or now_ms() - grant.used_at_ms > _USE_STEP_MS


def mark_used(tx: Tx, grant_id: str) -> None:
    tx.run("mcp_grant_used", grant_id=grant_id, now_ms=now_ms())
