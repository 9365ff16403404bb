"""`hobnob approvals`: allow or deny the commands that agents want to run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hobnob.approvals import asker, place, plan_line
from hobnob.cli import connection, output
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.cli.output import escape

app = typer.Typer(help="Commands that wait for approval.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="The approval; the beginning of its id is enough.")]


@app.command("list")
@uses_gateway
def list_(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """List the pending commands, oldest first."""
    found = connection.call(endpoint, "exec.approval.list")
    if as_json:
        output.json(found)
        return
    if not found["approvals"]:
        output.note("No command waits for approval.")
        return
    out = output.console()
    for approval in found["approvals"]:
        _show(out, approval)
    output.note("Decide with: hobnob approvals allow ID, or deny ID")


@app.command()
@uses_gateway
def allow(endpoint: Endpoint, id: Id, as_json: AsJson = False) -> None:
    """Allow a command to run once."""
    _decide(endpoint, id, "allow-once", as_json)


@app.command()
@uses_gateway
def deny(endpoint: Endpoint, id: Id, as_json: AsJson = False) -> None:
    """Deny a command. The agent sees the refusal."""
    _decide(endpoint, id, "deny", as_json)


def _decide(endpoint: Endpoint, id: str, decision: str, as_json: bool) -> None:
    answer = connection.call(endpoint, "exec.approval.resolve", id=id, decision=decision)
    if as_json:
        output.json(answer)
    else:
        output.note(f"{answer['id']}: {answer['decision']}.")


def _show(out: Any, approval: dict[str, Any]) -> None:
    request = approval["request"]
    where = escape(place(request)) if request.get("sandbox") else f"[red]{escape(place(request))}[/]"
    out.print(f"[bold]{approval['id']}[/]  {output.ago(approval['createdAtMs'])}")
    out.print(f"  {escape(request['command'])}")
    out.print(f"  [dim]{where}, in[/] {escape(request.get('workdir', '.'))}")
    out.print(f"  [dim]for[/] {escape(request['sessionKey'])}")
    if plan := plan_line(request):
        out.print(f"  [dim]plan[/] {escape(plan.strip())}")
    if request.get("env"):
        out.print(f"  [dim]with[/] {escape(' '.join(f'{k}={v}' for k, v in request['env'].items()))}")
    if request.get("spawnedBy"):
        out.print(f"  [dim]spawned by[/] {escape(request['spawnedBy'])}")
    if "askedBy" in request:
        out.print(f"  [dim]asked by[/] {escape(asker(request['askedBy']))}")
    out.print(f"  [dim]asked:[/] {escape(output.cut(request.get('asked', ''), 160))}\n")
