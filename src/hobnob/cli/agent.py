"""`hobnob agent`: one turn, from the command line."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any

import orjson
import typer

from hobnob import config as settings
from hobnob import keys
from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.config import Config
from hobnob.errors import StoreInUse
from hobnob.store import sqlite_file, sqlite_path

# What happens in a turn, as (what, data): "text", "restart", "tool", "ended".
Happening = tuple[str, Any]
_GRACE_S = 2.0


def agent(
    message: Annotated[str, typer.Option("--message", "-m", help="What to say.")],
    agent_id: Annotated[str | None, typer.Option("--agent", help="The agent; its main session.")] = None,
    session: Annotated[str | None, typer.Option("--session", help="The session key.")] = None,
    timeout: Annotated[
        int | None, typer.Option(min=1, max=30 * 86_400, help="Longest turn, in seconds.")
    ] = None,
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
    if pid is None:
        happenings = _here(loaded, key, message, timeout_s)
    else:
        happenings = _there(loaded, pid, key, message, timeout_s)
    ended: dict[str, Any] = {}
    show = _Show(quiet=quiet)
    async with aclosing(happenings):
        async for what, data in happenings:
            if what == "ended":
                ended = data
            else:
                show(what, data)
    show.done(ended["reply"])
    return ended


async def _here(loaded: Config, key: str, message: str, timeout_s: int | None) -> AsyncGenerator[Happening]:
    """The turn in this process. Left early, as with Ctrl-C, it is stopped."""
    from hobnob import events
    from hobnob.gateway import open_gateway
    from hobnob.policy import Operator

    async with open_gateway(loaded, grace_s=_GRACE_S) as gateway:
        heard = gateway.hub.subscribe()
        turn = await gateway.sessions.send(Operator(), key, message, timeout_s=timeout_s)
        # Its end is waited for and not listened for: a turn may end as part of another.
        last = asyncio.ensure_future(gateway.sessions.wait(turn.turn_id))
        try:
            async for event in _until(last, heard.next):
                match event:
                    case events.Said(turn_id=turn.turn_id, text=text, thinking=False, restart=restart):
                        yield ("restart", None) if restart else ("text", text)
                    case events.ToolStarted(turn_id=turn.turn_id, name=name, arguments=arguments):
                        yield "tool", (name, arguments)
            ended = await last
            yield "ended", _ended(ended.turn_id, key, ended.outcome, ended.reply, ended.error)
        finally:
            if not last.done():
                last.cancel()
                await gateway.sessions.abort(Operator(), key, turn_id=turn.turn_id, reason="stopped by hand")
                await gateway.sessions.wait(turn.turn_id, _GRACE_S)


async def _there(
    loaded: Config, pid: int, key: str, message: str, timeout_s: int | None
) -> AsyncGenerator[Happening]:
    """The turn in the gateway that is running. Left early, it goes on there."""
    from hobnob.api.auth import owner_token
    from hobnob.api.http import whereabouts
    from hobnob.client import open_client
    from hobnob.types import new_id

    url = whereabouts(loaded.home, pid)
    if url is None:
        raise StoreInUse(str(sqlite_path(loaded.store_url)), pid)
    async with open_client(url, owner_token(loaded)) as client:
        params: dict[str, Any] = {"message": message, "sessionKey": key, "idempotencyKey": new_id()}
        answers = client.answers("agent", **params, **({"timeout": timeout_s} if timeout_s else {}))
        accepted = await anext(answers)
        last = asyncio.ensure_future(anext(answers))
        async for frame in _until(last, client.events.get):
            for happening in _from_wire(frame, accepted["runId"]):
                yield happening
        payload = await last
        reply = "\n".join(p["text"] for p in payload["result"]["payloads"]) or None
        yield "ended", _ended(payload["runId"], key, payload["outcome"], reply, payload.get("error"))


async def _until(last: asyncio.Future[Any], following: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
    """What `following` gives, one after the other, until `last` is there."""
    while True:
        event = asyncio.ensure_future(following())
        try:
            await asyncio.wait([event, last], return_when=asyncio.FIRST_COMPLETED)
            if not event.done():
                return
            if event.result() is None:  # lost the thread; the end still comes
                await asyncio.wait([last])
                return
            yield event.result()
        finally:
            event.cancel()


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
