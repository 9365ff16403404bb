"""`hobnob exchanges`: list and show what agents sent to each other."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hobnob.cli import connection, output, timeline
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.cli.output import escape
from hobnob.errors import RpcFailed

app = typer.Typer(help="Exchanges: what one send or spawn between agents starts.", no_args_is_help=True)

_SHORT_ID = 13  # the timestamp part of an id, in milliseconds
_COLOURS = {"open": "yellow", "done": "green", "failed": "red", "expired": "red"}


@app.command("list")
@uses_gateway
def list_(
    endpoint: Endpoint,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of rows.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="The cursor of the previous page.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the exchanges between sessions, newest first."""
    params = {"cursor": cursor} if cursor else {}
    page = connection.call(endpoint, "exchanges.list", limit=limit, **params)
    if as_json:
        output.json(page)
        return
    if not page["exchanges"]:
        output.note("No exchanges yet. For an example, run: hobnob demo")
        return
    out = output.console()
    id_length = _unique_prefix_length([exchange["id"] for exchange in page["exchanges"]])
    for exchange in page["exchanges"]:
        _show_row(out, exchange, id_length)
    if "nextCursor" in page:
        output.note(f"There may be more: --cursor {page['nextCursor']}")


@app.command()
@uses_gateway
def show(
    endpoint: Endpoint,
    id: Annotated[str, typer.Argument(metavar="ID", help="The exchange; the beginning of its id is enough.")],
    as_json: AsJson = False,
) -> None:
    """Show an exchange step by step: messages, times, cost, and how it ended."""
    try:
        exchange = connection.call(endpoint, "exchanges.get", id=id)
    except RpcFailed as problem:
        if problem.reason == "not_found":
            problem.fix = "`hobnob exchanges list` shows the exchanges."
        raise
    if as_json:
        output.json(exchange)
        return
    out = output.console()
    out.print(f"[bold]{escape(exchange['id'])}[/]  {exchange['kind']}, {output.ago(exchange['createdAt'])}")
    out.print(f"  [dim]from[/]  {escape(exchange.get('requester') or 'a person at the gateway')}")
    out.print(f"  [dim]to[/]    {escape(exchange['target'])}\n")
    timeline.show(out, exchange)


def _show_row(out: Any, exchange: dict[str, Any], id_length: int) -> None:
    end = exchange.get("end") or exchange.get("phase") or ""
    state = f"[{_COLOURS[exchange['state']]}]{exchange['state']}[/]" + (f", {escape(end)}" if end else "")
    age = output.ago(exchange["createdAt"])
    out.print(f"[bold]{exchange['id'][:id_length]}[/]  {exchange['kind']:<5}  {age:<10}  {state}")
    width = (out.width if out.is_terminal else 200) - 2
    requester = exchange.get("requester") or "a person"
    parties = f"{requester} → {exchange['target']}"
    if len(parties) <= width:
        out.print(f"  {escape(parties)}")
    else:
        out.print(f"  {escape(requester)}\n  → {escape(exchange['target'])}")
    out.print(f"  [dim]{escape(output.cut(exchange['request'] or timeline.GONE, width))}[/]\n")


def _unique_prefix_length(ids: list[str]) -> int:
    """How many characters of these ids tell them apart."""
    length = _SHORT_ID
    while len({each[:length] for each in ids}) < len(set(ids)):
        length += 1
    return length
