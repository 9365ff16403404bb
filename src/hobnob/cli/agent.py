"""`hobnob agent`: run one turn and stream its answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import orjson
import typer

from hobnob import keys
from hobnob.cli import connection, output
from hobnob.cli.connection import Connection
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.errors import BadInput, GatewayLost, RpcFailed, SessionNotFound
from hobnob.types import new_id

# A step of a turn for the terminal, as (kind, data): "text", "restart", "tool", "refusal".
Step = tuple[str, Any]
Act = Callable[[Connection], Coroutine[Any, Any, dict[str, Any]]]
_REFUSAL_WIDTH = 500
_WAIT_MS = 24 * 3600 * 1000


@uses_gateway
def agent(
    endpoint: Endpoint,
    message: Annotated[str | None, typer.Option("--message", "-m", help="The message.")] = None,
    agent_id: Annotated[
        str | None, typer.Option("--agent", help="Use the main session of this agent.")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", help="The session key.")] = None,
    timeout: Annotated[
        int | None, typer.Option(min=1, max=30 * 86_400, help="Time limit of the turn, in seconds.")
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option("--wait", metavar="RUN", help="Wait again for the answer to an earlier message."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a message to an agent and stream its answer and its tool calls.

    A running gateway runs the turn; without one, this command does. If the gateway goes away, the command
    waits for it to come back: the turn continues there.
    """
    if (message is None) == (wait is None):
        raise BadInput("Give a message, or a run to wait for.", fix='hobnob agent -m "what is 6 * 7?"')
    key = session or (f"agent:{keys.agent_id(agent_id)}:main" if agent_id else "main")
    params: dict[str, Any] = {"message": message, "sessionKey": key, "idempotencyKey": new_id()}
    params |= {"timeout": timeout} if timeout else {}
    act = _turn(params, quiet=as_json) if wait is None else _wait(wait, quiet=as_json)
    result = connection.run(endpoint, act, run_turns=True)
    if as_json:
        output.json(result)
    elif result["error"]:
        output.console(stderr=True).print(f"[red]{result['outcome']}:[/] {output.escape(result['error'])}")
    elif result["outcome"] == "running":
        output.note(f"It is still running. To wait on: {_wait_command(result['runId'])}")
    elif result["outcome"] == "no_output":
        output.console(stderr=True).print("The agent ended its turn without an answer.")
    raise typer.Exit(0 if result["outcome"] in ("ok", "no_output") else 1)


def _turn(params: dict[str, Any], *, quiet: bool) -> Act:
    """Run a turn. Sent again after a lost connection, with the same idempotency key, it is the same turn."""

    async def act(gateway: Connection) -> dict[str, Any]:
        printer = _Printer(quiet=quiet)
        if not quiet:
            await _note_new_session(gateway, params["sessionKey"])
        while True:
            try:
                payload = await _attempt(gateway, params, printer)
                break
            except GatewayLost:
                await _reconnect(gateway, params["idempotencyKey"])
        open_exchanges = await connection.count_open_exchanges(gateway)
        result = _result(payload, params["idempotencyKey"], params["sessionKey"])
        printer.finish(result["reply"])
        output.note_open_exchanges(open_exchanges)
        return result

    return act


async def _note_new_session(gateway: Connection, key: str) -> None:
    """Say that a message starts a session: its key may be a typing error. Main sessions are expected."""
    if keys.parse(key).kind == "main":
        return
    try:
        await gateway.call("sessions.status", key=key)
    except RpcFailed as refused:
        if refused.reason == SessionNotFound.code:
            output.note(f"This starts a new session: {key}")


async def _attempt(gateway: Connection, params: dict[str, Any], printer: _Printer) -> dict[str, Any]:
    """Send the message, print what happens, and return the last answer. Raises GatewayLost."""
    answers = gateway.answers("agent", **params)
    accepted = await anext(answers)
    if accepted.get("status") != "accepted":
        return accepted  # the turn ended while we were away
    printer.note_reason(accepted)
    # Wait for the last answer, not for an end event: a turn may end as part of another turn.
    last = asyncio.ensure_future(anext(answers))
    try:
        async for frame in connection.items_until(last, gateway.next_event):
            for kind, data in _steps(frame, accepted["runId"]):
                printer.print(kind, data)
        return await last
    finally:
        if not last.done():
            last.cancel()
            await gateway.on_interrupt(accepted["sessionKey"], accepted["runId"])


def _wait(run_id: str, *, quiet: bool) -> Act:
    """Wait for a turn that was sent before."""

    async def act(gateway: Connection) -> dict[str, Any]:
        printer = _Printer(quiet=quiet)
        while True:
            try:
                payload = await gateway.call("agent.wait", runId=run_id, timeoutMs=0)
                if "outcome" not in payload:
                    printer.note_reason(payload)
                    payload = await gateway.call("agent.wait", runId=run_id, timeoutMs=_WAIT_MS)
                break
            except GatewayLost:
                await _reconnect(gateway, run_id)
        result = _result(payload, run_id, payload.get("sessionKey"))
        if result["reply"] and not quiet:
            sys.stdout.write(f"{result['reply']}\n")
        return result

    return act


async def _reconnect(gateway: Connection, run_id: str) -> None:
    """Wait for the gateway. The error after too long a time says how to wait again."""
    if gateway.is_local:
        raise GatewayLost
    try:
        await gateway.reconnect()
    except GatewayLost as lost:
        fix = f"The turn continues when a gateway runs. To wait for its answer: {_wait_command(run_id)}"
        raise GatewayLost(lost.message, fix=fix) from None


def _wait_command(run_id: str) -> str:
    return f"hobnob agent --wait {run_id}"


def _result(payload: dict[str, Any], run_id: str, key: str | None) -> dict[str, Any]:
    reply = "\n".join(p["text"] for p in payload.get("result", {}).get("payloads", ())) or None
    outcome, error = payload.get("outcome", "running"), payload.get("error")
    return {
        "runId": payload.get("runId", run_id),
        "session": key,
        "outcome": outcome,
        "reply": reply,
        "error": error,
    }


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
        case "tool" if data["phase"] == "result" and data["isError"]:
            return [("refusal", data.get("result", {}).get("content", ()))]
    return []


def _print_refusal(text: str) -> None:
    """Print why a tool call was refused or failed: the sentence, the rule and what to change."""
    try:
        found = orjson.loads(text)
        reason, rule, fix = str(found["error"]), found.get("code"), found.get("fix")
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        reason, rule, fix = text, None, None
    out = output.console(stderr=True)
    named = f" [dim]({output.escape(output.clean(str(rule)))})[/]" if rule else ""
    out.print(f"  {output.MARKS['fail']} {output.escape(output.cut(reason, _REFUSAL_WIDTH))}{named}")
    if fix:
        out.print(f"    → {output.escape(output.clean(str(fix)))}")


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

        elif kind == "refusal":
            _print_refusal("".join(part.get("text", "") for part in data))

    def note_reason(self, answer: dict[str, Any]) -> None:
        """Print why the turn does not begin, if the gateway says so."""
        if not self._quiet and "reason" in answer:
            output.note(answer["reason"])

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
