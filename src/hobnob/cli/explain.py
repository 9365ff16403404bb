"""`hobnob explain`: whether a session or a token may do something, and by which rule."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, get_args

import orjson
import typer

from hobnob import config as settings
from hobnob import policy
from hobnob.cli import connection, output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.config import Config
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


assert {a.value for a in Action} == set(get_args(policy.Verb))


def explain(
    caller: Annotated[str, typer.Argument(metavar="FROM", help="A session key, or token:NAME, or owner.")],
    action: Annotated[Action | None, typer.Argument(help="What FROM would do.", show_choices=True)] = None,
    target: Annotated[
        str | None, typer.Argument(metavar="TO", help="A session key; for spawn an agent or a harness.")
    ] = None,
    tools: Annotated[
        bool, typer.Option("--tools", help="Which tools the session FROM has, and why.")
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether FROM may do ACTION to TO, by which rule, and which settings would change that.

    With --tools: which tools FROM has, which it has not, and by which rule.
    """
    loaded = settings.load(config)
    if tools:
        _show_tools(loaded, caller, as_json)
        return
    if action is None or target is None:
        raise BadInput("Give FROM, ACTION and TO, or FROM and --tools.", fix="hobnob explain main --tools")
    source = {} if caller == "owner" else {"source": caller}  # a command connects as the owner
    answer = connection.call(loaded, "policy.explain", action=action.value, target=target, **source)
    rules = answer.pop("rules")
    if as_json:
        output.json(answer)
        return
    out = output.console()
    verdict = "[green]yes[/]" if answer["allowed"] else "[red]no[/]"
    out.print(f"May {output.escape(answer['from'])} {action} {output.escape(answer['to'])}? {verdict}")
    for rule in rules:
        mark = output.MARKS["ok" if rule["allowed"] else "fail"]
        out.print(f"  {mark} {output.escape(rule['why'])} [dim]({rule['code']})[/]")
    if answer["fix"]:
        out.print("To allow it, set" + (" all of these" if len(answer["fix"]) > 1 else "") + ":")
        for fix in answer["fix"]:
            out.print(f"  {_assignment(fix)}")


def _show_tools(loaded: Config, session: str, as_json: bool) -> None:
    found = connection.call(loaded, "tools.effective", sessionKey=session)
    if as_json:
        output.json(found)
        return
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
            for fix in () if tool["allowed"] else tool.get("fix", ()):
                out.print(f"      → {_assignment(fix)}")


def _assignment(fix: dict[str, Any]) -> str:
    return output.escape(f"{fix['path']} = {orjson.dumps(fix['value']).decode()}")
