"""The commands of `hobnob sessions` that run or follow turns: send, spawn, tail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import orjson
import typer

from hobnob import json_input, keys
from hobnob.cli import connection, output, timeline, transcript
from hobnob.cli.connection import Connection
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.cli.output import escape
from hobnob.cli.sessions import Key, read_messages
from hobnob.cli.sessions import app as app
from hobnob.errors import BadInput, GatewayLost, GatewayUnreachable, RpcFailed
from hobnob.parameters import description
from hobnob.requests import TIMEOUT_MAX_S, SpawnRequest
from hobnob.types import new_id

SendResult = tuple[dict[str, Any], bool, int]  # the answer, whether the gateway was local, open exchanges
_MAX_MESSAGES = 200


class Runtime(StrEnum):
    SUBAGENT = "subagent"
    ACP = "acp"


@app.command()
@uses_gateway
def send(
    endpoint: Endpoint,
    key: Key,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message.")],
    timeout: Annotated[
        int, typer.Option(min=0, max=TIMEOUT_MAX_S, help="Seconds to wait for the answer; 0 does not wait.")
    ] = 60,
    as_json: AsJson = False,
) -> None:
    """Send a message into an existing session and print the answer.

    A running gateway runs the turn; without one, this command does.
    """
    act = _send(key, text, timeout)
    answer, was_local, open_exchanges = connection.run(endpoint, act, run_turns=timeout > 0)
    next_step = "`hobnob serve` starts a gateway that runs the turn."
    if not was_local:
        next_step = f"To see the answer later: hobnob sessions show {answer['sessionKey']}"
    if as_json:
        output.json(answer)
    elif answer["status"] == "accepted":
        output.note(f"Accepted. {next_step}")
    elif answer["status"] == "timeout":
        output.note(f"No answer within {output.number(timeout, 'second')}. {next_step}")
    elif answer.get("error"):
        output.console(stderr=True).print(f"[red]{escape(answer['outcome'])}:[/] {escape(answer['error'])}")
    elif answer["reply"]:
        output.console().print(output.paragraph(answer["reply"], 0))
    else:
        output.note("The agent ended its turn without an answer.")
    output.note_open_exchanges(open_exchanges)
    raise typer.Exit(0 if answer["status"] in ("ok", "accepted") else 1)


@app.command()
@uses_gateway
def spawn(
    endpoint: Endpoint,
    tasks: Annotated[list[str], typer.Argument(metavar="TASK...", help=description(SpawnRequest, "task"))],
    requester: Annotated[
        str | None, typer.Option("--from", metavar="KEY", help="The session it reports to; by default main.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The agent to use; by default that of --from.")] = None,
    runtime: Annotated[Runtime, typer.Option(help=description(SpawnRequest, "runtime"))] = Runtime.SUBAGENT,
    label: Annotated[str | None, typer.Option(help=description(SpawnRequest, "label"))] = None,
    model: Annotated[str | None, typer.Option(help=description(SpawnRequest, "model"))] = None,
    timeout: Annotated[
        int | None,
        typer.Option(min=0, max=TIMEOUT_MAX_S, help=description(SpawnRequest, "run_timeout_seconds")),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(metavar="all|any|N", help="Wait for the results of all tasks, any, or this many."),
    ] = None,
    wait_timeout: Annotated[
        int, typer.Option(min=0, max=TIMEOUT_MAX_S, help="With --wait: how many seconds at most.")
    ] = 600,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A JSON schema that each result must fit.", exists=True, dir_okay=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a sub-agent in a session of its own. It reports to the session it was started from.

    A running gateway runs it in the background; without one, this command runs it and waits. With --wait,
    several tasks run at once, report to nobody, and their results are printed.
    """
    params: dict[str, Any] = _schema(schema)
    params |= {"agentId": agent} if agent else {}
    params |= {"runtime": runtime.value} if runtime is not Runtime.SUBAGENT else {}
    params |= {"label": label} if label else {}
    params |= {"model": model} if model else {}
    params |= {"runTimeoutSeconds": timeout} if timeout is not None else {}
    if wait is not None:
        mode = int(wait) if wait.isdigit() else wait
        act = _join(requester, tasks, params, {"mode": mode, "timeoutSeconds": wait_timeout})
        _show_results(connection.run(endpoint, act, run_turns=True), as_json=as_json)
    if len(tasks) > 1:
        raise BadInput("Several tasks need --wait.", fix="Add --wait all, or name one task.")
    params["task"] = tasks[0]
    receipt = connection.run(endpoint, lambda g: _spawn(g, requester, params), run_turns=True)
    if as_json:
        output.json(receipt)
        raise typer.Exit(_exit_code(receipt))
    out = output.console()
    out.print(f"Started {escape(receipt['childSessionKey'])}")
    limit = f", {receipt['runTimeoutSeconds']} s at most" if receipt["runTimeoutSeconds"] else ""
    out.print(f"  [dim]model {escape(receipt['model'])}, thinking {escape(receipt['thinking'])}{limit}[/]")
    if "exchange" in receipt:
        out.print()
        timeline.show(out, receipt["exchange"])
    else:
        out.print(f"To see its result: hobnob exchanges show {receipt['exchangeId']}")
    raise typer.Exit(_exit_code(receipt))


@app.command()
@uses_gateway
def tail(
    endpoint: Endpoint,
    key: Key,
    limit: Annotated[
        int, typer.Option(min=1, max=_MAX_MESSAGES, help="Earlier messages to show first.")
    ] = 10,
    tools: Annotated[bool, typer.Option("--tools", help="With tool results.")] = False,
) -> None:
    """Show new messages of a session as they are added, until Ctrl-C. Needs a running gateway."""
    try:
        connection.run(endpoint, lambda gateway: _follow(gateway, key, limit, tools=tools))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _send(key: str, text: str, timeout_s: int) -> Callable[[Connection], Coroutine[Any, Any, SendResult]]:
    async def act(gateway: Connection) -> SendResult:
        sent = await gateway.call("sessions.send", key=key, message=text, idempotencyKey=new_id())
        answer = {"runId": sent["runId"], "sessionKey": sent["sessionKey"]}
        if timeout_s == 0:
            return answer | {"status": "accepted"}, gateway.is_local, 0
        try:
            waited = await _wait(gateway, sent["runId"], timeout_s)
        except asyncio.CancelledError:
            await gateway.on_interrupt(sent["sessionKey"], sent["runId"])
            raise
        if "result" not in waited:
            return answer | {"status": "timeout"}, gateway.is_local, 0
        reply = "\n".join(part["text"] for part in waited["result"]["payloads"]) or None
        answer |= {"status": waited["status"], "outcome": waited["outcome"], "reply": reply}
        answer |= {"error": waited["error"]} if "error" in waited else {}
        return answer, gateway.is_local, await connection.count_open_exchanges(gateway)

    return act


async def _wait(gateway: Connection, run_id: str, timeout_s: int) -> dict[str, Any]:
    """Wait for a turn, also while the gateway restarts: the turn continues there."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        try:
            return await gateway.call("agent.wait", runId=run_id, timeoutMs=int(left_s * 1000))
        except GatewayLost:
            if gateway.is_local:
                raise
            try:
                await gateway.reconnect(left_s)
            except GatewayLost:
                return {"runId": run_id, "status": "timeout"}


def _schema(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return {"outputSchema": json_input.loads(file.read_bytes())}
    except (OSError, ValueError) as problem:
        raise BadInput(f"{file} is not a JSON schema: {problem}.") from None


def _join(
    requester: str | None, tasks: list[str], params: dict[str, Any], wait: dict[str, Any]
) -> Callable[[Connection], Coroutine[Any, Any, dict[str, Any]]]:
    """Start a sub-agent for each task, and wait for their results."""

    async def act(gateway: Connection) -> dict[str, Any]:
        key, group_id = await _requester(gateway, requester), new_id()
        given = params | {"collect": True, "groupId": group_id}
        for task in tasks:
            await gateway.call("sessions.spawn", key=key, task=task, idempotencyKey=new_id(), **given)
        answer: dict[str, Any] = await gateway.call("sessions.wait", key=key, groupId=group_id, **wait)
        return answer

    return act


def _show_results(answer: dict[str, Any], *, as_json: bool) -> NoReturn:
    """Print the results of a group. Exits with 1 when one failed, or too few are there."""
    failed = [row for row in answer["completed"] if row["status"] == "error" or "schemaError" in row]
    if as_json:
        output.json(answer)
    else:
        out = output.console()
        for row in answer["completed"]:
            text = row.get("error") or row.get("reply", "")
            if "structured" in row:
                text = orjson.dumps(row["structured"]).decode()
            out.print(f"[bold]{escape(row['sessionKey'])}[/] {row['outcome']}")
            out.print(output.paragraph(text, 0))
            if "schemaError" in row:
                out.print(f"[red]{escape(row['schemaError'])}[/]")
        if answer["pending"]:
            output.note(f"{output.number(len(answer['pending']), 'sub-agent')} not finished yet.")
    raise typer.Exit(int(bool(failed) or answer["status"] != "ok"))


async def _requester(gateway: Connection, requester: str | None) -> str:
    """The session that spawns: the main session is created at its first use."""
    if requester is not None:
        return requester
    try:
        await gateway.call("sessions.resolve", key="main")
    except RpcFailed as problem:
        if problem.reason != "session.not_found":
            raise
        await gateway.call("sessions.create", key="main")
    return "main"


async def _spawn(gateway: Connection, requester: str | None, params: dict[str, Any]) -> dict[str, Any]:
    requester = await _requester(gateway, requester)
    receipt: dict[str, Any] = await gateway.call(
        "sessions.spawn", key=requester, idempotencyKey=new_id(), **params
    )
    if not gateway.is_local:
        return receipt
    ended = gateway.exchange_ended(receipt["exchangeId"])
    exchange = await gateway.call("exchanges.get", id=receipt["exchangeId"])
    if exchange["state"] == "open":  # else it ended before we subscribed
        await ended
        exchange = await gateway.call("exchanges.get", id=receipt["exchangeId"])
    return receipt | {"exchange": exchange}


def _exit_code(receipt: dict[str, Any]) -> int:
    return int(receipt.get("exchange", {}).get("outcome", "ok") not in ("ok", "no_output"))


async def _follow(gateway: Connection, key: str, limit: int, *, tools: bool) -> None:
    if gateway.is_local:
        raise GatewayUnreachable(
            "No gateway is running, so no messages are added.",
            fix="Start one with `hobnob serve`.",
        )
    out = output.console()
    page = await read_messages(gateway, key, limit, tools=tools)
    key, agent = page["sessionKey"], keys.agent_of(page["sessionKey"])
    out.print(f"[bold]{escape(key)}[/] [dim]new messages as they are added; Ctrl-C stops[/]\n")
    transcript.show(out, page["messages"], agent)
    last = page["messages"][-1]["seq"] if page["messages"] else 0
    async for added in gateway.follow(key, last):
        if added["messageSeq"] <= last:
            out.print("[dim]— the session was reset: new transcript —[/]")
        last = added["messageSeq"]
        if tools or added["message"]["role"] != "toolResult":
            transcript.show(out, [added["message"]], agent)
