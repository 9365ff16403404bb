"""`hobnob store`: move the store to another database."""

from __future__ import annotations

from typing import Annotated

import typer

from hobnob.cli import output
from hobnob.cli.options import AsJson
from hobnob.store import shown

app = typer.Typer(no_args_is_help=True, help="Move the store to another database.")


@app.command("copy")
def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="sqlite:///<path> or postgresql://…")],
    target: Annotated[str, typer.Argument(metavar="TO", help="An empty database, or a new file.")],
    as_json: AsJson = False,
) -> None:
    """Copy a whole store into another database, of either kind, and check the copy.

    No gateway may use either of them. All of it is copied or nothing. FROM stays as it is; set `store.url` to
    TO afterwards. A password is better given by PGPASSWORD or ~/.pgpass than in a URL.
    """
    from hobnob.store.engine.copying import copy_store

    def report(table: str, rows: int) -> None:
        if rows and not as_json:
            output.note(f"{table}: {rows:,} rows")

    found = copy_store(source, target, exclusive=True, on_table=report)
    if as_json:
        tables = {name: {"rows": each.rows, "sha256": each.sha256} for name, each in found.items()}
        output.json({"from": shown(source), "to": shown(target), "tables": tables})
        return
    rows = sum(each.rows for each in found.values())
    done = f"Copied {rows:,} rows of {len(found)} tables from {shown(source)} to {shown(target)}."
    output.console().print(output.escape(f"{done} Both were compared, and are the same."))
