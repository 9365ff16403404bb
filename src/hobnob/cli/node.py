"""`hobnob node`: nodes of a gateway, and this machine as a node."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import uuid
from typing import Annotated, Any

import orjson
import typer

from hobnob.cli import connection, output
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.errors import BadInput

app = typer.Typer(help="Nodes: other machines and devices that offer commands.", no_args_is_help=True)

_SHORT_ID = 12
NodeName = Annotated[
    str, typer.Argument(metavar="NODE", help="Its name or id; the beginning of the id is enough.")
]
Asking = Annotated[
    str, typer.Argument(metavar="REQUEST", help="The request, or the name or id of the node that asks.")
]


@app.command()
@uses_gateway
def run(
    endpoint: Endpoint,
    name: Annotated[
        str | None, typer.Option(help="The name of this node; by default that of the host.")
    ] = None,
) -> None:
    """Offer this machine to a gateway, until Ctrl-C. An owner of the gateway has to approve it once.

    What the gateway may do here is set here: hobnob config show nodeHost.
    """
    asyncio.run(_run(endpoint, name or socket.gethostname()))


async def _run(endpoint: Endpoint, name: str) -> None:
    from hobnob.node_host import service
    from hobnob.node_host.service import KeptTokens

    url = endpoint.address or connection.require_running(endpoint).url
    kept = KeptTokens(endpoint.config.home / "node").get(url)
    try:
        token = endpoint.token()[0]
    except BadInput:
        if kept is None:  # else it has signed in there before
            raise
        token = None
    task = asyncio.ensure_future(service.run(endpoint.config, url, token, name=name, say=_say))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _say(text: str) -> None:
    output.console().print(output.escape(output.clean(text)), soft_wrap=True)


@app.command("list")
@uses_gateway
def list_(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """List the nodes, and those that wait for approval."""
    found = connection.call(endpoint, "node.list")
    if as_json:
        output.json(found)
        return
    if not found["nodes"]:
        output.note("No node has connected yet. On another machine: hobnob node run --url wss://HOST")
        return
    rows = [
        (
            node["displayName"],
            node["nodeId"][:_SHORT_ID],
            "connected" if node["connected"] else "away",
            {"pending-approval": "waits for approval"}.get(node["approvalState"], node["approvalState"]),
            " ".join(node["commands"]),
        )
        for node in found["nodes"]
    ]
    output.table(("name", "id", "state", "approval", "commands"), rows)
    for node in found["nodes"]:
        if "pendingRequestId" in node:
            wants = ", ".join(node["pendingDeclaredCommands"]) or "no commands"
            output.note(f"{node['displayName']} offers {wants}.")
            output.note(f"To approve it: hobnob node approve {node['pendingRequestId']}")


@app.command()
@uses_gateway
def describe(endpoint: Endpoint, node: NodeName, as_json: AsJson = False) -> None:
    """Show one node."""
    found = connection.call(endpoint, "node.describe", nodeId=node)
    if as_json:
        output.json(found)
        return
    for name, value in found.items():
        if name not in ("ts", "sessionHost", "nodePluginTools"):
            shown = output.ago(value) if name.endswith("AtMs") else _text(value)
            output.console().print(f"[dim]{name}[/]  {output.escape(output.clean(shown))}")


@app.command()
@uses_gateway
def invoke(
    endpoint: Endpoint,
    node: NodeName,
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="Such as system.which.")],
    params: Annotated[str, typer.Option(help="The parameters, as JSON.")] = "{}",
    timeout: Annotated[float, typer.Option(help="How long to wait, in seconds.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Run a command of a node and print its answer."""
    try:
        parsed = orjson.loads(params)
    except ValueError:
        raise BadInput("--params is not JSON.", fix='For example: --params \'{"bins": ["git"]}\'') from None
    answer = connection.call(
        endpoint,
        "node.invoke",
        nodeId=node,
        command=command,
        params=parsed,
        timeoutMs=max(1, int(timeout * 1000)),
        idempotencyKey=str(uuid.uuid4()),
    )
    output.json(answer if as_json else answer["payload"])


@app.command()
@uses_gateway
def approve(endpoint: Endpoint, request: Asking, as_json: AsJson = False) -> None:
    """Approve a node, or the new commands it offers."""
    row = _pending(endpoint, request)
    done = connection.call(endpoint, "node.pair.approve", requestId=row["requestId"])
    offered = ", ".join(row["commands"]) or "no commands"
    _done(done, as_json, f"{done['node']['displayName']} is approved, with {offered}.")


@app.command()
@uses_gateway
def reject(endpoint: Endpoint, request: Asking, as_json: AsJson = False) -> None:
    """Reject a node, or the new commands it offers."""
    row = _pending(endpoint, request)
    done = connection.call(endpoint, "node.pair.reject", requestId=row["requestId"])
    _done(done, as_json, f"{row['displayName']} is rejected.")


@app.command()
@uses_gateway
def remove(endpoint: Endpoint, node: NodeName, as_json: AsJson = False) -> None:
    """Withdraw the approval of a node and disconnect it."""
    done = connection.call(endpoint, "node.pair.remove", nodeId=node)
    _done(done, as_json, f"The node {done['nodeId'][:_SHORT_ID]} is removed.")


@app.command()
@uses_gateway
def rename(
    endpoint: Endpoint,
    node: NodeName,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
    as_json: AsJson = False,
) -> None:
    """Give a node a name."""
    done = connection.call(endpoint, "node.rename", nodeId=node, displayName=name)
    _done(done, as_json, f"The node {done['nodeId'][:_SHORT_ID]} is called {done['displayName']}.")


def _pending(endpoint: Endpoint, wanted: str) -> dict[str, Any]:
    """The open request that is meant. Raises BadInput."""
    pending = connection.call(endpoint, "node.pair.list")["pending"]
    found = [
        row
        for row in pending
        if row["requestId"] == wanted
        or row["displayName"].casefold() == wanted.casefold()
        or (len(wanted) >= 6 and row["nodeId"].startswith(wanted.lower()))
    ]
    if len(found) != 1:
        problem = "No node asks" if not found else "More than one node asks"
        raise BadInput(f"{problem} under {wanted!r}.", fix="`hobnob node list` shows the requests.")
    return dict(found[0])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _done(document: Any, as_json: bool, message: str) -> None:
    if as_json:
        output.json(document)
    else:
        output.console().print(output.escape(output.clean(message)))
