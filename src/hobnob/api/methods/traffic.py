"""Who talks to whom, for whoever watches."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hobnob.api.rpc import Call, Payload, method
from hobnob.sessions import exchange_log
from hobnob.store import Tx
from hobnob.types import now_ms


@method("exchanges.timeline", scope="operator.read")
async def exchanges_timeline(
    call: Call, limit: Annotated[int, Field(ge=1, le=exchange_log.MOST)] = 50, cursor: str | None = None
) -> Payload:
    """Exchanges, newest first, each with its steps, where they stand in the transcripts, and what it cost."""
    settings = call.services.config.settings
    return await call.services.store.read(
        exchange_log.timeline, settings, call.operator, limit=limit, cursor=cursor
    )


@method("exchanges.traffic", scope="operator.read")
async def exchanges_traffic(call: Call, minutes: Annotated[int, Field(ge=1, le=7 * 24 * 60)] = 60) -> Payload:
    """How many messages went between which sessions lately, at what cost, and which waits were refused."""
    settings, operator = call.services.config.settings, call.operator
    since = now_ms() - minutes * 60_000
    newest = list(call.services.sessions.refusals.newest)

    def answer(tx: Tx) -> Payload:
        return {
            "since": since,
            "maxHops": settings.session.agent_to_agent.max_hops,
            "edges": exchange_log.edges(tx, settings, operator, since),
            "refusals": exchange_log.refused(tx, settings, operator, newest, since),
        }

    return await call.services.store.read(answer)
