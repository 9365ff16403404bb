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
from hobnob.cli import output
from hobnob.cli.options import ConfigFile
from hobnob.config import Config
from hobnob.errors import HobnobError

if TYPE_CHECKING:
    from hobnob.api import Services

_OPEN_FILES = 65_536
_log = logging.getLogger(__name__)


def serve(
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    store: Annotated[str | None, typer.Option(help="The database, sqlite:///<path>.")] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
) -> None:
    """Run the gateway until it is told to stop (Ctrl-C or SIGTERM; twice stops at once)."""
    gc.disable()  # until all is there
    flags = {"gateway.bind": host, "gateway.port": port, "store.url": store}
    loaded = settings.load(config, flags=flags)
    from hobnob import logs  # here: the other commands need none

    logs.configure(as_json=log_json, level=logging.DEBUG if verbose else logging.INFO)
    _have_room()
    _runner().run(_serve(loaded, lambda: settings.load(config, flags=flags)))


def _have_room() -> None:
    """Thousands may be connected, and many systems allow a program a thousand open files unless it asks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _OPEN_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


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

        def asked() -> None:
            if stop.is_set():
                gateway.runner.skip_grace()
                out.print("Stopping at once: what is running goes on at the next start.")
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, asked)
        loop.add_signal_handler(signal.SIGHUP, _reread, loaded, read, services)
        gc.freeze()  # to look through all of it again stopped everything for 40 ms
        gc.enable()
        with address_file(loaded.home, address):
            _greet(loaded, address)
            await stop.wait()
        announce_shutdown(services, "the gateway stops")
        out.print("Stopping: turns that run get a moment to end.")
        await gateway.runner.stop(GRACE_S)  # before the connections: whoever waits for an answer gets it


def _reread(loaded: Config, read: Callable[[], Config], services: Services) -> None:
    """Take over a changed configuration, as far as that is safe while turns run."""
    try:
        done = loaded.reload(read())
    except HobnobError as problem:
        _log.error("settings not reloaded, the old ones stay in effect: %s", problem.message)
        return
    _log.info("settings reloaded: %s", f"changed {', '.join(done.applied)}" if done.applied else "no change")
    if done.pending:
        _log.warning("these settings need a restart: %s", ", ".join(done.pending))
    if gone := services.clients.close_unless(services.auth.is_current, "the credential was withdrawn"):
        _log.info("connections closed because their secret is no longer good: %d", gone)


def _greet(loaded: Config, address: str) -> None:
    from hobnob.api.auth import TOKEN_FILE, owner_token

    out = output.console()
    out.print(f"Hobnob listens on [bold]{output.escape(address)}[/]. Stop it with Ctrl-C.")
    page = _page(address)
    if out.is_terminal:  # and nowhere else: a log is read by more people than may sign in
        out.print(f"See who talks to whom: [bold]{output.escape(f'{page}#token={owner_token(loaded)}')}[/]")
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


def _page(address: str) -> str:
    """Where a browser on this machine finds the page."""
    host = address.removeprefix("ws://").replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")  # noqa: S104
    return f"http://{host}/"
