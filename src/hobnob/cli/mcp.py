"""`hobnob mcp`: the session tools as an MCP server over stdio; grants for clients over HTTP."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any

import typer

from hobnob.cli import connection, mcp_clients, output
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson
from hobnob.errors import BadInput, McpUnavailable

app = typer.Typer(help="The session tools for MCP clients.", no_args_is_help=False)

TOKEN_VARIABLE, SESSION_VARIABLE = "HOBNOB_MCP_TOKEN", "HOBNOB_MCP_SESSION"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
Session = Annotated[
    str | None,
    typer.Option("--session", metavar="KEY", help=f"The session to act as; by default ${SESSION_VARIABLE}."),
]
Ttl = Annotated[str, typer.Option(metavar="TIME", help="How long it is valid, such as 30m, 8h or 7d.")]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Without the tools that send or spawn.")]


@app.callback(invoke_without_command=True)
@uses_gateway
def mcp(
    context: typer.Context, endpoint: Endpoint, session: Session = None, read_only: ReadOnly = False
) -> None:
    """Without a command: an MCP server on stdin and stdout, bound to one session of the running gateway.

    It acts as the session of --session. With a grant's token in $HOBNOB_MCP_TOKEN it acts as the session of
    that grant, and needs no other token.
    """
    if context.invoked_subcommand is not None:
        return
    token = os.environ.get(TOKEN_VARIABLE)
    if token and session:
        raise BadInput(f"${TOKEN_VARIABLE} names the session already.", fix="Leave --session out.")
    try:
        from hobnob.cli import mcp_bridge
    except ImportError:
        raise McpUnavailable(fix="Install it: pip install 'hobnob[mcp]'.") from None
    if not token:
        connection.require_running(endpoint)
    key = session or os.environ.get(SESSION_VARIABLE) or "main"
    mcp_bridge.run(endpoint, token, key, read_only=read_only)


@app.command()
@uses_gateway
def grant(
    endpoint: Endpoint,
    session: Session = None,
    ttl: Ttl = "1h",
    name: Annotated[str, typer.Option(help="A name to recognise it by.")] = "",
    read_only: ReadOnly = False,
    as_json: AsJson = False,
) -> None:
    """Make a token with which an MCP client acts as a session. It is shown once."""
    key = session or os.environ.get(SESSION_VARIABLE) or "main"
    params: dict[str, Any] = {"sessionKey": key, "ttlSeconds": seconds(ttl), "readOnly": read_only}
    made = connection.call(endpoint, "mcp.grants.create", name=name, **params)
    if as_json:
        output.json(made)
        return
    output.note(
        f"Whoever has this token acts as {made['grant']['sessionKey']} for {ttl}. It is not shown again."
        f" To revoke it: hobnob mcp revoke {made['grant']['grantId']}"
    )
    sys.stdout.write(f"{made['token']}\n")


@app.command()
@uses_gateway
def grants(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """List the grants, newest first."""
    found = connection.call(endpoint, "mcp.grants.list")["grants"]
    if as_json:
        output.json({"grants": found})
        return
    if not found:
        output.note("There is no grant. To make one: hobnob mcp grant --session KEY")
        return
    rows = [
        (
            row["state"],
            row["grantId"],
            row["sessionKey"],
            row.get("name", ""),
            row["credential"],
            output.ago(row["lastUsedAtMs"]) if "lastUsedAtMs" in row else "never",
        )
        for row in found
    ]
    output.table(("state", "grant", "session", "name", "made by", "used"), rows)


@app.command()
@uses_gateway
def revoke(
    endpoint: Endpoint,
    grant: Annotated[str, typer.Argument(metavar="GRANT", help="Its id, as `hobnob mcp grants` shows it.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a grant and end its open requests."""
    done = connection.call(endpoint, "mcp.grants.revoke", grantId=grant)
    if as_json:
        output.json(done)
    else:
        output.console().print(f"The grant is revoked. Requests ended: {done['closedRequests']}.")


@app.command("config")
@uses_gateway
def config_(
    endpoint: Endpoint,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help=", ".join(mcp_clients.CLIENTS))],
    session: Session = None,
    http: Annotated[
        bool, typer.Option("--http", help=f"Over HTTP, with a grant in ${TOKEN_VARIABLE}.")
    ] = False,
) -> None:
    """Print the lines to paste into the configuration of an MCP client."""
    key = session or os.environ.get(SESSION_VARIABLE) or "main"
    url = mcp_clients.url_of(endpoint) if http else None
    where, lines = mcp_clients.config(client, mcp_clients.command(endpoint, key), url)
    output.note(where)
    sys.stdout.write(f"{lines}\n")
    if http:
        output.note(f"Then: export {TOKEN_VARIABLE}=$(hobnob mcp grant --session {key} --ttl 7d)")


def seconds(text: str) -> int:
    """A duration such as 90, 30m, 8h or 7d, in seconds. Raises BadInput."""
    found = re.fullmatch(r"(\d{1,9})([smhd]?)", text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise BadInput(f"{text!r} is not a time.", fix="Write it as 30m, 8h or 7d.")
    return int(found[1]) * _UNITS[found[2] or "s"]
