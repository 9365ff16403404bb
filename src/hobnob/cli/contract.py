"""`hobnob contract`: test the session tools of any gateway from outside."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hobnob.cli import connection, output
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson

if TYPE_CHECKING:
    from hobnob.contract.runner import Outcome

app = typer.Typer(help="Test the session tools of a gateway from outside.", no_args_is_help=True)
_MARKS = {"passed": "[green]✓[/]", "failed": "[red]✗[/]", "skipped": "[yellow]-[/]"}


@app.command()
@uses_gateway
def run(
    endpoint: Endpoint,
    restart_command: Annotated[
        str | None,
        typer.Option(help="A shell command that kills the gateway and starts it again, for durability."),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Only this check, or this section.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report in Markdown.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json-file", metavar="FILE", help="Write a report in JSON.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the checks against the gateway, which needs the settings of `hobnob contract config`.

    Exits with 1 when a check failed. It writes into the sessions of that gateway: use one for tests.
    """
    from hobnob.contract import runner

    found = connection.require_running(endpoint)

    def show(outcome: Outcome) -> None:
        if not as_json:
            line = f"{_MARKS[outcome.state]} {outcome.section}: {output.escape(outcome.title)}"
            output.console().print(line + (f" — {output.escape(outcome.detail)}" if outcome.detail else ""))

    done = runner.run(found.url, found.token, restart=restart_command, only=only, on_outcome=show)
    outcomes = asyncio.run(done)
    report = runner.as_json(found.url, outcomes)
    if markdown is not None:
        markdown.write_text(runner.as_markdown(found.url, outcomes))
    if json_file is not None:
        import orjson

        json_file.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    if as_json:
        output.json(report)
    else:
        counts = f"{report['passed']} passed, {report['failed']} failed, {report['skipped']} skipped"
        output.console().print(f"\n{counts}.")
    raise typer.Exit(0 if report["ok"] else 1)


@app.command("config")
def config_() -> None:
    """Print the settings that the gateway under test needs."""
    from hobnob.contract.runner import SETTINGS

    sys.stdout.write(SETTINGS)
