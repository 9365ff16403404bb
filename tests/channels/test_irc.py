"""The IRC channel in a real gateway, against real servers."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.channels.irc_platform import BOT, ROOM, IrcPlatform
from tests.channels.irc_script import Client, scripted
from tests.channels.irc_servers import NAMES, IrcServer
from tests.integration.helpers import texts
from tests.waiting import LIMIT_S, until

from hobnob.channels import Channel, Outgoing, Undeliverable
from hobnob.chats.accounts import Status
from hobnob.delivery_routes import DeliveryRoute
from hobnob.gateway import Gateway
from hobnob.inbound import Address
from hobnob.store import deliveries
from hobnob.testing import rehearse, script

MAIN = "agent:main:main"
IN_ROOM = f"agent:main:irc:group:{ROOM.lower()}"
OPEN = {"dmPolicy": "open", "allowFrom": ["*"], "ackReaction": ""}


@pytest.fixture(params=NAMES)
async def irc(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[IrcPlatform]:
    platform = IrcPlatform(request.param, tmp_path)
    await platform.start()
    yield platform
    await platform.stop()


@asynccontextmanager
async def serving(home: Path, irc: dict[str, Any], *answers: Any) -> AsyncIterator[Gateway]:
    """A gateway with these settings of IRC."""
    answered = script(*answers, session="*") if answers else {}
    async with rehearse(home, {"channels": {"irc": irc}} | answered) as gateway:
        yield gateway


@asynccontextmanager
async def connected(irc: IrcPlatform, home: Path, *answers: Any, **more: Any) -> AsyncIterator[Gateway]:
    """A gateway that is in the room. Everybody may write to the bot."""
    async with serving(home, irc.settings() | irc.group_rules({}) | OPEN | more, *answers) as gateway:
        await until(lambda: status(gateway).state == "connected")
        yield gateway


def status(gateway: Gateway) -> Status:
    found = gateway.chats.accounts.statuses()
    return found[0] if found else Status("irc", "default")


def channel_of(gateway: Gateway) -> Channel:
    found = gateway.chats.accounts.find("irc", None)
    assert found is not None
    return found


async def delivered(gateway: Gateway, key: str) -> Any:
    """The newest delivery of a session, once it is settled."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await gateway.store.read(deliveries.of_session, key)
            if found and found[0].state not in ("pending", "sending"):
                return found[0]
            await asyncio.sleep(0.02)


# messages


async def test_a_direct_message_is_answered_to_the_nick(irc: IrcPlatform, tmp_path: Path) -> None:
    async with connected(irc, tmp_path, "**Hello** Ann.") as gateway:
        await irc.say("hi there")
        [post] = await irc.posts(1, chat="ann")
        assert post.text == "Hello Ann."
        assert (await delivered(gateway, MAIN)).state == "delivered"


async def test_a_mention_in_a_room_is_answered_in_the_room(irc: IrcPlatform, tmp_path: Path) -> None:
    async with connected(irc, tmp_path, "Here I am.") as gateway:
        await irc.say("nobody in particular", room=True)
        await irc.say("are you there?", room=True, mention=True)
        [post] = await irc.posts(1, chat="room")
        assert post.text == "Here I am."
        assert await texts(gateway, IN_ROOM, "user") == [f"{BOT}: are you there?"]


async def test_a_room_is_known_by_its_name_in_any_case(irc: IrcPlatform, tmp_path: Path) -> None:
    async with connected(irc, tmp_path, "Yes.", groups={"#HOBNOB": {"requireMention": False}}):
        ann = await irc.person("ann")
        await ann.sees(BOT)
        ann.write("PRIVMSG #hobnob :anybody?")
        [post] = await irc.posts(1, chat="room")
        assert post.text == "Yes."


@pytest.mark.promise("irc.within_the_flood_limit")
async def test_a_long_answer_arrives_whole_in_short_lines(irc: IrcPlatform, tmp_path: Path) -> None:
    words = " ".join(f"größer{number}" for number in range(90))
    async with connected(irc, tmp_path, words) as gateway:
        await irc.say("tell me")
        assert (await delivered(gateway, MAIN)).state == "delivered"
        posts = await irc.posts(3, chat="ann")
        assert " ".join(post.text for post in posts) == words


async def test_a_text_with_line_ends_cannot_give_commands(irc: IrcPlatform, tmp_path: Path) -> None:
    async with connected(irc, tmp_path, "one\r\nQUIT :gone\r\0PART #Hobnob") as gateway:
        await irc.say("go")
        posts = await irc.posts(3, chat="ann")
        assert [post.text for post in posts][:2] == ["one", "QUIT :gone"]
        assert status(gateway).reconnects == 0


async def test_notices_and_requests_of_programs_are_not_answered(irc: IrcPlatform, tmp_path: Path) -> None:
    async with connected(irc, tmp_path, "Hello.") as gateway:
        ann = await irc.person("ann")
        await ann.sees(BOT)
        ann.write(f"NOTICE {BOT} :a notice")
        ann.write(f"PRIVMSG {BOT} :\x01VERSION\x01")
        ann.write(f"PRIVMSG {BOT} :\x01ACTION waves\x01")
        await irc.posts(1, chat="ann")
        assert await texts(gateway, MAIN, "user") == ["* ann waves"]


async def test_a_nick_with_unusual_characters_has_a_session_of_its_own(
    irc: IrcPlatform, tmp_path: Path
) -> None:
    settings = {"channels": {"irc": irc.settings() | OPEN}, "session": {"dmScope": "per-channel-peer"}}
    async with rehearse(tmp_path, settings | script("Hello.", session="*")):
        await irc.say("hi", sender="a|b\\c")
        [post] = await irc.posts(1, chat="a|b\\c")
        assert post.text == "Hello."


# access


@pytest.mark.promise("irc.nick_is_no_identity")
async def test_a_nick_alone_lets_nobody_in(irc: IrcPlatform, tmp_path: Path) -> None:
    rules = {"dmPolicy": "allowlist", "allowFrom": ["ann", irc.user_id("bob")]}
    async with connected(irc, tmp_path, "Hello.", **rules) as gateway:
        await irc.say("it is me, ann")
        await irc.say("it is me, bob", sender="bob")
        await irc.posts(1, chat="bob")
        assert await texts(gateway, MAIN, "user") == ["it is me, bob"]


async def test_a_nick_lets_in_if_the_settings_accept_the_danger(irc: IrcPlatform, tmp_path: Path) -> None:
    rules = {"dmPolicy": "allowlist", "allowFrom": ["ann"], "dangerouslyAllowNameMatching": True}
    async with connected(irc, tmp_path, "Hello.", **rules):
        await irc.say("it is me, ann")
        assert await irc.posts(1, chat="ann")


# connection


async def test_a_taken_nick_gets_an_underscore_and_is_recognised(irc: IrcPlatform, tmp_path: Path) -> None:
    await irc.person(BOT)
    async with connected(irc, tmp_path, "Yes?") as gateway:
        assert status(gateway).identity and status(gateway).identity.name == f"{BOT}_"
        ann = await irc.person("ann")
        await ann.sees(f"{BOT}_")
        ann.write(f"PRIVMSG {ROOM} :{BOT}: not you")
        ann.write(f"PRIVMSG {ROOM} :{BOT}_: you")
        await irc.posts(1, chat="room")
        assert await texts(gateway, IN_ROOM, "user") == [f"{BOT}_: you"]


async def test_the_bot_comes_back_after_the_server_was_gone(irc: IrcPlatform, tmp_path: Path) -> None:
    async with connected(irc, tmp_path, "Back.") as gateway:
        await irc.stop()
        await until(lambda: status(gateway).state == "reconnecting")
        await irc.start()
        await irc.say("hello again", room=True, mention=True)
        assert [post.text for post in await irc.posts(1, chat="room")] == ["Back."]


async def test_an_answer_waits_while_the_server_is_gone(irc: IrcPlatform, tmp_path: Path) -> None:
    async with connected(irc, tmp_path) as gateway:
        await irc.stop()
        await until(lambda: status(gateway).state == "reconnecting")
        await gateway.chats.send(DeliveryRoute("irc", "ann"), "I waited.")
        await irc.start()
        assert [post.text for post in await irc.posts(1, chat="ann")] == ["I waited."]


@pytest.mark.promise("irc.confirmed_by_the_server")
async def test_a_lost_receipt_is_reported_and_nothing_is_repeated(irc: IrcPlatform, tmp_path: Path) -> None:
    async with connected(irc, tmp_path, "Once.", "Twice.") as gateway:
        irc.lose_receipt_once()
        await irc.say("hello")
        assert (await delivered(gateway, MAIN)).state == "ambiguous"
        await irc.say("and again")
        assert [post.text for post in await irc.posts(2, chat="ann")] == ["Once.", "Twice."]


async def test_a_message_to_somebody_who_is_gone_has_failed(irc: IrcPlatform, tmp_path: Path) -> None:
    async with connected(irc, tmp_path) as gateway:
        with pytest.raises(Undeliverable, match="No such nick"):
            await channel_of(gateway).send(Outgoing(key="1", address=Address("nobody"), text="hello"))


async def test_a_message_to_a_room_without_the_bot_has_failed(irc: IrcPlatform, tmp_path: Path) -> None:
    async with connected(irc, tmp_path) as gateway:
        with pytest.raises(Undeliverable, match="not deliver to #other"):
            await channel_of(gateway).send(Outgoing(key="1", address=Address("#other"), text="hello"))


@pytest.mark.promise("irc.within_the_flood_limit")
async def test_a_message_of_many_lines_does_not_break_the_flood_limit(tmp_path: Path) -> None:
    irc = IrcPlatform("inspircd", tmp_path)
    await irc.start()
    try:
        lines = [f"line {number}" for number in range(14)]
        async with connected(irc, tmp_path, "\n".join(lines)) as gateway:
            await irc.say("list them")
            assert [post.text for post in await irc.posts(14, chat="ann")] == lines
            assert status(gateway).reconnects == 0
    finally:
        await irc.stop()


async def test_the_bot_signs_in_at_a_service_before_it_joins(irc: IrcPlatform, tmp_path: Path) -> None:
    service = await irc.person("NickServ")
    nickserv = {"enabled": True, "password": "open sesame"}
    async with connected(irc, tmp_path, nickserv=nickserv):
        [(nick, post)] = service.heard
        assert (nick, post.text) == (BOT, "IDENTIFY open sesame")
        asked, joined = (
            next(i for i, line in enumerate(service.lines) if line.startswith(f":{BOT}!") and word in line)
            for word in ("PRIVMSG NickServ", "JOIN")
        )
        assert asked < joined


@pytest.mark.parametrize("name", NAMES)
async def test_the_password_of_the_server_is_used_and_a_wrong_one_stops_the_account(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with IrcServer(name, tmp_path / name, password="right-password") as server:  # noqa: S106 - of a server in this test
        base = {"host": "127.0.0.1", "port": server.port, "tls": False, "nick": BOT}
        async with serving(tmp_path, base | {"password": "right-password"}) as gateway:
            await until(lambda: status(gateway).state == "connected")
        async with serving(tmp_path, base | {"password": "wrong-password"}) as gateway:
            await until(lambda: "refused us" in str(status(gateway).last_error))
            assert status(gateway).state == "stopped"
        assert "wrong-password" not in caplog.text


@pytest.mark.parametrize("name", NAMES)
async def test_a_connection_by_tls_needs_a_certificate_that_is_trusted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-out", str(cert), "-keyout", str(key)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(command, check=True, capture_output=True)
    async with IrcServer(name, tmp_path / name, tls=(cert, key)) as server:
        settings = {"host": "127.0.0.1", "port": server.port, "nick": BOT}
        async with serving(tmp_path, settings) as gateway:
            await until(lambda: status(gateway).state == "reconnecting")
            assert "certificate" in str(status(gateway).last_error)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        async with serving(tmp_path, settings) as gateway:
            await until(lambda: status(gateway).state == "connected")


# what no real server does on demand


async def test_the_bot_signs_in_by_sasl(tmp_path: Path) -> None:
    seen: list[str] = []

    async def sasl(client: Client) -> None:
        client.write(":s CAP * LS * :server-time sasl=EXTERNAL,PLAIN", ":s CAP * LS :message-tags")
        seen.append(await client.expect("CAP REQ"))
        client.write(":s CAP * ACK :message-tags sasl server-time")
        seen.append(await client.expect("AUTHENTICATE"))
        client.write("AUTHENTICATE +")
        seen.append(await client.expect("AUTHENTICATE"))
        client.write(":s 900 hobbot hobbot!u@h bot :You are now logged in", ":s 903 hobbot :Success")
        await client.expect("CAP END")
        client.write(":s 001 hobbot :Welcome")
        await client.expect("nothing more")

    async with scripted(sasl) as port:
        settings = {"host": "127.0.0.1", "port": port, "tls": False, "nick": BOT}
        sign_in = {"sasl": True, "username": "bot", "password": "pass word"}
        async with serving(tmp_path, settings | sign_in) as gateway:
            await until(lambda: status(gateway).state == "connected")
    assert seen == [
        "CAP REQ :message-tags sasl server-time",
        "AUTHENTICATE PLAIN",
        "AUTHENTICATE AGJvdABwYXNzIHdvcmQ=",
    ]


@pytest.mark.parametrize(
    "refusal", [[":s CAP * LS :server-time"], [":s CAP * LS :sasl", ":s CAP * ACK :sasl", ":s 904 x :No"]]
)
async def test_an_account_whose_sasl_is_refused_stops(refusal: list[str], tmp_path: Path) -> None:
    async def refuse(client: Client) -> None:
        client.write(*refusal)
        await client.expect("nothing more")

    async with scripted(refuse) as port:
        settings = {"host": "127.0.0.1", "port": port, "tls": False, "sasl": True, "password": "secret"}
        async with serving(tmp_path, settings) as gateway:
            await until(lambda: "SASL" in str(status(gateway).last_error))
            assert status(gateway).state == "stopped"


async def test_garbage_from_the_server_is_skipped(tmp_path: Path) -> None:
    async def babble(client: Client) -> None:
        await client.welcome()
        client.write_raw(
            b"\xff\xfe\0\r\n\r\n:\r\n@ \r\n@a=b\r\nPRIVMSG\r\n:x PRIVMSG\r\n:a!b@c PRIVMSG #hobnob\r\n"
        )
        client.write_raw(b"@time=yesterday;msgid=1 :ann!u@h PRIVMSG hobbot :hello \xff\r\n")
        assert (await client.expect("PRIVMSG")).endswith(":Hello.")

    async with scripted(babble) as port:
        settings = {"host": "127.0.0.1", "port": port, "tls": False, "nick": BOT, "channels": [ROOM]}
        async with serving(tmp_path, settings | OPEN, "Hello.") as gateway:
            assert (await delivered(gateway, MAIN)).recipient == "ann"


async def test_a_line_without_end_ends_the_connection(tmp_path: Path) -> None:
    async def flood(client: Client) -> None:
        await client.welcome()
        client.write_raw(b"x" * 100_000)
        await client.expect("nothing more")

    async with scripted(flood) as port:
        settings = {"host": "127.0.0.1", "port": port, "tls": False, "nick": BOT, "channels": [ROOM]}
        async with serving(tmp_path, settings) as gateway:
            await until(lambda: status(gateway).state == "reconnecting")
            assert "bytes" in str(status(gateway).last_error)
