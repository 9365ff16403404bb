"""`hobnob doctor`: check the installation and say how to fix what is wrong."""

from __future__ import annotations

from typing import Annotated

import typer

from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.records import asdict


def doctor(
    config: ConfigFile = None,
    online: Annotated[
        bool,
        typer.Option(
            "--online",
            help="Also ask models for a short answer, which may cost a little, and chats for the bot.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check what a gateway will use: settings, models, tools, channels, address, state, store, sandbox.

    Exits with 1 when a check failed (✗), with 0 when there are only warnings (!).
    """
    from hobnob.cli.doctor_checks import findings  # not at the top: only this command needs so much

    found = list(findings(config, online=online))
    failed, warned = (sum(f.state == state for f in found) for state in ("fail", "warn"))
    if as_json:
        output.json({"ok": failed == 0, "warnings": warned, "findings": [asdict(f) for f in found]})
    else:
        out = output.console()
        for finding in found:
            out.print(
                f"{output.MARKS[finding.state]} [bold]{finding.check}[/]  {output.escape(finding.message)}"
            )
            if finding.fix:
                out.print(f"    → {output.escape(finding.fix)}")
        out.print(f"\n{_summary(failed, warned)}")
    raise typer.Exit(1 if failed else 0)


def _summary(failed: int, warned: int) -> str:
    parts = [f"{output.number(failed, 'check')} failed"] if failed else []
    parts += [output.number(warned, "warning")] if warned else []
    return f"{', '.join(parts)}." if parts else "All is well."
