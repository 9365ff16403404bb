"""`hobnob costs`: tokens and money by agent, session, tree, model or day, and the budgets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from hobnob.cli import connection, output
from hobnob.cli.connection import Connection
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson


class By(StrEnum):
    agent = "agent"
    session = "session"
    tree = "tree"
    model = "model"
    day = "day"


@uses_gateway
def costs(
    endpoint: Endpoint,
    by: Annotated[
        By, typer.Option(help="What to add up; tree adds sub-agents to where all began.")
    ] = By.agent,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How many days back, in UTC.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Show what was spent, and the budgets of today."""
    first = (datetime.now(UTC).date() - timedelta(days=days - 1)).isoformat()

    async def ask(gateway: Connection) -> dict[str, Any]:
        found = await gateway.call("costs", by=by.value, startDate=first)
        return found | {"budgets": (await gateway.call("budgets.list"))["budgets"]}

    found = connection.run(endpoint, ask)
    if as_json:
        output.json(found)
        return
    out = output.console()
    if not found["rows"]:
        out.print(f"Nothing was spent since {first}.")
    else:
        out.print(_table(by, found["rows"]))
        if any(row["priceUnknown"] for row in found["rows"]):
            output.note("+ : the price of a model is unknown, so its cost is not included.")
    for budget in found["budgets"]:
        out.print(_budget_line(budget))


def _table(by: By, rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(by.value)
    for name in ("calls", "read", "written", "cost"):
        table.add_column(name, justify="right")
    for row in rows:
        cost = f"${row['costUsd']:,.4f}" + ("+" if row["priceUnknown"] else " ")
        numbers = (row["calls"], row["inputTokens"], row["outputTokens"])
        table.add_row(output.escape(row["name"] or "(deleted)"), *(f"{n:,}" for n in numbers), cost)
    return table


def _budget_line(budget: dict[str, Any]) -> str:
    measures = (
        f"{m['spent']:,} of {m['limit']:,} {name}"
        + (f", {m['reserved']:,} reserved" if m["reserved"] else "")
        for name, m in budget["measures"].items()
    )
    day = " today" if budget["day"] else ""
    return f"[dim]budget of {budget['kind']}[/] {output.escape(budget['owner'])}{day}: {'; '.join(measures)}"
