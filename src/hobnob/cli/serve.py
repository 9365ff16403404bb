"""`hobnob serve`: run the gateway."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hobnob import config as settings
from hobnob import dependencies
from hobnob.cli import output
from hobnob.cli.options import ConfigFile
from hobnob.config import Config
from hobnob.errors import BadConfig

if TYPE_CHECKING:
    from hobnob.api import Services

_MAX_OPEN_FILES = 65_536


def serve(
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    store: Annotated[
        str | None, typer.Option(help="The database, sqlite:///<path> or postgresql://…")
    ] = None,
    tools: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A Python file with tools of your own; may be repeated."),
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log at debug level.")] = False,
) -> None:
    """Run the gateway until Ctrl-C or SIGTERM; a second one stops it immediately."""
    gc.disable()  # until start-up is done
    dependencies.check()
    flags: dict[str, Any] = {"gateway.bind": host, "gateway.port": port, "store.url": store}
    if tools:  # in addition to those of the file
        known = settings.load(config).settings.tools.modules
        flags["tools.modules"] = [*known, *(str(file.absolute()) for file in tools)]
    loaded = settings.load(config, flags=flags)
    from hobnob import logs  # not at the top: only this command logs

    logs.configure(as_json=log_json, level=logging.DEBUG if verbose else logging.INFO)
    _raise_open_file_limit()
    _runner().run(_serve(loaded))


def _raise_open_file_limit() -> None:
    """Thousands of clients may connect, and many systems have a soft limit of 1024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(hard, _MAX_OPEN_FILES)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _serve(loaded: Config) -> None:
    from hobnob import logs
    from hobnob.api.methods.config import log_findings
    from hobnob.api.server import address_file, announce_shutdown, open_server
    from hobnob.gateway import GRACE_S, api_services, open_gateway

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    out = output.console()
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(open_gateway(loaded))
        gateway.store.watch(logs.log_changes, own_only=True)
        services = api_services(gateway)
        log_findings(services)
        address = await stack.enter_async_context(open_server(services))

        def on_stop_signal() -> None:
            if stop.is_set():
                gateway.runner.skip_grace()
                where = "on another gateway" if gateway.runner.hands_over else "at the next start"
                out.print(f"Stopping now. Running turns continue {where}.")
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_stop_signal)
        loop.add_signal_handler(signal.SIGHUP, _on_hangup, services)
        gc.freeze()  # a collection of all that is imported blocked the event loop for 40 ms
        gc.enable()
        with address_file(loaded.home, address):
            _print_addresses(loaded, address)
            await stop.wait()
        announce_shutdown(services, "the gateway stops")
        await gateway.cluster.refresh()
        if gateway.runner.hands_over:
            out.print("Stopping: running turns continue on another gateway.")
        else:
            out.print(f"Stopping: running turns have {GRACE_S:.0f} seconds to end.")
        await gateway.runner.stop(GRACE_S)  # before the server: clients that wait still get their answers


def _on_hangup(services: Services) -> None:
    """SIGHUP reloads the settings. The log says what came of it."""
    from hobnob.api.methods.config import log_findings, reload_settings

    with suppress(BadConfig):
        reload_settings(services)
        log_findings(services)


def _print_addresses(loaded: Config, address: str) -> None:
    from hobnob.api.auth import owner_token
    from hobnob.api.server import page_url
    from hobnob.checks import used_models
    from hobnob.kept_secrets import TOKEN_FILE
    from hobnob.models.rehearsal import INFO as REHEARSAL

    out = output.console()
    out.print(f"Hobnob listens on [bold]{output.escape(address)}[/]. Stop it with Ctrl-C.")
    page = f"{page_url(address)}/"
    if out.is_terminal:  # the link holds the token, and logs are read by people who must not have it
        out.print(f"Open the page: [bold]{output.escape(f'{page}#token={owner_token(loaded)}')}[/]")
    else:
        out.print(f"The page is at {output.escape(page)}; it asks for the token.")
    if loaded.settings.gateway.auth.token is None:
        out.print(f"The token is in {output.escape(str(loaded.home / TOKEN_FILE))}.")
    if set(used_models(loaded.settings)) == {REHEARSAL.name}:
        out.print(
            "No model is configured: agents run on the built-in rehearsal model."
            " To use another: hobnob config set agents.defaults.model PROVIDER/MODEL"
        )
    out.print('Try: hobnob agent -m "what is 2 + 2?"')
