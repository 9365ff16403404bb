"""`hobnob config` and `hobnob reload`: the settings in effect, changes of the file, and loading it again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from hobnob import config as settings
from hobnob.cli import config_edit, connection, output
from hobnob.cli.endpoint import Endpoint, uses_gateway
from hobnob.cli.options import AsJson, ConfigFile
from hobnob.config.reload import needs_restart
from hobnob.errors import BadInput, HobnobError

app = typer.Typer(help="The settings: show them, and change the file.", no_args_is_help=True)


@app.command()
@uses_gateway
def show(
    endpoint: Endpoint,
    as_json: AsJson = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are not defaults.")] = False,
) -> None:
    """Show every setting with its value and its source. Secrets are masked.

    These are the settings of the running gateway; without one, or with --config, those of the file.
    """
    found = _of_file(endpoint.file) if endpoint.file else _of_gateway(endpoint) or _of_file(None)
    rows = [row for row in found["settings"] if not changed or row["origin"] != "default"]
    if as_json:
        output.json(found | {"settings": rows})
        return
    out = output.console()
    source = output.escape(str(found["source"] or "no file: all defaults"))
    state_directory = output.escape(found["home"])
    whose = (
        f"in effect in the gateway at {output.escape(found['gateway'])}"
        if found["gateway"]
        else "as in the file"
    )
    out.print(f"[bold]{source}[/]   (state directory {state_directory}), {whose}\n")
    output.table(
        ("setting", "value", "from"), ((row["path"], _text(row["value"]), row["origin"]) for row in rows)
    )
    _print_difference(found)


@app.command("set", context_settings={"ignore_unknown_options": True})
def set_(
    words: Annotated[
        list[str], typer.Argument(metavar="PATH VALUE…", help="A setting and its value; more may follow.")
    ],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Set settings in the file. Its comments stay, and a change that the file would not survive is refused.

    A value is JSON5 or a plain text: 30, true, all, '["exec"]'. PATH is written as `config show` prints it;
    an agent or a token may be named: agents.list[main].model.
    """
    if len(words) % 2:
        raise BadInput(f"{words[-1]} has no value.", fix="Give pairs: hobnob config set gateway.port 4627")
    pairs = list(zip(words[::2], words[1::2], strict=True))
    _report(config_edit.set_values(config, pairs), [path for path, _ in pairs], config, as_json)


@app.command()
def unset(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The setting.")],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove a setting from the file, so that its default applies."""
    _report(config_edit.unset_value(config, path), [path], config, as_json)


@app.callback()
def _config() -> None:
    pass


@uses_gateway
def reload(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """Let the running gateway load its configuration file again, and show what took effect."""
    connection.require_running(endpoint)
    done = connection.call(endpoint, "config.reload")
    if as_json:
        output.json(done)
        return
    out = output.console()
    out.print(f"The gateway loaded {output.escape(done['path'] or 'its defaults, there is no file')}.")
    out.print(f"Changed: {output.escape(', '.join(done['applied']) or 'nothing')}")
    if done["pending"]:
        out.print(f"{output.MARKS['warn']} After a restart: {output.escape(', '.join(done['pending']))}")
    for warning in done["warnings"]:
        out.print(f"{output.MARKS['warn']} {output.escape(warning)}")


def _of_gateway(endpoint: Endpoint) -> dict[str, Any] | None:
    located = connection.locate(endpoint)
    if located is None:
        return None
    found = connection.call(endpoint, "config.get")
    return {
        "gateway": located.url,
        "source": found["path"],
        "home": found["home"],
        "settings": found["settings"],
        "unapplied": found["unapplied"],
        "needsRestart": found.get("needsRestart", []),
        "problem": found.get("problem"),
    }


def _of_file(file: Path | None) -> dict[str, Any]:
    loaded = settings.load(file)
    rows = [
        {"path": path, "value": value, "origin": loaded.origin(path)}
        for path, value in settings.masked_leaves(loaded.settings)
    ]
    source = str(loaded.source) if loaded.source else None
    return {"gateway": None, "source": source, "home": str(loaded.home), "settings": rows}


def difference(found: dict[str, Any]) -> str:
    """In which settings the file differs from those in effect, and what applies it."""
    waiting = found.get("needsRestart", [])
    changeable = [path for path in found["unapplied"] if path not in waiting]
    said = []
    if changeable:
        said.append(f"The file differs: {', '.join(changeable)}. To apply it: hobnob reload")
    if waiting:
        also = "The file also differs" if changeable else "The file differs"
        said.append(f"{also}: {', '.join(waiting)}. The gateway uses it after a restart.")
    return "\n".join(said)


def _print_difference(found: dict[str, Any]) -> None:
    """Say in which settings the file differs from what the gateway runs with."""
    out = output.console()
    if found.get("problem"):
        out.print(
            f"\n{output.MARKS['fail']} The gateway cannot load the file: {output.escape(found['problem'])}"
        )
    elif found.get("unapplied"):
        out.print(f"\n{output.MARKS['warn']} {output.escape(difference(found))}")


def _report(edited: config_edit.Edited, paths: list[str], file: Path | None, as_json: bool) -> None:
    restart = [path for path in paths if needs_restart(path)]
    if as_json:
        remaining = [{"path": each.path, "message": each.message} for each in edited.remaining]
        output.json(
            {"file": str(edited.file), "changed": paths, "needsRestart": restart, "problems": remaining}
        )
        return
    output.console().print(output.escape(f"Changed {', '.join(paths)} in {edited.file}."))
    for each in edited.remaining:
        output.note(f"The file still has an error: {each.path}: {each.message}")
    try:
        running = None if edited.remaining else connection.locate(Endpoint(file))
    except HobnobError:
        running = None
    if running is not None and restart:
        output.note("The gateway uses it after a restart.")
    elif running is not None:
        output.note("To apply it to the running gateway: hobnob reload")


def _text(value: Any) -> str:
    return "(unset)" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
