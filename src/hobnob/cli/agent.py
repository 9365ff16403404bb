"""`hobnob agent`: one turn, from the command line."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import orjson
import typer

from hobnob import config as settings
from hobnob import keys
from hobnob.cli import output, reach
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.config import Config
from hobnob.types import new_id

# What happens in a turn, as (what, data): "text", "restart", "tool".
Happening = tuple[str, Any]


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
    show = _Show(quiet=quiet)
    async with reach.open_reach(loaded, working=True) as reached:
        params: dict[str, Any] = {"message": message, "sessionKey": key, "idempotencyKey": new_id()}
        answers = reached.answers("agent", **params, **({"timeout": timeout_s} if timeout_s else {}))
        accepted = await anext(answers)
        run_id = accepted["runId"]
        # The end is waited for and not listened for: a turn may end as part of another.
        last = asyncio.ensure_future(anext(answers))
        try:
            async for frame in reach.until(last, reached.event):
                for what, data in _from_wire(frame, run_id):
                    show(what, data)
            payload = await last
        finally:
            if not last.done():
                last.cancel()
                await reached.stopped_by_hand(accepted["sessionKey"], run_id)
        left = await reach.left_over(reached)
    reply = "\n".join(p["text"] for p in payload["result"]["payloads"]) or None
    show.done(reply)
    output.left_over(left)
    outcome, error = payload["outcome"], payload.get("error")
    return {"runId": run_id, "session": key, "outcome": outcome, "reply": reply, "error": error}


def _from_wire(frame: dict[str, Any], run_id: str) -> list[Happening]:
    payload = frame.get("payload") or {}
    if frame.get("event") != "agent" or payload.get("runId") != run_id:
        return []
    data = payload["data"]
    match payload["stream"]:
        case "assistant":
            return [("restart", None) if data.get("restart") else ("text", data["delta"])]
        case "tool" if data["phase"] == "start":
            return [("tool", (data["name"], data["args"]))]
    return []


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
