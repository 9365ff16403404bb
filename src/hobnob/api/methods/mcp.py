"""Methods on MCP grants: tokens with which an MCP client acts as one session."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hobnob.api.rpc import Call, Payload, method
from hobnob.mcp_grants import DEFAULT_TTL_S, MAX_TTL_S
from hobnob.types import McpGrant


@method("mcp.grants.create", scope="operator.write")
async def grants_create(
    call: Call,
    session_key: str,
    ttl_seconds: Annotated[int, Field(ge=1, le=MAX_TTL_S)] = DEFAULT_TTL_S,
    name: str = "",
    read_only: bool = False,
) -> Payload:
    """Make a token with which an MCP client acts as a session, with at most the caller's rights.

    The token is shown only in this answer. The grant ends at its time, when it is revoked, and when the
    secret of the caller is changed or removed.
    """
    access = call.services.mcp.access
    grant, token = await access.create(
        call.operator, session_key, ttl_s=ttl_seconds, name=name, read_only=read_only
    )
    return {"grant": _row(call, grant), "token": token, "url": access.grants.url}


@method("mcp.grants.list", scope="operator.read")
async def grants_list(call: Call) -> Payload:
    """The MCP grants: all for an owner, their own for others. Ended ones are listed for a week."""
    found = await call.services.mcp.access.page(call.operator)
    return {"grants": [_row(call, grant) for grant in found]}


@method("mcp.grants.revoke", scope="operator.write")
async def grants_revoke(call: Call, grant_id: str) -> Payload:
    """Revoke an MCP grant and end its open requests."""
    grant = await call.services.mcp.access.revoke(call.operator, grant_id)
    closed = call.services.mcp.on_revoked(grant_id)
    return {"grant": _row(call, grant), "closedRequests": closed}


def _row(call: Call, grant: McpGrant) -> Payload:
    row: Payload = {
        "grantId": grant.grant_id,
        "sessionKey": grant.session_key,
        "name": grant.name or None,
        "credential": grant.credential,
        "scopes": grant.scopes.split(),
        "state": call.services.mcp.access.state(grant),
        "createdAtMs": grant.created_at_ms,
        "expiresAtMs": grant.expires_at_ms,
        "revokedAtMs": grant.revoked_at_ms,
        "lastUsedAtMs": grant.used_at_ms,
    }
    return {name: value for name, value in row.items() if value is not None}
