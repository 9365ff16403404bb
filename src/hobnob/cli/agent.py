"""`hobnob agent`: one turn, from the command line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
import typer

from hobnob import config as settings
from hobnob import keys
from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.config import Config
from hobnob.store import sqlite_file, sqlite_path

# What happens in a turn, as (what, data): "accepted", "text", "restart", "tool", "ended".
Happening = tuple[str, Any]


def agent(
    message: Annotated[str, typer.Option("--message", "-m", help="What to say.")],
    agent_id: Annotated[str | None, typer.Option("--agent", help="The agent; its main session.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="The session key.")] = None,
    timeout: Annotated[int | None, typer.Option(help="Longest turn, in seconds.")] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say something to an agent and see its answer, and the tools it calls, as they come.

    A running gateway does the work; without one, it is done here.
    """
    loaded = settings.load(config)
    key = session or (f"agent:{keys.agent_id(agent_id)}:main" if agent_id else "main")
    ended = asyncio.run(_turn(loaded, key, message, timeout, quiet=as_json))
    if as_json:
        output.json(ended)
    elif ended["error"]:
        output.console(stderr=True).print(f"[red]{ended['outcome']}:[/] {output.escape(ended['error'])}")
    elif ended["outcome"] == "no_output":
        output.console(stderr=True).print("The agent ended its turn without an answer.")
    raise typer.Exit(0 if ended["outcome"] in ("ok", "no_output") else 1)


async def _turn(
    loaded: Config, key: str, message: str, timeout_s: int | None, *, quiet: bool
) -> dict[str, Any]:
    pid = sqlite_file.holder(sqlite_path(loaded.store_url))
    way = _here if pid is None else _there
    happenings = way(loaded, key, message, timeout_s)
    ended: dict[str, Any] = {}
    show = _Show(quiet=quiet)
    async for what, data in happenings:
        if what == "ended":
            ended = data
        else:
            show(what, data)
    show.done(ended.get("reply"))
    return ended


async def _here(loaded: Config, key: str, message: str, timeout_s: int | None) -> AsyncIterator[Happening]:
    from hobnob import events
    from hobnob.gateway import open_gateway
    from hobnob.policy import Operator

    async with open_gateway(loaded) as gateway:
        heard = gateway.hub.subscribe()
        turn = await gateway.sessions.send(Operator(), key, message, timeout_s=timeout_s)
        yield "accepted", turn.turn_id
        async for event in heard:
            match event:
                case events.Said(turn_id=turn.turn_id, text=text, thinking=False, restart=restart):
                    yield ("restart", None) if restart else ("text", text)
                case events.ToolStarted(turn_id=turn.turn_id, name=name, arguments=arguments):
                    yield "tool", (name, arguments)
                case events.TurnEnded(turn=ended) if ended.turn_id == turn.turn_id:
                    yield "ended", _ended(ended.turn_id, key, ended.outcome, ended.reply, ended.error)
                    return


async def _there(loaded: Config, key: str, message: str, timeout_s: int | None) -> AsyncIterator[Happening]:
    from hobnob.api.auth import owner_token
    from hobnob.client import open_client
    from hobnob.types import new_id

    gateway = loaded.settings.gateway
    async with open_client(f"ws://{gateway.bind}:{gateway.port}", owner_token(loaded)) as client:
        params: dict[str, Any] = {"message": message, "sessionKey": key, "idempotencyKey": new_id()}
        answers = client.answers("agent", **params, **({"timeout": timeout_s} if timeout_s else {}))
        accepted = await anext(answers)
        yield "accepted", accepted["runId"]
        last = asyncio.ensure_future(anext(answers))
        while not last.done() or not client.events.empty():
            event = asyncio.ensure_future(client.events.get())
            await asyncio.wait([event, last], return_when=asyncio.FIRST_COMPLETED)
            if not event.done():
                event.cancel()
                break
            for happening in _from_wire(event.result(), accepted["runId"]):
                yield happening
        payload = await last
        texts = [p["text"] for p in payload["result"]["payloads"]]
        reply = "\n".join(texts) or None
        yield "ended", _ended(payload["runId"], key, payload["outcome"], reply, payload.get("error"))


def _from_wire(frame: dict[str, Any], run_id: str) -> list[Happening]:
    payload = frame.get("payload") or {}
    if frame.get("event") != "agent" or payload.get("runId") != run_id:
        return []
    data = payload["data"]
    match payload["stream"]:
        case "assistant":
            return [("restart", None) if data.get("restart") else ("text", data["delta"])]
        case "tool":
            return [("tool", (data["name"], data["args"]))]
    return []


def _ended(run_id: str, key: str, outcome: Any, reply: str | None, error: str | None) -> dict[str, Any]:
    return {"runId": run_id, "session": key, "outcome": outcome, "reply": reply, "error": error}


class _Show:
    """The turn on the terminal: text as it is written, a line for each tool."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line_open = False
        self._written = ""

    def __call__(self, what: str, data: Any) -> None:
        if self._quiet:
            return
        if what == "text":
            sys.stdout.write(data)
            sys.stdout.flush()
            self._written += data
            self._line_open = not data.endswith("\n")
        elif what == "restart":
            self._end_line()
            self._written = ""
            output.console(stderr=True).print("[dim]… the model is asked again[/]")
        elif what == "tool":
            self._end_line()
            self._written = ""
            name, arguments = data
            shown = output.escape(orjson.dumps(arguments).decode())
            output.console(stderr=True).print(f"[cyan]→ {output.escape(name)}[/] [dim]{shown}[/]")

    def done(self, reply: str | None) -> None:
        """The answer, when it did not come in pieces, and the end of its line."""
        if not self._quiet and reply and self._written.strip() != reply.strip():
            self._end_line()
            sys.stdout.write(reply)
            self._line_open = True
        self._end_line()

    def _end_line(self) -> None:
        if self._line_open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._line_open = False
