"""`hobnob channels` and `hobnob doctor` as a person uses them, with the fake of Telegram."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.channels.fake_telegram import TOKEN
from tests.channels.gateways import connected, settled
from tests.channels.telegram_platform import TelegramPlatform
from tests.waiting import LIMIT_S


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramPlatform]:
    platform = TelegramPlatform()
    await platform.start()
    yield platform
    await platform.stop()


async def hobnob(
    home: Path, *words: str, answers: str = "", code: int = 0, env: dict[str, str] | None = None
) -> str:
    """Run a command. Returns what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOBNOB_")}
    env = kept | {"HOBNOB_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200"} | (env or {})
    pipe, merged = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hobnob", *words, env=env, stdin=pipe, stdout=pipe, stderr=merged
    )
    async with asyncio.timeout(LIMIT_S):
        output, _ = await process.communicate(answers.encode())
    assert process.returncode == code, output.decode()
    return output.decode()


def configure(home: Path, telegram: TelegramPlatform) -> Path:
    home.mkdir(mode=0o700, exist_ok=True)
    file = home / "hobnob.json5"
    channels = {"telegram": {"apiRoot": telegram.fake.url}}
    file.write_text(json.dumps({"channels": channels, "gateway": {"port": 0}}))
    return file


async def test_a_channel_is_set_up_by_its_token(telegram: TelegramPlatform, tmp_path: Path) -> None:
    file = configure(tmp_path / "home", telegram)
    output = await hobnob(file.parent, "channels", "add", "telegram", answers=f"{TOKEN}\n")
    assert "The platform knows the bot as @hobnob_test_bot." in output
    assert "hobnob pairing approve telegram CODE" in output
    assert TOKEN in file.read_text() and TOKEN not in output


async def test_a_token_that_is_not_accepted_is_not_written(
    telegram: TelegramPlatform, tmp_path: Path
) -> None:
    file = configure(tmp_path / "home", telegram)
    output = await hobnob(file.parent, "channels", "add", "telegram", answers="1:abc\n", code=1)
    assert "does not accept the bot token" in output
    assert "1:abc" not in file.read_text()


async def test_a_refused_message_of_a_group_is_explained(telegram: TelegramPlatform, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with connected(telegram, home, "Hello.", groups=None):
        await telegram.say("hello", room=True, mention=True)
        await telegram.say("hello")
        await settled(home, 1)
    listed = await hobnob(home, "channels", "messages")
    [event] = [line.split()[0] for line in listed.splitlines() if "refused (" in line]
    assert "hobnob channels explain EVENT" in listed
    explained = await hobnob(home, "channels", "explain", event)
    assert f"hobnob config set channels.telegram.groups.{telegram.room_id()}" in explained


async def test_doctor_asks_the_platform_only_when_told_to(telegram: TelegramPlatform, tmp_path: Path) -> None:
    home = configure(tmp_path / "home", telegram).parent
    await hobnob(home, "channels", "add", "telegram", answers=f"{TOKEN}\n")
    telegram.fake.calls.clear()
    assert "channels  telegram\n" in await hobnob(home, "doctor")
    assert not telegram.fake.calls
    assert "channels  telegram: @hobnob_test_bot" in await hobnob(home, "doctor", "--online")
    telegram.fake.token = "1:other"
    output = await hobnob(home, "doctor", "--online", code=1)
    assert "telegram does not work: Telegram does not accept the bot token" in output
