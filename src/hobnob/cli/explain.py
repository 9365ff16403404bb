"""`hobnob explain`: whether a session or a token may do something, and by which rule."""

from __future__ import annotations

import asyncio
import difflib
from enum import StrEnum
from typing import Annotated, Any, get_args

import orjson
import typer

from hobnob import keys, policy
from hobnob.cli import connection, output
from hobnob.cli.config import difference
from hobnob.cli.connection import Connection
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.errors import BadInput


class Action(StrEnum):
    LIST = "list"
    HISTORY = "history"
    SEARCH = "search"
    STATUS = "status"
    SEND = "send"
    SPAWN = "spawn"
    ABORT = "abort"
    CHANGE = "change"
    APPROVE = "approve"
    CONTROL = "control"
    USE = "use"


assert {a.value for a in Action} == {*get_args(policy.Verb), "use"}


@uses_gateway
def explain(
    endpoint: Endpoint,
    caller: Annotated[str, typer.Argument(metavar="FROM", help="A session key, or token:NAME, or owner.")],
    action: Annotated[Action | None, typer.Argument(help="What FROM would do.", show_choices=True)] = None,
    target: Annotated[
        str | None,
        typer.Argument(metavar="TO", help="A session key; for spawn an agent or harness, for use a tool."),
    ] = None,
    tools: Annotated[
        bool, typer.Option("--tools", help="Which tools the session FROM has, and why.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether FROM may do ACTION to TO, by which rule, and which settings would change that.

    With --tools: which tools FROM has, which it has not, and by which rule. The settings are those of the
    running gateway; with --config, those of the file, whether a gateway is running or not.
    """
    if not tools and (action is None or target is None):
        raise BadInput("Give FROM, ACTION and TO, or FROM and --tools.", fix="hobnob explain main --tools")
    answer, source = asyncio.run(_ask(endpoint, caller, None if tools else action, target))
    rules = answer.pop("rules", None)
    if as_json:
        output.json(answer | ({} if tools else {"settings": source}))
        return
    if tools:
        _print_tools(answer)
    else:
        _print_verdict(answer, rules or [])
    output.note(f"By the settings of {source}.")


async def _ask(
    endpoint: Endpoint, caller: str, action: Action | None, target: str | None
) -> tuple[dict[str, Any], str]:
    """The answer, and where its settings come from."""
    if endpoint.file is not None and endpoint.url is None:
        async with connection.open_dry_run(endpoint.file) as gateway:
            return await _answer(gateway, caller, action, target), str(endpoint.file)
    async with connection.open_connection(endpoint) as gateway:
        answer = await _answer(gateway, caller, action, target)
        if gateway.is_local:
            return answer, str(endpoint.config.source or "the defaults: there is no file")
        found = await gateway.call("config.get")
    if found.get("problem"):
        output.note("The configuration file has errors, so the gateway cannot load it: hobnob doctor")
    elif found["unapplied"]:
        output.note(difference(found))
    return answer, "the running gateway"


async def _answer(
    gateway: Connection, caller: str, action: Action | None, target: str | None
) -> dict[str, Any]:
    if action is None:
        return await _tools(gateway, caller)
    assert target is not None
    if action is Action.USE:
        return _use(await _tools(gateway, caller), target)
    source = {} if caller == "owner" else {"source": caller}  # a command connects as the owner
    return await gateway.call("policy.explain", action=action.value, target=target, **source)


async def _tools(gateway: Connection, session: str) -> dict[str, Any]:
    """The tools of a session that exists, or of a main session, which is created at its first use."""
    found = await gateway.call("tools.effective", sessionKey=session)
    if keys.parse(found["sessionKey"]).kind != "main":
        await gateway.call("sessions.resolve", key=found["sessionKey"])
    return found


def _use(found: dict[str, Any], name: str) -> dict[str, Any]:
    """The verdict on one tool, in the form of `policy.explain`."""
    rows = {row["id"]: row for group in found["groups"] for row in group["tools"]}
    row = rows.get(name)
    if row is None:
        close = difflib.get_close_matches(name, rows, 1)
        why = f"There is no tool {name!r}" + (f"; did you mean {close[0]!r}?" if close else ".")
        row = {"allowed": False, "rule": "tools.unknown", "why": why}
    rule = {"allowed": row["allowed"], "code": row["rule"], "why": row["why"]}
    answer = {"from": found["sessionKey"], "action": "use", "to": name, **rule}
    fixes = () if row["allowed"] else row.get("fix", ())
    return answer | {"fix": list(fixes), "command": row.get("command") if fixes else None, "rules": [rule]}


def _print_verdict(answer: dict[str, Any], rules: list[dict[str, Any]]) -> None:
    out = output.console()
    verdict = "[green]yes[/]" if answer["allowed"] else "[red]no[/]"
    who, to = output.escape(answer["from"]), output.escape(answer["to"])
    out.print(f"May {who} {answer['action']} {to}? {verdict}")
    for rule in rules:
        mark = output.MARKS["ok" if rule["allowed"] else "fail"]
        out.print(f"  {mark} {output.escape(rule['why'])} [dim]({rule['code']})[/]")
    if answer["command"]:
        out.print(f"To allow it:\n  {output.escape(answer['command'])}")
    if grant := answer.get("grant"):
        words = ", ".join(f"{name}: {orjson.dumps(value).decode()}" for name, value in grant.items())
        out.print(f"Or only this, as one more of the list grants:\n  {output.escape('{ ' + words + ' }')}")


def _print_tools(found: dict[str, Any]) -> None:
    out = output.console()
    sandbox = found["sandbox"]
    required = "must run in a sandbox" if sandbox["sandboxed"] else "need not run in a sandbox"
    in_sandbox = sandbox["commands"] == "sandbox"
    where = "its commands run in one" if in_sandbox else "its commands run on this machine with your rights"
    key = output.escape(found["sessionKey"])
    out.print(f"[bold]{key}[/] {required}; {where}; profile {found['profile']}.")
    if not sandbox["works"]:
        out.print(f"  {output.MARKS['warn']} no sandbox works here: {output.escape(sandbox['problem'])}")
    for group in found["groups"]:
        out.print(f"[dim]{group['id']}[/]")
        for tool in group["tools"]:
            mark = output.MARKS["ok" if tool["allowed"] else "fail"]
            out.print(f"  {mark} {tool['id']:<17} {output.escape(tool['why'])} [dim]({tool['rule']})[/]")
            if not tool["allowed"] and tool.get("command"):
                out.print(f"      → {output.escape(tool['command'])}")
