"""`hobnob serve`: run the gateway."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from typing import Annotated

import typer

from hobnob import config as settings
from hobnob.cli import output
from hobnob.cli.options import ConfigFile
from hobnob.config import Config


def serve(
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    store: Annotated[str | None, typer.Option(help="The database, sqlite:///<path>.")] = None,
) -> None:
    """Run the gateway until it is told to stop (Ctrl-C or SIGTERM; twice stops at once)."""
    flags = {"gateway.bind": host, "gateway.port": port, "store.url": store}
    loaded = settings.load(config, flags=flags)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    _runner().run(_serve(loaded))


def _runner() -> asyncio.Runner:
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _serve(loaded: Config) -> None:
    from hobnob.api.http import known_as, open_server
    from hobnob.gateway import open_gateway, outside

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    out = output.console()
    async with open_gateway(loaded) as gateway, open_server(outside(gateway)) as address:

        def asked() -> None:
            if stop.is_set():
                gateway.runner.hurry()
                out.print("Stopping at once: what is running goes on at the next start.")
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, asked)
        gc.freeze()  # what is here by now stays: to look through it again stopped everything for 40 ms
        with known_as(loaded.home, address):
            _greet(loaded, address)
            await stop.wait()
        out.print("Stopping: turns that run get a moment to end.")


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
