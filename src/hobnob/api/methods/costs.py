"""Methods on money: what was spent, and the budgets."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Annotated, Literal

from pydantic import Field

from hobnob import keys
from hobnob.api.rpc import Call, Payload, method
from hobnob.spending import BudgetAccount
from hobnob.store.costs.usage import CostRow, today

MAX_ROWS = 1_000


@method("costs", scope="operator.read")
async def costs(
    call: Call,
    by: Literal["agent", "session", "tree", "model", "day"] = "agent",
    start_date: date | None = None,
    end_date: date | None = None,
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 100,
) -> Payload:
    """Tokens and cost between two days (UTC), added up; the last 30 days by default.

    `tree` adds the costs of sub-agents to the session that everything began with. The cost of models whose
    price is unknown is not in `costUsd`: `priceUnknown` says where.
    """
    last = end_date or date.fromisoformat(today())
    first = start_date or last - timedelta(days=min(29, last.toordinal() - 1))
    queries = call.services.sessions.queries
    rows = await queries.costs(call.operator, by, str(first), str(last), limit)
    return {"by": by, "startDate": str(first), "endDate": str(last), "rows": [_row(row) for row in rows]}


@method("budgets.list", scope="operator.read")
async def budgets_list(call: Call) -> Payload:
    """The budgets of today: limits, what is spent, reserved and left; the latest used first."""
    found = await call.services.sessions.queries.budgets(today())
    mine = [
        account
        for account in found
        if call.operator.agents is None or _agent(account) in call.operator.agents
    ]
    return {"day": today(), "budgets": [account.json() for account in mine]}


def _agent(account: BudgetAccount) -> str | None:
    match account.kind:
        case "agent":
            return account.owner
        case "session":
            return keys.agent_of(account.owner)
        case "exchange":
            return None  # between two agents: for those who see all


def _row(row: CostRow) -> Payload:
    return {
        "name": row.name,
        "calls": row.calls,
        "inputTokens": row.input_tokens,
        "outputTokens": row.output_tokens,
        "totalTokens": row.total_tokens,
        "costUsd": round(row.cost_usd, 6),
        "priceUnknown": row.unpriced_tokens > 0,
    }
