"""A gateway connected to a platform under test, in the test's process or in one of its own."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import Any

from tests.channels.platform import Platform
from tests.waiting import LIMIT_S, until

from hobnob.api.server import address_file, open_server
from hobnob.chat_types import InboxEvent
from hobnob.gateway import Gateway, api_services
from hobnob.testing import rehearse, script
from hobnob.tools import Tool

CHANNELS = ("telegram", "discord", "slack", "matrix", "irc", "signal")
IRC_SERVERS = ("ngircd", "inspircd")
WITH_FOLDER = {  # platforms that are made with a folder of the test
    "email": "EmailPlatform",
    "json_lines": "JsonLinesPlatform",
    "whatsapp": "WhatsAppPlatform",
    "whatsapp_web": "WhatsAppWebPlatform",
    "imsg": "ImsgPlatform",
    "bluebubbles": "BluebubblesPlatform",
}


def platforms() -> list[str]:
    """The platforms whose channel and whose server for tests are there."""
    found = [
        name
        for name in CHANNELS
        if importlib.util.find_spec(f"hobnob.channels.{name}")
        and importlib.util.find_spec(f"tests.channels.{name}_platform")
    ]
    return [*(each for name in found for each in (IRC_SERVERS if name == "irc" else [name])), *WITH_FOLDER]


def make_platform(name: str, folder: Path) -> Platform:
    """Skips the test if the server is not installed."""
    channel = "irc" if name in IRC_SERVERS else name
    module = importlib.import_module(f"tests.channels.{channel}_platform")
    made: Platform
    if channel == "irc":
        made = module.IrcPlatform(name, folder)
    elif channel in WITH_FOLDER:
        made = getattr(module, WITH_FOLDER[channel])(folder)
    else:
        made = getattr(module, f"{channel.title()}Platform")()
    return made


def settings_for(platform: Platform, *answers: Any, **rules: Any) -> dict[str, Any]:
    """Settings for one channel: everybody may write to the bot, the room is listed, the agent has a script.

    Nothing is shown in the chat before an answer is complete. Each person has a session.
    """
    block = {
        "dmPolicy": "open",
        "allowFrom": ["*"],
        "streaming": {"mode": "off"},
        "ackReaction": "",
        **platform.settings(),
        **platform.group_rules({}),
        **rules,
    }
    settings: dict[str, Any] = {
        "channels": {platform.name: {k: v for k, v in block.items() if v is not None}},
        "session": {"dmScope": "per-channel-peer"},
        **getattr(platform, "more_settings", dict)(),
    }
    return settings | (script(*answers, session="*") if answers else {})


@asynccontextmanager
async def connected(
    platform: Platform, home: Path, *answers: Any, tools: tuple[Tool, ...] = (), **rules: Any
) -> AsyncIterator[Gateway]:
    """A gateway whose bot is connected to the platform."""
    home.mkdir(exist_ok=True)
    hosted = getattr(platform, "hosted", nullcontext)  # what a platform changes in this process
    with hosted(home):
        async with (
            rehearse(home, settings_for(platform, *answers, **rules), tools=tools) as gateway,
            served(platform, gateway, home),
        ):
            await until(lambda: any(status.state == "connected" for status in gateway.chats.statuses()))
            yield gateway


@asynccontextmanager
async def served(platform: Platform, gateway: Gateway, home: Path) -> AsyncIterator[None]:
    """Open the HTTP server, for platforms that call the gateway. They find its address as commands do."""
    if not hasattr(platform, "gateway_home"):
        yield
        return
    platform.gateway_home = home
    async with open_server(api_services(gateway)) as url:
        with address_file(home, url):
            yield


async def eventually(condition: Callable[[], Awaitable[Any]]) -> None:
    """Poll a condition that needs a question to the gateway."""
    pause_s = 0.005
    async with asyncio.timeout(LIMIT_S):
        while not await condition():
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.1)


async def messages_of(gateway: Gateway) -> list[InboxEvent]:
    """The messages that the gateway received, oldest first, with the verdict on each."""
    return (await gateway.chats.messages())[::-1]


async def verdicts(gateway: Gateway) -> list[str]:
    return [event.state for event in await messages_of(gateway)]


def deliveries_in(home: Path, columns: str = "state") -> list[tuple[Any, ...]]:
    """Deliveries in the order created, also those of a gateway in another process."""
    with closing(sqlite3.connect(f"file:{home / 'hobnob.db'}?mode=ro", uri=True)) as database:
        return database.execute(f"select {columns} from deliveries order by delivery_id").fetchall()


async def settled(home: Path, count: int) -> list[str]:
    """Wait until so many deliveries came to an end. Returns their states."""
    ended = ("delivered", "ambiguous", "failed")

    def states() -> list[str]:
        return [str(state) for (state,) in deliveries_in(home) if state in ended]

    await until(lambda: len(states()) >= count)
    return states()


class GatewayProcess:
    """`hobnob serve` in a process of its own, which kills itself at a crash point."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    def has_connected(self) -> bool:
        return "connected as" in self._log.read_text()

    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def killed(self) -> None:
        """Wait until the crash point was reached."""
        async with asyncio.timeout(LIMIT_S):
            code = await self._process.wait()
        assert code == -signal.SIGKILL, self._log.read_text()[-3000:]


@asynccontextmanager
async def gateway_process(
    home: Path, settings: dict[str, Any], crash_at: str, more_env: dict[str, str] | None = None
) -> AsyncIterator[GatewayProcess]:
    settings = settings | {"gateway": {"port": 0, "auth": {"token": "a-token-for-this-test"}}}
    file = home / "hobnob.json5"
    file.write_text(json.dumps(settings))
    log = home.parent / "serve.log"
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOBNOB_")}
    env |= {"HOBNOB_HOME": str(home), "HOBNOB_CRASH_AT": crash_at, "NO_COLOR": "1"}
    env |= more_env or {}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hobnob", "serve", env=env, stdout=output, stderr=output
        )
    try:
        yield GatewayProcess(process, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
