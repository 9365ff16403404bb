"""`hobnob exchanges`: who told whom what."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hobnob import config as settings
from hobnob.cli import output, reach, timeline
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.cli.output import escape
from hobnob.errors import RpcFailed

app = typer.Typer(help="What agents told each other.", no_args_is_help=True)

_SHORT = 13  # of an id: down to the millisecond it was made in
_COLOURS = {"open": "yellow", "done": "green", "failed": "red", "expired": "red"}


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=200, help="Most rows.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Go on where the page before ended.")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List the exchanges between sessions, newest first."""
    further = {"cursor": cursor} if cursor else {}
    page = reach.ask(settings.load(config), "exchanges.list", limit=limit, **further)
    if as_json:
        output.json(page)
        return
    if not page["exchanges"]:
        output.note("No agent has sent to another yet. To see it happen: hobnob demo")
        return
    out = output.console()
    length = _enough([each["id"] for each in page["exchanges"]])
    for each in page["exchanges"]:
        _show(out, each, length)
    if "nextCursor" in page:
        output.note(f"There may be more: --cursor {page['nextCursor']}")


@app.command()
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="The exchange; the beginning of its id is enough.")],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show an exchange step by step: who told whom what, when, at what cost, and how it ended."""
    try:
        exchange = reach.ask(settings.load(config), "exchanges.get", id=id)
    except RpcFailed as problem:
        if problem.reason == "not_found":
            problem.fix = "`hobnob exchanges list` shows those there are."
        raise
    if as_json:
        output.json(exchange)
        return
    out = output.console()
    out.print(f"[bold]{escape(exchange['id'])}[/]  {exchange['kind']}, {output.ago(exchange['createdAt'])}")
    out.print(f"  [dim]from[/]  {escape(exchange.get('requester') or 'a person at the gateway')}")
    out.print(f"  [dim]to[/]    {escape(exchange['target'])}\n")
    timeline.show(out, exchange)


def _show(out: Any, each: dict[str, Any], length: int) -> None:
    end = each.get("end") or each.get("phase") or ""
    state = f"[{_COLOURS[each['state']]}]{each['state']}[/]" + (f", {escape(end)}" if end else "")
    out.print(
        f"[bold]{each['id'][:length]}[/]  {each['kind']:<5}  {output.ago(each['createdAt']):<10}  {state}"
    )
    room = (out.width if out.is_terminal else 200) - 2
    parties = f"{each.get('requester') or 'a person'} → {each['target']}"
    if len(parties) <= room:
        out.print(f"  {escape(parties)}")
    else:
        out.print(f"  {escape(each.get('requester') or 'a person')}\n  → {escape(each['target'])}")
    out.print(f"  [dim]{escape(output.cut(each['request'] or timeline.GONE, room))}[/]\n")


def _enough(ids: list[str]) -> int:
    """How much of an id tells it from its neighbours."""
    length = _SHORT
    while len({each[:length] for each in ids}) < len(set(ids)):
        length += 1
    return length
