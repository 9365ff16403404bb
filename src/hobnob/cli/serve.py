"""`hobnob serve`: run the gateway."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from hobnob import config as settings
from hobnob import dependencies
from hobnob.cli import output
from hobnob.cli.options import ConfigFile
from hobnob.config import Config
from hobnob.errors import HobnobError

if TYPE_CHECKING:
    from hobnob.api import Services

_MAX_OPEN_FILES = 65_536
_log = logging.getLogger(__name__)


def serve(
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    store: Annotated[str | None, typer.Option(help="The database, sqlite:///<path>.")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log at debug level.")] = False,
) -> None:
    """Run the gateway until Ctrl-C or SIGTERM; a second one stops it immediately."""
    gc.disable()  # until start-up is done
    dependencies.check()
    flags = {"gateway.bind": host, "gateway.port": port, "store.url": store}
    loaded = settings.load(config, flags=flags)
    from hobnob import logs  # not at the top: only this command logs

    logs.configure(as_json=log_json, level=logging.DEBUG if verbose else logging.INFO)
    _raise_open_file_limit()
    _runner().run(_serve(loaded, lambda: settings.load(config, flags=flags)))


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


async def _serve(loaded: Config, read: Callable[[], Config]) -> None:
    from hobnob import logs
    from hobnob.api.server import address_file, announce_shutdown, open_server
    from hobnob.gateway import GRACE_S, api_services, open_gateway

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    out = output.console()
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(open_gateway(loaded))
        gateway.store.watch(logs.log_changes)
        services = api_services(gateway)
        address = await stack.enter_async_context(open_server(services))

        def on_stop_signal() -> None:
            if stop.is_set():
                gateway.runner.skip_grace()
                out.print("Stopping now. Running turns continue at the next start.")
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_stop_signal)
        loop.add_signal_handler(signal.SIGHUP, _reload, loaded, read, services)
        gc.freeze()  # a collection of all that is imported blocked the event loop for 40 ms
        gc.enable()
        with address_file(loaded.home, address):
            _print_addresses(loaded, address)
            await stop.wait()
        announce_shutdown(services, "the gateway stops")
        out.print(f"Stopping: running turns have {GRACE_S:.0f} seconds to end.")
        await gateway.runner.stop(GRACE_S)  # before the server: clients that wait still get their answers


def _reload(loaded: Config, read: Callable[[], Config], services: Services) -> None:
    """Apply the changed settings that may change while turns run."""
    try:
        done = loaded.reload(read())
    except HobnobError as problem:
        _log.error("settings not reloaded, the old ones stay in effect: %s", problem.message)
        return
    _log.info("settings reloaded: %s", f"changed {', '.join(done.applied)}" if done.applied else "no change")
    if done.pending:
        _log.warning("these settings need a restart: %s", ", ".join(done.pending))
    if closed := services.clients.close_unless(services.auth.is_current, "the credential was withdrawn"):
        _log.info("connections closed because their credential is no longer valid: %d", closed)


def _print_addresses(loaded: Config, address: str) -> None:
    from hobnob.api.auth import TOKEN_FILE, owner_token

    out = output.console()
    out.print(f"Hobnob listens on [bold]{output.escape(address)}[/]. Stop it with Ctrl-C.")
    page = _page_url(address)
    if out.is_terminal:  # the link holds the token, and logs are read by people who must not have it
        out.print(f"Open the page: [bold]{output.escape(f'{page}#token={owner_token(loaded)}')}[/]")
    else:
        out.print(f"The page is at {output.escape(page)}; it asks for the token.")
    if loaded.settings.gateway.auth.token is None:
        out.print(f"The token is in {output.escape(str(loaded.home / TOKEN_FILE))}.")
    if not loaded.settings.agents.defaults.model.primary:
        out.print(
            "No model is configured: agents run on the built-in rehearsal model. To use another, set"
            ' agents.defaults.model: "provider/model".'
        )
    out.print('Try: hobnob agent -m "what is 2 + 2?"')


def _page_url(address: str) -> str:
    """The URL of the page, for a browser on this machine."""
    host = address.removeprefix("ws://").replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")  # noqa: S104
    return f"http://{host}/"
