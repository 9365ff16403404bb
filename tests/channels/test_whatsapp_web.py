"""WhatsApp Web: the events of the library neonize, and the channel with a fake of what the library calls."""

from __future__ import annotations

import base64
import gc
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("neonize", reason="the extra whatsapp-web is not installed", exc_type=ImportError)

from neonize.aioze import events
from neonize.proto import Neonize_pb2 as proto
from neonize.proto.waE2E import WAWebProtobufsE2E_pb2 as e2e
from neonize.utils.enum import ReceiptType
from neonize.utils.jid import build_jid
from tests.channels.fake_whatsapp_web import OWN_HIDDEN, OWN_NUMBER, FakeWhatsAppWeb, link, message
from tests.channels.gateways import deliveries_in, eventually, messages_of, settled
from tests.waiting import until

from hobnob.channels.whatsapp import web, web_events, web_session
from hobnob.channels.whatsapp.web_events import Own
from hobnob.gateway import Gateway
from hobnob.testing import calls, rehearse, script

OWN = Own(frozenset([OWN_NUMBER, OWN_HIDDEN]))
GROUP = "120363025246125486"
PLACE = e2e.LocationMessage(degreesLatitude=1.5, name="Home")


@pytest.fixture
async def phone() -> AsyncIterator[FakeWhatsAppWeb]:
    made = FakeWhatsAppWeb()
    await made.start()
    with made.installed():
        yield made
    await made.stop()


@asynccontextmanager
async def running(
    home: Path, *answers: Any, linked: bool = True, rules: dict[str, Any] | None = None
) -> AsyncIterator[Gateway]:
    """A gateway with an account that was linked before."""
    home.mkdir(exist_ok=True)
    if linked:
        link(home)
    block = {"dmPolicy": "open", "allowFrom": ["*"], "ackReaction": "", "groups": {f"{GROUP}@g.us": {}}}
    settings: dict[str, Any] = {"channels": {"whatsapp": block | (rules or {})}}
    async with rehearse(home, settings | script(*answers, session="*")) as gateway:
        if linked:
            await until(lambda: gateway.chats.statuses()[0].state == "connected")
        yield gateway


def jid(serialized: bytes) -> str:
    found = proto.JID.FromString(serialized)
    return f"{found.User}@{found.Server}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


# --- Events of the library


async def test_a_text_is_from_a_number() -> None:
    event = message("hello")
    found = web_events.translate(event, OWN)
    assert found is not None
    assert (found.sender.id, found.sender.name, found.text) == ("+15550001001", "Ann", "hello")
    assert (found.chat_type, found.chat_id, found.address.to) == ("direct", "+15550001001", "+15550001001")
    assert found.at_ms == event.Info.Timestamp * 1000
    assert found.event_id == f"+15550001001:15550001001:{found.message_id}"


async def test_a_hidden_sender_is_known_by_the_number_if_that_is_told() -> None:
    hidden = build_jid("5551", "lid")
    found = web_events.translate(
        message("hi", Sender=hidden, SenderAlt=build_jid("15550001001"), Chat=hidden), OWN
    )
    assert found is not None
    assert (found.sender.id, found.sender.aliases) == ("+15550001001", ("5551@lid",))
    assert (found.chat_id, found.address.to) == ("+15550001001", "5551@lid")
    unknown = web_events.translate(message("hi", Sender=hidden, Chat=hidden), OWN)
    assert unknown is not None and unknown.sender.id == "5551@lid"


@pytest.mark.parametrize(
    "own", [f"{OWN_NUMBER}@s.whatsapp.net", f"{OWN_HIDDEN}@lid", f"{OWN_NUMBER}:3@s.whatsapp.net"]
)
async def test_a_mention_in_a_group_is_recognised_by_number_and_by_hidden_id(own: str) -> None:
    context = e2e.ContextInfo(mentionedJID=[own])
    text = e2e.ExtendedTextMessage(text="@bot hi", contextInfo=context)
    found = web_events.translate(message(e2e.Message(extendedTextMessage=text), group=GROUP), OWN, "The room")
    assert found is not None and found.mentioned is True
    assert (found.chat_id, found.chat_name, found.chat_type) == (f"{GROUP}@g.us", "The room", "group")
    other = web_events.translate(message("hi", group=GROUP), OWN)
    assert other is not None and other.mentioned is False


async def test_a_quote_of_our_own_message_is_recognised() -> None:
    context = e2e.ContextInfo(
        stanzaID="3EB0X",
        participant=f"{OWN_NUMBER}@s.whatsapp.net",
        quotedMessage=e2e.Message(conversation="what I said"),
    )
    text = e2e.ExtendedTextMessage(text="why?", contextInfo=context)
    found = web_events.translate(message(e2e.Message(extendedTextMessage=text)), OWN)
    assert found is not None and found.quote is not None
    assert (found.quote.message_id, found.quote.text, found.quote.own) == ("3EB0X", "what I said", True)


async def test_messages_that_vanish_are_unwrapped() -> None:
    inner = e2e.Message(conversation="inside")
    once = e2e.Message(viewOnceMessage=e2e.FutureProofMessage(message=inner))
    found = web_events.translate(
        message(e2e.Message(ephemeralMessage=e2e.FutureProofMessage(message=once))), OWN
    )
    assert found is not None and found.text == "inside"


async def test_a_file_has_a_reference_that_the_library_can_download() -> None:
    image = e2e.ImageMessage(
        caption="look",
        mimetype="image/jpeg",
        directPath="/v/t62",
        mediaKey=b"k" * 32,
        fileLength=7,
        JPEGThumbnail=b"t" * 5000,
    )
    found = web_events.translate(message(e2e.Message(imageMessage=image)), OWN)
    assert found is not None and found.text == "look"
    [media] = found.media
    assert (media.kind, media.mime_type, media.size) == ("image", "image/jpeg", 7)
    kept = e2e.Message.FromString(base64.b64decode(media.ref)).imageMessage
    assert (kept.directPath, kept.mediaKey, kept.JPEGThumbnail) == ("/v/t62", b"k" * 32, b"")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (e2e.Message(locationMessage=PLACE), "(location: 1.5, 0.0 Home)"),
        (e2e.Message(contactMessage=e2e.ContactMessage(displayName="Bob")), "(contact: Bob)"),
        (e2e.Message(listResponseMessage=e2e.ListResponseMessage(title="First")), "First"),
    ],
)
async def test_other_kinds_of_messages_become_texts(content: Any, text: str) -> None:
    found = web_events.translate(message(content), OWN)
    assert found is not None and found.text == text


async def test_what_is_not_for_us_is_skipped() -> None:
    reaction = e2e.Message(reactionMessage=e2e.ReactionMessage(text="👍"))
    edited = message("changed")
    edited.IsEdit = True
    skipped = [
        message("mine", IsFromMe=True),
        message("a status", Chat=build_jid("status", "broadcast")),
        message("news", Chat=build_jid("1", "newsletter")),
        message(reaction),
        message(""),
        edited,
        events.MessageEv(),
    ]
    assert [web_events.translate(event, OWN) for event in skipped] == [None] * 7


# --- The channel


async def test_a_message_is_answered_in_its_chat(phone: FakeWhatsAppWeb, home: Path) -> None:
    async with running(home, "**Hello.**"):
        await phone.say("hi")
        [(to, answer)] = await phone.posts(1)
        assert (to.User, to.Server, answer.conversation) == ("15550001001", "s.whatsapp.net", "*Hello.*")
        assert await settled(home, 1) == ["delivered"]
        assert deliveries_in(home, "external_id") == [("3EB0OUT1",)]


async def test_a_group_is_answered_when_the_bot_is_mentioned(phone: FakeWhatsAppWeb, home: Path) -> None:
    async with running(home, "Hello.", rules={"replyToMode": "all"}) as gateway:
        await phone.say("not for you", group=GROUP)
        context = e2e.ContextInfo(mentionedJID=[f"{OWN_HIDDEN}@lid"])
        text = e2e.ExtendedTextMessage(text="@99887766 hi", contextInfo=context)
        asked = await phone.say(e2e.Message(extendedTextMessage=text), group=GROUP)
        [(to, answer)] = await phone.posts(1)
        assert (to.User, to.Server) == (GROUP, "g.us")
        quoted = answer.extendedTextMessage.contextInfo
        assert (quoted.stanzaID, quoted.participant) == (asked, "15550001001@s.whatsapp.net")
        assert [event.state for event in await messages_of(gateway)] == ["shown", "turn"]


async def test_the_same_message_twice_starts_one_turn(phone: FakeWhatsAppWeb, home: Path) -> None:
    async with running(home, "One.", "Two.") as gateway:
        event = message("hi")
        await phone.deliver(event)
        await phone.deliver(event)
        await phone.posts(1)
        await phone.say("bye")
        await phone.posts(2)
        assert len(await messages_of(gateway)) == 2


async def test_files_go_both_ways(phone: FakeWhatsAppWeb, home: Path) -> None:
    steps = (
        calls("write", path="report.txt", content="what we found"),
        calls("message", message="Here.", files=["report.txt"]),
        "NO_REPLY",
    )
    async with running(home, *steps):
        phone.uploads["/v/in"] = b"what is in the note"
        about = e2e.DocumentMessage(
            directPath="/v/in", fileName="note.txt", mimetype="text/plain", fileLength=19, caption="read it"
        )
        await phone.say(e2e.Message(documentMessage=about))
        (_, text), (_, file) = await phone.posts(2)
        assert text.conversation == "Here."
        assert file.documentMessage.fileName == "report.txt"
        assert phone.uploads[file.documentMessage.directPath] == b"what we found"
        assert [found.read_bytes() for found in home.rglob("note.txt")] == [b"what is in the note"]


async def test_an_image_that_is_none_is_sent_as_a_document(phone: FakeWhatsAppWeb, home: Path) -> None:
    steps = (
        calls("write", path="dot.png", content="no image"),
        calls("message", message="Here.", files=["dot.png"]),
        "NO_REPLY",
    )
    async with running(home, *steps):
        await phone.say("send it")
        (_, _), (_, file) = await phone.posts(2)
        assert file.documentMessage.fileName == "dot.png"


async def test_a_message_is_acknowledged_and_typing_shown(phone: FakeWhatsAppWeb, home: Path) -> None:
    rules = {"ackReaction": "👀", "groups": {f"{GROUP}@g.us": {"requireMention": False}}}
    async with running(home, "Hello.", rules=rules):
        context = e2e.ContextInfo(mentionedJID=[f"{OWN_NUMBER}@s.whatsapp.net"])
        text = e2e.ExtendedTextMessage(text="hi", contextInfo=context)
        asked = await phone.say(e2e.Message(extendedTextMessage=text), group=GROUP)
        chat, _, sender, _, message_id, emoji = await phone.called("BuildReaction")
        assert (jid(chat), jid(sender)) == (f"{GROUP}@g.us", "15550001001@s.whatsapp.net")
        assert (message_id.decode(), emoji.decode()) == (asked, "👀")
        await phone.called("SendChatPresence")


async def test_read_receipts_are_sent_only_if_that_is_wanted(phone: FakeWhatsAppWeb, home: Path) -> None:
    async with running(home / "one", "Hello."):
        await phone.say("hi")
        await phone.posts(1)
        await phone.called("SendChatPresence")
        assert "MarkRead" not in [name for name, _ in phone.calls]
    async with running(home / "two", "Hello.", rules={"sendReadReceipts": True}):
        asked = await phone.say("hi")
        message_id, _, chat, _, _, _, receipt = await phone.called("MarkRead")
        assert (message_id.decode(), receipt) == (asked, ReceiptType.READ.value)
        assert jid(chat) == "15550001001@s.whatsapp.net"


async def test_an_unconfirmed_message_is_ambiguous_and_not_sent_again(
    phone: FakeWhatsAppWeb, home: Path
) -> None:
    phone.trouble.append("failed to send: timed out waiting for message send response")
    async with running(home, "One.", "Two."):
        await phone.say("first")
        assert await settled(home, 1) == ["ambiguous"]
        await phone.say("second")
        assert [answer.conversation for _, answer in await phone.posts(1)] == ["Two."]


async def test_a_message_waits_while_whatsapp_is_not_connected(phone: FakeWhatsAppWeb, home: Path) -> None:
    phone.trouble.append("failed to send message node: websocket not connected")
    async with running(home, "Hello."):
        await phone.say("hi")
        await phone.posts(1)
        assert await settled(home, 1) == ["delivered"]
        assert deliveries_in(home, "attempts") == [(1,)]


@pytest.mark.parametrize(
    ("event", "state", "words"),
    [
        (events.LoggedOutEv(), "stopped", "The phone has removed this device"),
        (events.TemporaryBanEv(Code=1), "stopped", "banned"),
        (events.ClientOutdatedEv(), "stopped", "pip install --upgrade neonize"),
        (
            events.StreamReplacedEv(),
            "reconnecting",
            "uses the same login",
        ),
        (
            events.ConnectFailureEv(Message="down"),
            "reconnecting",
            "connection: down",
        ),
    ],
)
async def test_the_end_of_a_login_stops_the_account_and_other_ends_do_not(
    phone: FakeWhatsAppWeb, home: Path, event: Any, state: str, words: str
) -> None:
    async with running(home, "Hello.") as gateway:
        seen: list[str] = []

        async def is_told() -> bool:
            status = gateway.chats.statuses()[0]
            seen.append(f"{status.state} {status.last_error}")
            return any(each.startswith(state) and words in each for each in seen)

        await phone.emit(event)
        await eventually(is_told)


async def test_a_lost_connection_is_made_again(phone: FakeWhatsAppWeb, home: Path) -> None:
    async with running(home, "Hello.") as gateway:
        await phone.end_client("the native part has ended")
        await until(lambda: gateway.chats.statuses()[0].reconnects == 1)
        await until(lambda: gateway.chats.statuses()[0].state == "connected")
        gc.collect()  # the library ends the client of an id when an older one is forgotten
        await phone.say("hi")
        await phone.posts(1)
        assert gateway.chats.statuses()[0].reconnects == 1


async def test_an_account_is_offline_when_the_library_cannot_connect_again(
    phone: FakeWhatsAppWeb, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "RECONNECT_S", 0.2)
    async with running(home, "Hello.") as gateway:
        await phone.stop()
        await until(lambda: gateway.chats.statuses()[0].state == "reconnecting")
        await phone.start()
        await until(lambda: gateway.chats.statuses()[0].state == "connected")


# --- Login


async def rpc(gateway: Gateway, method: str, **params: Any) -> dict[str, Any]:
    from hobnob.cli.connection import LocalGateway

    return await LocalGateway(gateway).call(method, **params)


@pytest.mark.promise("whatsapp.linked_by_code")
async def test_a_phone_is_linked_by_a_code_that_changes(phone: FakeWhatsAppWeb, home: Path) -> None:
    phone.linked = False
    async with running(home, "Hello.", linked=False) as gateway:
        await until(lambda: gateway.chats.statuses()[0].state == "stopped")
        assert "hobnob channels login whatsapp" in (gateway.chats.statuses()[0].last_error or "")
        first = await rpc(gateway, "web.login.start")
        assert (first["state"], first["qr"]) == ("scan", "2@first-code,abc,def")
        assert {len(row) for row in first["qrModules"]} == {len(first["qrModules"])}
        await phone.show_code("2@second-code")
        second = await rpc(gateway, "web.login.wait", qr=first["qr"])
        assert second["qr"] == "2@second-code"
        await phone.link()
        done = await rpc(gateway, "web.login.wait", qr=second["qr"])
        assert (done["connected"], done["message"]) == (True, "Linked as Hobnob.")
        await until(lambda: gateway.chats.statuses()[0].state == "connected")
        await phone.say("hi")
        await phone.posts(1)
    database = home / "channels" / "whatsapp" / "default" / "whatsapp.db"
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700


async def test_a_code_that_nobody_scans_ends_the_login(
    phone: FakeWhatsAppWeb, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "LOGIN_S", 0.3)
    phone.linked = False
    async with running(home, "Hello.", linked=False) as gateway:
        await until(lambda: gateway.chats.statuses()[0].state == "stopped")
        first = await rpc(gateway, "web.login.start")
        ended = await rpc(gateway, "web.login.wait", qr=first["qr"])
        assert (ended["state"], "not scanned in time" in ended["message"]) == ("failed", True)


async def test_a_logout_tells_the_phone_and_removes_the_keys(phone: FakeWhatsAppWeb, home: Path) -> None:
    async with running(home, "Hello.") as gateway:
        database = home / "channels" / "whatsapp" / "default" / "whatsapp.db"
        assert database.exists()
        await gateway.chats.logout("whatsapp", None)
        await phone.called("Logout")
        assert not database.exists()


async def test_without_a_login_a_probe_says_what_to_do(phone: FakeWhatsAppWeb, home: Path) -> None:
    phone.linked = False
    async with running(home, "Hello.", linked=False) as gateway:
        identity, problem = await gateway.chats.probe("whatsapp")
        assert identity is None and "hobnob channels login whatsapp" in (problem or "")


# --- The real library


@pytest.mark.promise("whatsapp.linked_by_code")
async def test_the_real_library_knows_every_event_and_starts(home: Path) -> None:
    from neonize.aioze import events as real
    from neonize.events import EVENT_TO_INT

    for name in web_session.EVENTS:
        assert getattr(real, name) in EVENT_TO_INT
    client = web_session.new_client(home / "whatsapp.db")
    session = web_session.Session(client)
    assert set(client.event.list_func) == {EVENT_TO_INT[getattr(real, name)] for name in web_session.EVENTS}
    assert isinstance(session.client.me, proto.Device | None)
