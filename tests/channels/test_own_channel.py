"""A channel of a user's own, as docs/channels/own.md shows it: set up by command, treated like others."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.channels.gateways import connected, eventually, messages_of
from tests.channels.json_lines_platform import JsonLinesPlatform, example
from tests.channels.test_commands import hobnob
from tests.waiting import until

pytestmark = pytest.mark.promise("channels.own")


@pytest.fixture
async def pager(tmp_path: Path) -> AsyncIterator[JsonLinesPlatform]:
    platform = JsonLinesPlatform(tmp_path)
    await platform.start()
    yield platform
    await platform.stop()


def options(pager: JsonLinesPlatform) -> list[str]:
    settings = pager.settings()
    return [f"--set=module={settings['module']}", f"--set=options.socket={settings['options']['socket']}"]


def test_the_example_is_short_enough_to_read() -> None:
    lines = [line for line in example().splitlines() if line.strip()]
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 110


async def test_it_is_set_up_by_command(pager: JsonLinesPlatform, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    output = await hobnob(home, "channels", "add", "pager", *options(pager))
    assert "The platform knows the bot as Bot." in output
    assert "hobnob pairing approve pager CODE" in output
    assert "pager.sock" in (home / "hobnob.json5").read_text()


async def test_a_server_that_is_not_there_is_told_and_nothing_is_written(
    pager: JsonLinesPlatform, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    await pager.stop()
    output = await hobnob(home, "channels", "add", "pager", *options(pager), code=1)
    assert "No such file" in output
    assert not (home / "hobnob.json5").exists()
    await pager.start()


async def test_an_unknown_name_without_a_module_is_refused_with_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    output = await hobnob(tmp_path, "channels", "add", "pager", code=2)
    assert "hobnob channels add NAME --set module=" in output


async def test_it_can_be_probed(pager: JsonLinesPlatform, tmp_path: Path) -> None:
    async with connected(pager, tmp_path / "home", "Hello.") as gateway:
        identity, problem = await gateway.chats.probe("pager")
        assert identity is not None and (identity.name, problem) == ("Bot", None)


async def test_a_refusal_names_the_setting_of_the_channel(pager: JsonLinesPlatform, tmp_path: Path) -> None:
    rules = {"dmPolicy": "allowlist", "allowFrom": ["ann"]}
    async with connected(pager, tmp_path / "home", "Hello.", **rules) as gateway:
        await pager.say("let me in", sender="eve")
        await pager.say("hello")
        await pager.posts(1, chat="ann")
        refused, admitted = await messages_of(gateway)
        assert (refused.state, refused.code, admitted.state) == ("refused", "access.sender", "turn")
        assert "channels.pager.allowFrom" in (refused.fix or "")
        assert await pager.posts(0, chat="eve") == []


async def test_lines_that_are_not_understood_are_skipped(pager: JsonLinesPlatform, tmp_path: Path) -> None:
    async with connected(pager, tmp_path / "home", "Hello.") as gateway:
        for line in ([], {"id": "x"}, {"sent": "unknown"}, 7, {"id": "y", "from": "ann", "text": None}):
            pager.push(line)
        pager.push_bytes(b"no JSON\n")
        await pager.say("hello")
        await pager.posts(1, chat="ann")
        [status] = gateway.chats.statuses()
        assert (status.state, status.reconnects) == ("connected", 0)


async def test_a_server_that_is_gone_is_no_fault_of_the_channel(
    pager: JsonLinesPlatform, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(pager, tmp_path / "home", "Hello.") as gateway:
        await pager.stop()
        await until(lambda: "No such file" in (gateway.chats.statuses()[0].last_error or ""))
        await pager.start()
        await until(lambda: gateway.chats.statuses()[0].state == "connected")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_file_that_others_can_write_to_is_not_loaded(
    pager: JsonLinesPlatform, tmp_path: Path
) -> None:
    Path(pager.settings()["module"]).chmod(0o666)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    settings = {"channels": {"pager": pager.settings()}}
    (home / "hobnob.json5").write_text(json.dumps(settings))
    output = await hobnob(home, "channels", "add", "pager", *options(pager), code=1)
    assert "other users can write to" in output


async def test_another_account_is_another_connection(pager: JsonLinesPlatform, tmp_path: Path) -> None:
    accounts = {"one": {}, "two": {"enabled": True}}
    async with connected(pager, tmp_path / "home", "Hello.", accounts=accounts) as gateway:

        async def are_connected() -> bool:
            return {s.account_id: s.state for s in gateway.chats.statuses()} == {
                "default": "connected",
                "one": "connected",
                "two": "connected",
            }

        await eventually(are_connected)
