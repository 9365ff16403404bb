"""iMessage: what is particular to `imsg` and to BlueBubbles. The rest is in the contract suite."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests import postgres, stores
from tests.channels.bluebubbles_platform import BluebubblesPlatform
from tests.channels.fake_bluebubbles import PASSWORD
from tests.channels.gateways import (
    connected,
    deliveries_in,
    eventually,
    messages_of,
    served,
    settings_for,
    settled,
    verdicts,
)
from tests.channels.imsg_platform import PEOPLE, ImsgPlatform
from tests.waiting import until

from hobnob.api.server import page_url, read_address_file
from hobnob.channels.imessage import bluebubbles
from hobnob.channels.imessage.attempts import Attempt, Attempts, same_text
from hobnob.config.channels.imessage import IMessageAccount
from hobnob.gateway import Gateway
from hobnob.store import deliveries, open_store
from hobnob.testing import calls, rehearse
from hobnob.types import Delivery


@pytest.fixture
async def mac(tmp_path: Path) -> AsyncIterator[ImsgPlatform]:
    platform = ImsgPlatform(tmp_path)
    await platform.start()
    yield platform
    await platform.stop()


@pytest.fixture
async def server() -> AsyncIterator[BluebubblesPlatform]:
    platform = BluebubblesPlatform()
    await platform.start()
    yield platform
    await platform.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def problem_of(gateway: Gateway) -> str:
    [status] = gateway.chats.statuses()
    return status.last_error or ""


# --- imsg


@pytest.mark.promise("imessage.echo_is_the_receipt")
async def test_the_id_of_a_message_is_that_of_its_echo_where_imsg_names_none(
    mac: ImsgPlatform, home: Path
) -> None:
    (mac.folder / "old").touch()
    async with connected(mac, home, "Hello."):
        await mac.say("hello")
        [answer] = await mac.posts(1, chat="ann")
        assert await settled(home, 1) == ["delivered"]
        assert deliveries_in(home, "external_id") == [(answer.id,)]


@pytest.mark.promise("imessage.echo_is_the_receipt")
async def test_the_same_answer_twice_is_sent_twice(mac: ImsgPlatform, home: Path) -> None:
    async with connected(mac, home, "Yes.", "Yes."):
        await mac.say("first?")
        await mac.posts(1, chat="ann")
        mac.lose_receipt_once()
        await mac.say("second?")
        assert await settled(home, 2) == ["delivered", "delivered"]
        assert [post.text for post in await mac.posts(2, chat="ann")] == ["Yes.", "Yes."]


async def test_a_program_that_dies_is_started_again(mac: ImsgPlatform, home: Path) -> None:
    async with connected(mac, home, "One.", "Two.") as gateway:
        await mac.say("first")
        await mac.posts(1, chat="ann")
        [pid] = [int(file.name.removeprefix("pid-")) for file in mac.folder.glob("pid-*")]
        os.kill(pid, 9)
        await mac.say("second")
        assert [post.text for post in await mac.posts(2, chat="ann")] == ["One.", "Two."]
        assert await verdicts(gateway) == ["turn", "turn"]


async def test_no_program_is_left_behind(mac: ImsgPlatform, home: Path) -> None:
    async with connected(mac, home, "Hello.") as gateway:
        await gateway.chats.probe("imessage")
    for file in mac.folder.glob("pid-*"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.name.removeprefix("pid-")), 0)


async def test_what_was_written_before_the_first_start_is_not_answered(mac: ImsgPlatform, home: Path) -> None:
    await mac.say("long ago")
    async with connected(mac, home, "Hello.") as gateway:
        await mac.say("now")
        await mac.posts(1, chat="ann")
        assert len(await messages_of(gateway)) == 1


async def test_a_message_from_long_ago_that_appears_now_is_skipped(mac: ImsgPlatform, home: Path) -> None:
    async with connected(mac, home, "Hello.") as gateway:
        await mac.say("template")
        await mac.posts(1, chat="ann")
        mac.add(mac.rows()[0] | {"guid": "OLD", "created_at": "2020-01-01T00:00:00.000Z"})
        await mac.say("now")
        await mac.posts(2, chat="ann")
        assert [event.event_id for event in await messages_of(gateway)] == ["IN-1", "IN-2"]


async def test_rows_that_are_not_understood_are_skipped(mac: ImsgPlatform, home: Path) -> None:
    async with connected(mac, home, "Hello.") as gateway:
        row: dict[str, Any] = {
            "guid": "X",
            "sender": PEOPLE["ann"],
            "is_from_me": False,
            "text": "hi",
            "chat_id": 1,
            "chat_identifier": PEOPLE["ann"],
            "chat_guid": "iMessage;-;x",
            "is_group": False,
            "created_at": "2026-01-01T00:00:00.000Z",
        }
        for change in ({"created_at": "yesterday"}, {"sender": ""}, {"chat_id": None}, {"is_reaction": True}):
            mac.add(row | change)
        await mac.say("hello")
        await mac.posts(1, chat="ann")
        assert len(await messages_of(gateway)) == 1


@pytest.mark.promise("imessage.files_of_messages_only")
async def test_a_file_outside_of_the_folders_of_messages_is_not_read(mac: ImsgPlatform, home: Path) -> None:
    secret = mac.folder / "secret.txt"
    secret.write_text("not for the agent")
    async with connected(mac, home, "Hello."):
        await mac.say("read this", file=("note.txt", b"x"))
        await mac.posts(1, chat="ann")
        row = [row for row in mac.rows() if not row["is_from_me"]][-1]
        climbing = f"{mac.folder}/Attachments/../secret.txt"
        for number, path in enumerate((str(secret), climbing)):
            about = row["attachments"][0] | {"original_path": path, "transfer_name": "secret.txt"}
            mac.add(row | {"guid": f"F{number}", "attachments": [about]})
            await mac.posts(2 + number, chat="ann")
        assert list(home.rglob("secret.txt")) == []


async def test_files_are_received_only_if_that_is_wanted(mac: ImsgPlatform, home: Path) -> None:
    async with connected(mac, home, "Hello.", includeAttachments=False):
        await mac.say("read this", file=("note.txt", b"x"))
        await mac.posts(1, chat="ann")
        assert list(home.rglob("note.txt")) == []


async def test_a_program_that_is_not_there_stops_the_account_and_is_told(
    mac: ImsgPlatform, home: Path
) -> None:
    home.mkdir()

    settings = settings_for(mac, "Hello.", cliPath="/nowhere/imsg")
    async with rehearse(home, settings) as gateway:

        async def is_stopped() -> bool:
            return [status.state for status in gateway.chats.statuses()] == ["stopped"]

        await eventually(is_stopped)
        assert "/nowhere/imsg cannot be started: No such file" in problem_of(gateway)


@pytest.mark.promise("imessage.over_ssh")
async def test_messages_and_files_work_over_ssh(
    mac: ImsgPlatform, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program `ssh` stands in: it notes its arguments and has a shell read the command, as sshd does."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program = bin_folder / "ssh"
    noted = shlex.quote(str(tmp_path / "hosts"))
    program.write_text(
        f'#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\necho "$1" >> {noted}\nexec sh -c "$2"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")

    steps = (
        calls("write", path="a b's.txt", content="what we found"),
        calls("message", message="Here it is.", files=["a b's.txt"]),
        "NO_REPLY",
    )
    async with connected(mac, home, *steps, remoteHost="me@mac.example"):
        await mac.say("read it; it's $HOME", file=("it's a note.txt", b"from the mac"))
        posts = await mac.posts(2, chat="ann")
        assert [(post.text, post.file) for post in posts] == [("Here it is.", None), ("", b"what we found")]
        assert [file.read_bytes() for file in home.rglob("*note*.txt")] == [b"from the mac"]
    assert set((tmp_path / "hosts").read_text().splitlines()) == {"me@mac.example"}


async def test_a_host_that_is_an_option_of_ssh_is_refused() -> None:

    with pytest.raises(ValueError, match="does not begin with"):
        IMessageAccount.model_validate({"remoteHost": "-oProxyCommand=touch /tmp/x"})


def test_an_attempt_is_kept_until_its_message_is_known(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    assert attempts.of("d:0") is None
    attempts.note("d:0", Attempt(7))
    attempts.note("d:0", Attempt(7, "GUID"))
    assert Attempts(tmp_path).of("d:0") == Attempt(7, "GUID")
    assert attempts.of("d:1") is None
    old = next((tmp_path / "attempts").iterdir())
    os.utime(old, (time.time() - 10 * 86_400,) * 2)
    attempts.forget_old()
    assert attempts.of("d:0") is None


def test_texts_are_compared_without_white_space_and_marks_of_files() -> None:
    assert same_text("a  b\nc", "a b c \ufffc")
    assert not same_text("a b", "a c")


# --- BlueBubbles


async def hook(server: BluebubblesPlatform, secret: str, payload: Any) -> int:
    assert server.gateway_home is not None
    address = read_address_file(server.gateway_home, None)
    assert address is not None
    url = f"{page_url(address)}/channels/imessage/default/webhook?secret={secret}"
    async with aiohttp.ClientSession() as http, http.post(url, json=payload) as response:
        return response.status


@pytest.mark.promise("imessage.webhooks_have_a_secret")
async def test_calls_without_the_secret_are_refused(server: BluebubblesPlatform, home: Path) -> None:
    message = {
        "guid": "FORGED",
        "text": "hi",
        "handle": {"address": PEOPLE["ann"]},
        "chats": [{"guid": f"iMessage;-;{PEOPLE['ann']}", "style": 45}],
        "dateCreated": int(time.time() * 1000),
        "isFromMe": False,
    }
    async with connected(server, home, "Hello.") as gateway:
        [webhook] = server.fake.webhooks.values()
        secret = webhook["url"].partition("secret=")[2]
        assert len(secret) > 40 and secret != PASSWORD
        payload = {"type": "new-message", "data": message}
        for wrong in ("", "x", PASSWORD):
            assert await hook(server, wrong, payload) == 401
        assert await messages_of(gateway) == []
        assert await hook(server, secret, payload) == 200
        assert [event.event_id for event in await messages_of(gateway)] == ["FORGED"]
        odd: list[Any] = [{"type": "typing-indicator"}, {"type": "new-message", "data": 7}]
        odd += [{"type": "new-message", "data": {"guid": 1}}, {"type": "new-message", "data": {}}]
        for each in odd:
            assert await hook(server, secret, each) == 200


@pytest.mark.promise("imessage.webhooks_have_a_secret")
async def test_the_webhook_is_registered_once_with_a_secret_that_is_kept(
    server: BluebubblesPlatform, home: Path
) -> None:
    server.fake.webhooks[1000] = {"id": 1000, "url": "http://other.example/hook", "events": ["*"]}
    async with connected(server, home, "Hello."):
        first = [each["url"] for each in server.fake.webhooks.values()]
    async with connected(server, home, "Hello."):
        assert [each["url"] for each in server.fake.webhooks.values()] == first
    file = home / "channels" / "imessage" / "default" / "webhook-secret"
    assert file.stat().st_mode & 0o777 == 0o600
    file.unlink()
    async with connected(server, home, "Hello."):
        other, own = [each["url"] for each in server.fake.webhooks.values()]
        assert other == "http://other.example/hook" and own not in first


@pytest.mark.promise("imessage.missed_messages_are_asked_for")
async def test_messages_arrive_without_webhooks(
    server: BluebubblesPlatform, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bluebubbles, "POLL_S", 0.05)
    settings = server.settings()["bluebubbles"] | {"webhookUrl": None}
    async with connected(server, home, "One.", "Two.", bluebubbles=settings) as gateway:
        assert server.fake.webhooks == {}
        await server.say("first")
        await server.posts(1, chat="ann")
        await server.say("second")
        assert [post.text for post in await server.posts(2, chat="ann")] == ["One.", "Two."]
        assert await verdicts(gateway) == ["turn", "turn"]


@pytest.mark.promise("imessage.missed_messages_are_asked_for")
async def test_many_missed_messages_are_asked_for_page_by_page(
    server: BluebubblesPlatform, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bluebubbles, "_PAGE", 3)
    async with connected(server, home, "Hello."):
        await server.say("first")
        await server.posts(1, chat="ann")
    for number in range(10):
        await server.say(f"missed {number}", room=True)
    async with connected(server, home, "Hello.") as gateway:

        async def are_there() -> bool:
            return len(await messages_of(gateway)) == 11

        await eventually(are_there)


@pytest.mark.promise("imessage.echo_is_the_receipt")
async def test_a_lost_receipt_of_bluebubbles_is_found_by_its_text_after_the_attempt(
    server: BluebubblesPlatform, home: Path
) -> None:
    async with connected(server, home, "Yes.", "Yes."):
        await server.say("first?")
        await server.posts(1, chat="ann")
        server.lose_receipt_once()
        await server.say("second?")
        assert await settled(home, 2) == ["delivered", "delivered"]
        first, second = [post.id for post in await server.posts(2, chat="ann")]
        assert deliveries_in(home, "external_id") == [(first,), (second,)]


@pytest.mark.skipif(stores.ON_POSTGRES, reason="opens a database by itself")
@pytest.mark.parametrize("state", ["sending", "pending"])  # it was killed, or it waited for its next attempt
@pytest.mark.parametrize(
    ("files", "noted", "outcome", "sent"),
    [
        pytest.param("shared", False, "delivered", 1, id="not sent, there would be a note"),
        pytest.param("local", False, "ambiguous", 0, id="unknown, the note may be on another disk"),
        pytest.param("local", True, "delivered", 1, id="not sent, it is not there after what was noted"),
    ],
)
async def test_what_an_earlier_gateway_may_have_sent_is_sent_again_only_if_its_notes_show_that_it_was_not(
    server: BluebubblesPlatform, home: Path, state: str, files: str, noted: bool, outcome: str, sent: int
) -> None:
    url = postgres.new_database()
    person = server.user_id("ann")
    delivery = Delivery(session_key="agent:main:main", channel="imessage", recipient=person, text="Yes.")
    async with open_store(url) as store:
        await store.write(deliveries.create, delivery)
        earlier = "one that is gone"
        claimed = await store.write(deliveries.claim, delivery, [{"text": "Yes."}], gateway_id=earlier)
        if state == "pending":
            await store.write(deliveries.settle, claimed, "pending", tried_by=earlier)
    home.mkdir()
    if noted:
        Attempts(home / "channels" / "imessage" / "default").note(f"{delivery.delivery_id}:0", Attempt(0))
    settings = settings_for(server) | {"store": {"url": url, "files": files}}
    async with rehearse(home, settings) as gateway, served(server, gateway, home):
        stored = f"select state from deliveries where delivery_id = '{delivery.delivery_id}'"
        await until(lambda: postgres.execute(url, stored) == [(outcome,)])
    assert sum(message["isFromMe"] for message in server.fake.messages) == sent


async def test_typing_is_shown_with_the_private_api_only(server: BluebubblesPlatform, home: Path) -> None:
    server.fake.private_api = True
    async with connected(server, home, "Hello."):
        await server.say("hello")
        await server.fake.until(lambda: bool(server.fake.typing))
        assert server.fake.typing[0] == f"iMessage;-;{PEOPLE['ann']}"


async def test_a_wrong_password_stops_the_account_and_is_in_no_log(
    server: BluebubblesPlatform, home: Path, caplog: pytest.LogCaptureFixture
) -> None:

    caplog.set_level(logging.DEBUG)
    home.mkdir()
    wrong = server.settings()["bluebubbles"] | {"password": "a-wrong-password"}
    async with rehearse(home, settings_for(server, "Hello.", bluebubbles=wrong)) as gateway:

        async def is_stopped() -> bool:
            return [status.state for status in gateway.chats.statuses()] == ["stopped"]

        await eventually(is_stopped)
        assert "does not accept the password" in problem_of(gateway)
        await server.stop()
        gateway.chats.start_account("imessage", None)
        await until(lambda: "cannot be reached" in problem_of(gateway))
        await server.start()
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("hobnob")]
    assert ours and "a-wrong-password" not in "\n".join(ours)


async def test_what_is_not_set_is_named(server: BluebubblesPlatform, home: Path) -> None:
    accounts = {"two": {"bluebubbles": {"serverUrl": server.fake.url}}}
    async with connected(server, home, "Hello.", accounts=accounts) as gateway:
        _, problem = await gateway.chats.probe("imessage", "two")
        assert problem == "Not set: channels.imessage.bluebubbles.password."
