"""`hobnob store`: move the store to another database, and delete the secrets shared through it."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from hobnob import config as settings
from hobnob.cli import output
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.errors import BadInput, NotFound
from hobnob.store import exists, is_postgres, shown

app = typer.Typer(no_args_is_help=True, help="Move the store to another database; reset shared secrets.")


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


@app.command("reset-secrets")
def reset_secrets(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Delete the secrets that the gateways of a PostgreSQL database share, to use another `store.secretKey`.

    The next gateway that starts stores its own again, from its state directory, with its key.
    Gateways that are running go on as they are.
    """
    url = settings.load(config).store_url
    if not is_postgres(url):
        raise BadInput(
            "The store is an SQLite file: nothing is shared.",
            fix="The secrets of this gateway are the files token and device-key in the state directory.",
        )
    if not exists(url):
        raise NotFound(f"There is no store at {shown(url)} yet.")
    from hobnob.store.access import shared_secrets
    from hobnob.store.engine import postgres_server as server
    from hobnob.store.engine.postgres_sql import PostgresTx
    from hobnob.store.engine.postgres_statements import Statements

    with closing(server.connect(url)) as connection, server.translate_errors(url):
        with server.transaction(connection):
            deleted = shared_secrets.delete_all(PostgresTx(Statements(connection), {}, writing=True))
    if as_json:
        output.json({"store": shown(url), "deleted": deleted})
        return
    done = f"Deleted {output.number(deleted, 'secret')} from {shown(url)}."
    output.console().print(output.escape(f"{done} The next gateway that starts stores its own."))
