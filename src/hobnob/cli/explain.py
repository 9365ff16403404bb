"""`hobnob explain`: may it, and which rule says so."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from typing import Annotated, get_args

import orjson
import typer

from hobnob import config as settings
from hobnob import keys, policy
from hobnob.cli import output, reach
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.config import Config
from hobnob.errors import BadInput
from hobnob.policy import explanation
from hobnob.store import sessions, sqlite_path
from hobnob.store.engine.sqlite import SqliteTx
from hobnob.store.engine.sqlite_file import connect, named
from hobnob.types import Session


class Action(StrEnum):
    LIST = "list"
    HISTORY = "history"
    SEARCH = "search"
    STATUS = "status"
    SEND = "send"
    SPAWN = "spawn"
    ABORT = "abort"
    CONTROL = "control"


assert {a.value for a in Action} == set(get_args(policy.Verb))


def explain(
    caller: Annotated[str, typer.Argument(metavar="FROM", help="A session key, or token:NAME, or owner.")],
    action: Annotated[Action | None, typer.Argument(help="What it wants to do.", show_choices=True)] = None,
    target: Annotated[
        str | None, typer.Argument(metavar="TO", help="A session key; for spawn an agent, or a harness.")
    ] = None,
    tools: Annotated[
        bool, typer.Option("--tools", help="Which tools the session FROM has, and why.")
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether FROM may do ACTION to TO, by which rule, and what would change the answer.

    With --tools: which tools FROM has, which it has not, and which rule says so.
    """
    loaded = settings.load(config)
    if tools:
        _tools(loaded, caller, as_json)
        return
    if action is None or target is None:
        raise BadInput("Say FROM, ACTION and TO, or FROM and --tools.", fix="hobnob explain main --tools")
    who = _caller(loaded, caller)
    agent = who.agent_id if isinstance(who, Session) else loaded.settings.default_agent.id
    if action is Action.SPAWN and ":" not in target:
        target = f"agent:{target}:{'acp:new' if target in loaded.settings.acp.harnesses else 'main'}"
    to = _session(loaded, target, loaded.settings.viewer(agent))
    verdicts = explanation.verdicts(loaded.settings, who, action.value, to)
    report = explanation.report(who, action.value, to, verdicts)
    if as_json:
        output.json(report)
        return
    out = output.console()
    word = "[green]yes[/]" if report["allowed"] else "[red]no[/]"
    out.print(f"May {output.escape(report['from'])} {action} {output.escape(report['to'])}? {word}")
    for verdict in verdicts:
        out.print(
            f"  {output.MARKS['ok' if verdict.allowed else 'fail']} {output.escape(verdict.why)}"
            f" [dim]({verdict.code})[/]"
        )
    if report["fix"]:
        out.print("To allow it, set" + (" all of these" if len(report["fix"]) > 1 else "") + ":")
        for fix in report["fix"]:
            out.print(
                f"  {output.escape(fix['path'])} = {output.escape(orjson.dumps(fix['value']).decode())}"
            )


def _tools(loaded: Config, session: str, as_json: bool) -> None:
    found = reach.ask(loaded, "tools.effective", sessionKey=session)
    if as_json:
        output.json(found)
        return
    out = output.console()
    place = found["sandbox"]
    held = "must run in a sandbox" if place["sandboxed"] else "need not run in a sandbox"
    boxed = place["commands"] == "sandbox"
    where = "its commands run in one" if boxed else "its commands run on this machine with your rights"
    out.print(f"[bold]{output.escape(found['sessionKey'])}[/] {held}; {where}; profile {found['profile']}.")
    if not place["works"]:
        out.print(f"  {output.MARKS['warn']} no sandbox works here: {output.escape(place['problem'])}")
    for group in found["groups"]:
        out.print(f"[dim]{group['id']}[/]")
        for tool in group["tools"]:
            mark = output.MARKS["ok" if tool["allowed"] else "fail"]
            out.print(f"  {mark} {tool['id']:<17} {output.escape(tool['why'])} [dim]({tool['rule']})[/]")
            for fix in () if tool["allowed"] else tool.get("fix", ()):
                value = output.escape(orjson.dumps(fix["value"]).decode())
                out.print(f"      → {output.escape(fix['path'])} = {value}")


def _caller(loaded: Config, text: str) -> policy.Caller:
    if text == "owner":
        return policy.Operator()
    if text.startswith("token:"):
        name = text.removeprefix("token:")
        tokens = {t.name: t for t in loaded.settings.gateway.auth.tokens}
        if name not in tokens:
            known = ", ".join(tokens) or "none"
            raise BadInput(f"gateway.auth.tokens has no token {name!r} (there are: {known}).")
        token = tokens[name]
        return policy.Operator(
            name, tuple(token.scopes), None if token.agents is None else tuple(token.agents)
        )
    return _session(loaded, text, loaded.settings.viewer())


def _session(loaded: Config, text: str, viewer: keys.Viewer) -> Session:
    """The session as it is kept, or as it would be when it is first used."""
    key = keys.parse(text, viewer)
    path = sqlite_path(loaded.store_url)
    kept = None
    if path.exists():
        with named(path), contextlib.closing(connect(path, read_only=True)) as connection:
            kept = sessions.find(SqliteTx(connection), str(key))
    return kept or Session.of(key)
