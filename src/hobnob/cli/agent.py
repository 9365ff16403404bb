"""`hobnob agent`: run one turn and stream its answer."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import orjson
import typer

from hobnob import config as settings
from hobnob import keys
from hobnob.cli import connection, output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.config import Config
from hobnob.types import new_id

# A step of a turn for the terminal, as (kind, data): "text", "restart", "tool".
Step = tuple[str, Any]


def agent(
    message: Annotated[str, typer.Option("--message", "-m", help="The message.")],
    agent_id: Annotated[
        str | None, typer.Option("--agent", help="Use the main session of this agent.")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", help="The session key.")] = None,
    timeout: Annotated[
        int | None, typer.Option(min=1, max=30 * 86_400, help="Time limit of the turn, in seconds.")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Send a message to an agent and stream its answer and its tool calls.

    A running gateway runs the turn; without one, this command does.
    """
    loaded = settings.load(config)
    key = session or (f"agent:{keys.agent_id(agent_id)}:main" if agent_id else "main")
    result = asyncio.run(_turn(loaded, key, message, timeout, quiet=as_json))
    if as_json:
        output.json(result)
    elif result["error"]:
        output.console(stderr=True).print(f"[red]{result['outcome']}:[/] {output.escape(result['error'])}")
    elif result["outcome"] == "no_output":
        output.console(stderr=True).print("The agent ended its turn without an answer.")
    raise typer.Exit(0 if result["outcome"] in ("ok", "no_output") else 1)


async def _turn(
    loaded: Config, key: str, message: str, timeout_s: int | None, *, quiet: bool
) -> dict[str, Any]:
    printer = _Printer(quiet=quiet)
    async with connection.open_connection(loaded, run_turns=True) as gateway:
        params: dict[str, Any] = {"message": message, "sessionKey": key, "idempotencyKey": new_id()}
        answers = gateway.answers("agent", **params, **({"timeout": timeout_s} if timeout_s else {}))
        accepted = await anext(answers)
        run_id = accepted["runId"]
        # Wait for the last answer, not for an end event: a turn may end as part of another turn.
        last = asyncio.ensure_future(anext(answers))
        try:
            async for frame in connection.items_until(last, gateway.next_event):
                for kind, data in _steps(frame, run_id):
                    printer.print(kind, data)
            payload = await last
        finally:
            if not last.done():
                last.cancel()
                await gateway.on_interrupt(accepted["sessionKey"], run_id)
        open_exchanges = await connection.count_open_exchanges(gateway)
    reply = "\n".join(p["text"] for p in payload["result"]["payloads"]) or None
    printer.finish(reply)
    output.note_open_exchanges(open_exchanges)
    outcome, error = payload["outcome"], payload.get("error")
    return {"runId": run_id, "session": key, "outcome": outcome, "reply": reply, "error": error}


def _steps(frame: dict[str, Any], run_id: str) -> list[Step]:
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


class _Printer:
    """Prints a turn: text as it is streamed, a line for each tool call."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line_open = False
        self._written = ""

    def print(self, kind: str, data: Any) -> None:
        if self._quiet:
            return
        if kind == "text":
            sys.stdout.write(data)
            sys.stdout.flush()
            self._written += data
            self._line_open = not data.endswith("\n")
        elif kind == "restart":
            self._end_line()
            self._written = ""
            output.console(stderr=True).print("[dim]… the model call is retried[/]")
        elif kind == "tool":
            self._end_line()
            self._written = ""
            name, arguments = data
            text = output.escape(orjson.dumps(arguments).decode())
            output.console(stderr=True).print(f"[cyan]→ {output.escape(name)}[/] [dim]{text}[/]")

    def finish(self, reply: str | None) -> None:
        """Print the answer unless it was streamed, and end the line."""
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
