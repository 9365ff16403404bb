"""The commands of `hobnob sessions` that have agents work: send, spawn, tail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hobnob import config as settings
from hobnob import keys
from hobnob.cli import output, reach, timeline, transcript
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.cli.output import escape
from hobnob.cli.sessions import Key, read
from hobnob.cli.sessions import app as app
from hobnob.errors import GatewayUnreachable, RpcFailed
from hobnob.types import new_id

if TYPE_CHECKING:
    from hobnob.cli.gateways import Here, There

Sent = tuple[dict[str, Any], bool, int]  # the answer, whether we worked it out here, what is left to do
_LONGEST_S = 30 * 86_400
_NEWEST = 200


class Runtime(StrEnum):
    SUBAGENT = "subagent"
    ACP = "acp"


@app.command()
def send(
    key: Key,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.")],
    timeout: Annotated[
        int, typer.Option(min=0, max=_LONGEST_S, help="Seconds to wait for the answer; 0 does not wait.")
    ] = 60,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say something in a session that is there, and print the answer.

    A running gateway does the work; without one, it is done here.
    """
    sending = _send(key, text, timeout)
    answer, here, left = reach.run(settings.load(config), sending, working=timeout > 0)
    later = "`hobnob serve` runs a gateway that goes on with it."
    if not here:
        later = f"To see the answer later: hobnob sessions show {answer['sessionKey']}"
    if as_json:
        output.json(answer)
    elif answer["status"] == "accepted":
        output.note(f"Accepted. {later}")
    elif answer["status"] == "timeout":
        output.note(f"No answer within {output.number(timeout, 'second')}. {later}")
    elif answer.get("error"):
        output.console(stderr=True).print(f"[red]{escape(answer['outcome'])}:[/] {escape(answer['error'])}")
    elif answer["reply"]:
        output.console().print(output.paragraph(answer["reply"], 0))
    else:
        output.note("The agent ended its turn without an answer.")
    output.left_over(left)
    raise typer.Exit(0 if answer["status"] in ("ok", "accepted") else 1)


@app.command()
def spawn(
    task: Annotated[str, typer.Argument(metavar="TASK", help="What is to be done, complete.")],
    requester: Annotated[
        str | None, typer.Option("--from", metavar="KEY", help="The session it reports to; main by default.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The agent to do it; that of --from by default.")] = None,
    runtime: Annotated[
        Runtime, typer.Option(help="subagent, or acp for an external harness (named by --agent).")
    ] = Runtime.SUBAGENT,
    label: Annotated[str | None, typer.Option(help="A unique name for the new session.")] = None,
    model: Annotated[str | None, typer.Option(help="Another model, as provider/model.")] = None,
    timeout: Annotated[
        int | None, typer.Option(min=0, max=_LONGEST_S, help="Stop it after so many seconds; 0 never.")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Start a sub-agent in a session of its own. It reports to the session it was started from.

    A running gateway works on it in the background; without one, this waits until it is done.
    """
    wanted: dict[str, Any] = {"task": task}
    wanted |= {"agentId": agent} if agent else {}
    wanted |= {"runtime": runtime.value} if runtime is not Runtime.SUBAGENT else {}
    wanted |= {"label": label} if label else {}
    wanted |= {"model": model} if model else {}
    wanted |= {"runTimeoutSeconds": timeout} if timeout is not None else {}
    receipt = reach.run(settings.load(config), lambda r: _spawn(r, requester, wanted), working=True)
    if as_json:
        output.json(receipt)
        raise typer.Exit(_failed(receipt))
    out = output.console()
    out.print(f"Started {escape(receipt['childSessionKey'])}")
    limit = f", {receipt['runTimeoutSeconds']} s at most" if receipt["runTimeoutSeconds"] else ""
    out.print(f"  [dim]model {escape(receipt['model'])}, thinking {escape(receipt['thinking'])}{limit}[/]")
    if "exchange" in receipt:
        out.print()
        timeline.show(out, receipt["exchange"])
    else:
        out.print(f"To see what comes of it: hobnob exchanges show {receipt['exchangeId']}")
    raise typer.Exit(_failed(receipt))


@app.command()
def tail(
    key: Key,
    limit: Annotated[int, typer.Option(min=1, max=_NEWEST, help="Messages to begin with.")] = 10,
    tools: Annotated[bool, typer.Option("--tools", help="Also what tools give back.")] = False,
    config: ConfigFile = None,
) -> None:
    """Follow a session as it goes on, until Ctrl-C. Needs a running gateway."""
    try:
        reach.run(settings.load(config), lambda reached: _follow(reached, key, limit, tools=tools))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _send(key: str, text: str, timeout_s: int) -> Callable[[There | Here], Coroutine[Any, Any, Sent]]:
    async def act(reached: There | Here) -> Sent:
        sent = await reached.call("sessions.send", key=key, message=text, idempotencyKey=new_id())
        answer = {"runId": sent["runId"], "sessionKey": sent["sessionKey"]}
        if timeout_s == 0:
            return answer | {"status": "accepted"}, reached.here, 0
        try:
            waited = await reached.call("agent.wait", runId=sent["runId"], timeoutMs=timeout_s * 1000)
        except asyncio.CancelledError:
            await reached.stopped_by_hand(sent["sessionKey"], sent["runId"])
            raise
        if "result" not in waited:
            return answer | {"status": "timeout"}, reached.here, 0
        reply = "\n".join(part["text"] for part in waited["result"]["payloads"]) or None
        answer |= {"status": waited["status"], "outcome": waited["outcome"], "reply": reply}
        answer |= {"error": waited["error"]} if "error" in waited else {}
        return answer, reached.here, await reach.left_over(reached)

    return act


async def _spawn(reached: There | Here, requester: str | None, wanted: dict[str, Any]) -> dict[str, Any]:
    if requester is None:
        requester = "main"
        try:
            await reached.call("sessions.resolve", key=requester)
        except RpcFailed as problem:
            if problem.reason != "session.not_found":
                raise
            await reached.call("sessions.create", key=requester)
    receipt: dict[str, Any] = await reached.call(
        "sessions.spawn", key=requester, idempotencyKey=new_id(), **wanted
    )
    if reached.here is False:
        return receipt
    over = reached.exchange(receipt["exchangeId"])
    exchange = await reached.call("exchanges.get", id=receipt["exchangeId"])
    if exchange["state"] == "open":  # else it was over before we listened
        await over
        exchange = await reached.call("exchanges.get", id=receipt["exchangeId"])
    return receipt | {"exchange": exchange}


def _failed(receipt: dict[str, Any]) -> int:
    return int(receipt.get("exchange", {}).get("outcome", "ok") not in ("ok", "no_output"))


async def _follow(reached: There | Here, key: str, limit: int, *, tools: bool) -> None:
    if reached.here:
        raise GatewayUnreachable(
            "No gateway is running, and without one nothing happens in a session.",
            fix="Start one with `hobnob serve`.",
        )
    out = output.console()
    page = await read(reached, key, limit, tools=tools)
    key, agent = page["sessionKey"], keys.agent_of(page["sessionKey"])
    out.print(f"[bold]{escape(key)}[/] [dim]as it goes on; Ctrl-C ends this.[/]\n")
    transcript.show(out, page["messages"], agent)
    last = page["messages"][-1]["seq"] if page["messages"] else 0
    async for added in reached.follow(key, last):
        if added["messageSeq"] <= last:
            out.print("[dim]— a new transcript begins —[/]")
        last = added["messageSeq"]
        if tools or added["message"]["role"] != "toolResult":
            transcript.show(out, [added["message"]], agent)
