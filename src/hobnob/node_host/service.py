"""Run this machine as a node: its identity, its commands, and its connection."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson

from hobnob import __version__, statedir
from hobnob.config import Config
from hobnob.node_host.execution import Execution, Row
from hobnob.node_host.identity import Identity
from hobnob.node_host.link import Command, Link, Progress, Refused
from hobnob.processes import open_processes
from hobnob.sandbox import Sandbox
from hobnob.sandbox.bubblewrap import Bubblewrap

TOKEN_FILE = "tokens.json"  # noqa: S105 - the name of the file
_NOTE_CHARS = 2_000
_NOTIFY_S = 10.0
_log = logging.getLogger(__name__)


class KeptTokens:
    """The tokens that gateways gave this node, by URL, in a private file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TOKEN_FILE

    def get(self, url: str) -> str | None:
        found = self._read().get(url)
        return found if isinstance(found, str) else None

    def keep(self, url: str, token: str | None) -> None:
        known = self._read()
        if known.get(url) == token:
            return
        changed = {**known, url: token} if token else {name: t for name, t in known.items() if name != url}
        partial = self._path.with_name(f".{TOKEN_FILE}.{os.getpid()}")
        with os.fdopen(statedir.open_private(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), "wb") as file:
            file.write(orjson.dumps(changed))
        partial.rename(self._path)

    def _read(self) -> Row:
        try:
            found = orjson.loads(self._path.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


async def run(
    config: Config, url: str, token: str | None, *, name: str, say: Callable[[str], None] = _log.info
) -> None:
    """Be a node of the gateway at `url` until cancelled. Raises Unauthenticated when the token is wrong."""
    folder = statedir.private_dir(config.home / "node")
    identity, tokens = Identity.kept(folder), KeptTokens(folder)
    settings = config.settings.node_host
    workspace = _workspace(settings.workspace, folder)
    sandbox = Sandbox(Bubblewrap(lambda: config.settings.agents.defaults.sandbox.run_as_root))
    async with open_processes(folder / "processes") as processes:
        execution = Execution(lambda: config.settings.node_host.exec, workspace, sandbox, processes)
        link = Link(
            url,
            identity,
            commands(execution, say),
            client={
                "id": "node-host",
                "displayName": name,
                "version": __version__,
                "platform": platform.system().lower() or "unknown",
                "deviceFamily": platform.system() or "unknown",
                "mode": "node",
            },
            token=lambda: tokens.get(url) or token or "",
            keep_token=lambda own: tokens.keep(url, own),
            say=say,
        )
        await link.run()


def _workspace(chosen: str | None, folder: Path) -> Path:
    return statedir.private_dir(Path(chosen).expanduser().absolute() if chosen else folder / "workspace")


def commands(execution: Execution, say: Callable[[str], None]) -> dict[str, Command]:
    """What this node offers."""

    async def notify(params: Row, progress: Progress) -> Row:
        return await _notify(params, say)

    return {
        "system.run": execution.run,
        "system.run.prepare": execution.prepare,
        "system.which": execution.which,
        "system.notify": notify,
    }


async def _notify(params: Row, say: Callable[[str], None]) -> Row:
    """Show a note on the desktop, or say it where this node runs if there is no desktop."""
    title, body = (_line(params.get(part)) for part in ("title", "body"))
    if not title and not body:
        raise Refused("INVALID_REQUEST", "A note needs a title or a body.")
    program = shutil.which("notify-send")
    if program and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        process = await asyncio.create_subprocess_exec(program, "--", title or "Hobnob", body)
        try:
            async with asyncio.timeout(_NOTIFY_S):
                if await process.wait() == 0:
                    return {"ok": True, "shown": "desktop"}
        except TimeoutError:
            process.kill()
            await process.wait()
    say(f"Note from the gateway: {' - '.join(filter(None, (title, body)))}")
    return {"ok": True, "shown": "log"}


def _line(text: object) -> str:
    """Text of the gateway, without control characters."""
    cut = str(text or "")[:_NOTE_CHARS]
    return "".join(c if c.isprintable() else " " for c in cut).strip()
