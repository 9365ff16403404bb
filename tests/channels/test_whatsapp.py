"""WhatsApp by the Cloud API: what is particular to it. The rest is in the contract suite."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.channels.fake_whatsapp import APP_SECRET, TOKEN, VERIFY_TOKEN, error, signed
from tests.channels.gateways import connected, deliveries_in, eventually, messages_of, settled, verdicts
from tests.channels.webhook_caller import Call
from tests.channels.whatsapp_platform import PEOPLE, WhatsAppPlatform
from tests.waiting import until

from hobnob.channels.whatsapp import cloud as cloud_transport
from hobnob.channels.whatsapp import graph
from hobnob.testing import calls


@pytest.fixture
async def whatsapp() -> AsyncIterator[WhatsAppPlatform]:
    platform = WhatsAppPlatform()
    await platform.start()
    yield platform
    await platform.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


async def post(whatsapp: WhatsAppPlatform, call: Call) -> int:
    url = whatsapp.fake.caller.url()
    assert url is not None
    async with aiohttp.ClientSession() as http:
        async with http.post(url, data=call.body, headers=call.headers) as response:
            return response.status


async def challenge(whatsapp: WhatsAppPlatform, token: str) -> tuple[int, str]:
    url = whatsapp.fake.caller.url()
    assert url is not None
    query = {"hub.mode": "subscribe", "hub.verify_token": token, "hub.challenge": "1158201444"}
    async with aiohttp.ClientSession() as http, http.get(url, params=query) as response:
        return response.status, await response.text()


def change(message: dict[str, Any]) -> dict[str, Any]:
    metadata = {"display_phone_number": "15550783881", "phone_number_id": "106540352242922"}
    value = {"messaging_product": "whatsapp", "metadata": metadata, "messages": [message]}
    return {
        "object": "whatsapp_business_account",
        "entry": [{"changes": [{"field": "messages", "value": value}]}],
    }


MESSAGE = {
    "from": PEOPLE["ann"],
    "id": "wamid.x",
    "timestamp": "1700000000",
    "type": "text",
    "text": {"body": "hi"},
}


@pytest.mark.promise("whatsapp.signed_calls")
async def test_the_challenge_is_answered_for_the_right_token_only(
    whatsapp: WhatsAppPlatform, home: Path
) -> None:
    async with connected(whatsapp, home, "Hello."):
        assert await challenge(whatsapp, VERIFY_TOKEN) == (200, "1158201444")
        assert (await challenge(whatsapp, "guessed"))[0] == 403
        assert (await challenge(whatsapp, ""))[0] == 403


@pytest.mark.promise("whatsapp.signed_calls")
async def test_a_call_without_a_valid_signature_is_refused_and_nothing_is_stored(
    whatsapp: WhatsAppPlatform, home: Path
) -> None:
    async with connected(whatsapp, home, "Hello.") as gateway:
        body = signed(change(MESSAGE)).body
        forged = signed(change(MESSAGE), "another-secret").headers
        assert await post(whatsapp, Call(body)) == 401
        assert await post(whatsapp, Call(body, forged)) == 401
        assert await post(whatsapp, Call(body.replace(b"hi", b"ho"), signed(change(MESSAGE)).headers)) == 401
        assert await messages_of(gateway) == []
        assert await post(whatsapp, signed(change(MESSAGE))) == 200
        assert await verdicts(gateway) == ["turn"]


async def test_an_account_that_does_not_exist_has_no_webhook(whatsapp: WhatsAppPlatform, home: Path) -> None:
    async with connected(whatsapp, home, "Hello."):
        url = whatsapp.fake.caller.url()
        assert url is not None
        async with aiohttp.ClientSession() as http:
            for place in ("whatsapp/other", "telegram/default"):
                async with http.post(url.replace("whatsapp/default", place), data=b"{}") as response:
                    assert response.status == 404


@pytest.mark.promise("whatsapp.durable_before_answered")
async def test_calls_to_an_account_that_is_stopped_are_sent_again(
    whatsapp: WhatsAppPlatform, home: Path
) -> None:
    async with connected(whatsapp, home, "Hello.") as gateway:
        gateway.chats.stop_account("whatsapp", None)
        await whatsapp.say("hello")
        await until(lambda: 503 in whatsapp.fake.caller.statuses)
        gateway.chats.start_account("whatsapp", None)
        await whatsapp.posts(1, chat="ann")
        assert await verdicts(gateway) == ["turn"]


@pytest.mark.promise("whatsapp.durable_before_answered")
async def test_events_that_are_not_understood_are_skipped_and_not_sent_again(
    whatsapp: WhatsAppPlatform, home: Path
) -> None:
    async with connected(whatsapp, home, "Hello.") as gateway:
        odd: list[Any] = [
            {},
            {"entry": 7},
            {"entry": [None, {"changes": [3, {"field": "messages", "value": {"metadata": None}}]}]},
            change({"from": "no number", "id": "1", "type": "text"}),
            change(MESSAGE | {"id": "2", "type": "image"}),
            change(MESSAGE | {"id": "3", "type": "unsupported", "errors": [{"code": 131051}]}),
            change(MESSAGE | {"id": "4", "type": "reaction", "reaction": {"message_id": "x", "emoji": "👍"}}),
            change(MESSAGE | {"id": "5", "timestamp": "yesterday"}),
        ]
        for payload in odd:
            assert await post(whatsapp, signed(payload)) == 200
        assert await messages_of(gateway) == []
        await whatsapp.say("hello")
        await whatsapp.posts(1, chat="ann")


async def test_an_event_for_another_number_is_not_ours(whatsapp: WhatsAppPlatform, home: Path) -> None:
    async with connected(whatsapp, home, "Hello.") as gateway:
        whatsapp.fake.call({"messages": [MESSAGE]}, number_id="999")
        await whatsapp.say("hello")
        await whatsapp.posts(1, chat="ann")
        assert len(await messages_of(gateway)) == 1


@pytest.mark.promise("whatsapp.statuses_are_proof")
async def test_a_status_that_comes_later_settles_an_ambiguous_delivery(
    whatsapp: WhatsAppPlatform, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_transport, "PROOF_S", 0.05)
    async with connected(whatsapp, home, "Hello."):
        whatsapp.fake.sends_statuses = False
        whatsapp.lose_receipt_once()
        await whatsapp.say("hello")
        assert await settled(home, 1) == ["ambiguous"]
        whatsapp.fake.status(whatsapp.fake.sent[0], "delivered")
        await until(lambda: deliveries_in(home) == [("delivered",)])


@pytest.mark.promise("whatsapp.statuses_are_proof", "whatsapp.window")
async def test_a_failure_that_is_reported_later_fails_the_delivery(
    whatsapp: WhatsAppPlatform, home: Path
) -> None:
    async with connected(whatsapp, home, "Hello."):
        whatsapp.fake.sends_statuses = False
        await whatsapp.say("hello")
        assert await settled(home, 1) == ["delivered"]
        details = {"code": 131047, "title": "Re-engagement message"}
        whatsapp.fake.status(whatsapp.fake.sent[0], "failed", errors=[details])
        await until(lambda: deliveries_in(home) == [("failed",)])
        [(reason,)] = deliveries_in(home, "error")
        assert "within 24 hours" in reason and "131047" in reason


@pytest.mark.promise("whatsapp.window")
async def test_a_message_outside_of_the_window_fails_with_what_to_do(
    whatsapp: WhatsAppPlatform, home: Path
) -> None:
    whatsapp.fake.failures.append(lambda body: error(131047, "Re-engagement message"))
    async with connected(whatsapp, home, "Hello."):
        await whatsapp.say("hello")
        assert await settled(home, 1) == ["failed"]
        [(reason,)] = deliveries_in(home, "error")
        assert "within 24 hours" in reason and "write again" in reason


async def test_limits_without_a_time_have_a_growing_pause(
    whatsapp: WhatsAppPlatform, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "FIRST_PAUSE_S", 0.3)
    limit = lambda body: error(131056, "pair rate limit hit")  # noqa: E731
    whatsapp.fake.failures += [limit, limit, limit]
    async with connected(whatsapp, home, "Hello."):
        await whatsapp.say("hello")
        await whatsapp.posts(1, chat="ann")
        assert await settled(home, 1) == ["delivered"]
        assert deliveries_in(home, "attempts") == [(1,)]


@pytest.mark.promise("whatsapp.secrets")
async def test_a_refused_token_stops_the_account_and_is_in_no_log(
    whatsapp: WhatsAppPlatform, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    whatsapp.fake.failures.append(lambda body: error(190, "Session has expired", status=401))
    async with connected(whatsapp, home, "Hello.") as gateway:
        await whatsapp.say("hello")
        assert await settled(home, 1) == ["failed"]

        async def is_stopped() -> bool:
            return [status.state for status in gateway.chats.statuses()] == ["stopped"]

        await eventually(is_stopped)
        [status] = gateway.chats.statuses()
        assert "access token" in (status.last_error or "")
    for secret in (TOKEN, APP_SECRET, VERIFY_TOKEN):
        assert secret not in caplog.text


async def test_what_is_not_set_is_named(whatsapp: WhatsAppPlatform, home: Path) -> None:
    cloud = whatsapp.settings()["cloud"] | {"appSecret": None}
    async with connected(whatsapp, home, "Hello.", accounts={"two": {"cloud": cloud}}) as gateway:
        identity, problem = await gateway.chats.probe("whatsapp", "two")
        assert identity is None and problem == "Not set: channels.whatsapp.cloud.appSecret."


async def test_a_probe_tells_the_number_and_the_webhook(whatsapp: WhatsAppPlatform, home: Path) -> None:
    async with connected(whatsapp, home, "Hello.") as gateway:
        identity, problem = await gateway.chats.probe("whatsapp")
        assert identity is not None and (identity.name, problem) == ("Test Shop", None)
        assert identity.detail == "webhook at /channels/whatsapp/default/webhook"


async def test_read_receipts_and_typing_are_off_by_default(whatsapp: WhatsAppPlatform, home: Path) -> None:
    async with connected(whatsapp, home, "Hello."):
        await whatsapp.say("hello")
        await whatsapp.posts(1, chat="ann")
        await settled(home, 1)
        assert whatsapp.fake.read == []


async def test_read_receipts_and_typing_can_be_turned_on(whatsapp: WhatsAppPlatform, home: Path) -> None:
    async with connected(whatsapp, home, "Hello.", sendReadReceipts=True):
        message = await whatsapp.say("hello")
        await whatsapp.fake.until(lambda: bool(whatsapp.fake.read))
        assert whatsapp.fake.read[0]["message_id"] == message
        assert whatsapp.fake.read[0]["typing_indicator"] == {"type": "text"}


async def test_a_message_is_acknowledged_by_a_reaction(whatsapp: WhatsAppPlatform, home: Path) -> None:
    rules = {"ackReaction": "👀"}
    async with connected(whatsapp, home, "Hello.", **rules):
        message = await whatsapp.say("hello", room=True, mention=True)
        await whatsapp.fake.until(lambda: bool(whatsapp.fake.reactions))
        assert whatsapp.fake.reactions[0]["reaction"] == {"message_id": message, "emoji": "👀"}


async def test_markdown_becomes_the_markup_of_whatsapp(whatsapp: WhatsAppPlatform, home: Path) -> None:
    async with connected(
        whatsapp, home, "# Title\n\n**bold** *thin* ~~gone~~ [label](https://a.example) <&>"
    ):
        await whatsapp.say("hello")
        [post] = await whatsapp.posts(1, chat="ann")
        assert post.text == "*Title*\n\n*bold* _thin_ ~gone~ label (https://a.example) <&>"


async def test_an_image_is_sent_as_one(whatsapp: WhatsAppPlatform, home: Path) -> None:
    steps = (
        calls("write", path="dot.png", content="a dot"),
        calls("message", message="Here.", files=["dot.png"]),
        "NO_REPLY",
    )
    async with connected(whatsapp, home, *steps):
        await whatsapp.say("send it")
        await whatsapp.posts(2, chat="ann")
        assert [sent.kind for sent in whatsapp.fake.sent] == ["text", "image"]
