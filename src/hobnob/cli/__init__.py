"""The command line: one module per command group, one function per command."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from hobnob import __version__
from hobnob.cli import (
    agent,
    agents,
    approvals,
    backup,
    channels,
    config,
    contract,
    costs,
    cron,
    demo,
    devices,
    doctor,
    exchanges,
    explain,
    init,
    mcp,
    node,
    nodes,
    output,
    restore,
    serve,
    service,
    sessions_run,
    status,
    store,
)
from hobnob.errors import HobnobError

app = typer.Typer(
    name="hobnob",
    help="A gateway where AI agents live in sessions and talk to each other.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("agent")(agent.agent)
app.command("status")(status.status)
app.command("costs")(costs.costs)
app.command("doctor")(doctor.doctor)
app.command("explain")(explain.explain)
app.command("reload")(config.reload)
app.command("backup")(backup.backup)
app.command("restore")(restore.restore)
app.command("upgrade-check")(restore.upgrade_check)
app.command("init")(init.init)
app.add_typer(sessions_run.app, name="sessions")
app.add_typer(exchanges.app, name="exchanges")
app.add_typer(approvals.app, name="approvals")
app.add_typer(agents.app, name="agents")
app.add_typer(channels.app, name="channels")
app.add_typer(channels.pairing, name="pairing")
app.add_typer(devices.app, name="devices")
app.add_typer(node.app, name="node")
app.add_typer(nodes.app, name="nodes")
app.add_typer(config.app, name="config")
app.add_typer(store.app, name="store")
app.add_typer(mcp.app, name="mcp")
app.add_typer(service.app, name="service")
app.add_typer(contract.app, name="contract")
app.add_typer(cron.app, name="cron")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"hobnob {__version__}")
        raise typer.Exit


@app.callback()
def _hobnob(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print ? where the terminal's encoding lacks a character
    try:
        app()
    except HobnobError as problem:
        output.error(problem)
        raise SystemExit(output.exit_code(problem)) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(141) from None
    except OSError as problem:
        output.error(HobnobError(f"{problem.filename or 'A file'}: {problem.strerror or problem}."))
        raise SystemExit(1) from None
