"""IRC under test: a real server, people with plain clients, and a proxy that can lose a receipt."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from tests.channels.irc_servers import IrcServer
from tests.channels.platform import Post
from tests.channels.proxy import Proxy
from tests.waiting import LIMIT_S

ROOM = "#Hobnob"
BOT = "hobbot"


def user_name(nick: str) -> str:
    """Nicks may have characters that user names may not have."""
    return "".join(character for character in nick if character.isalnum()).lower()


class Person:
    """Somebody with an IRC client, in the room."""

    def __init__(self, nick: str, port: int) -> None:
        self.nick = nick
        self.mask = ""
        self.lines: list[str] = []
        """What arrived, without tags."""
        self.heard: list[tuple[str, Post]] = []
        """Messages with their senders."""
        self._port = port
        self._present: set[str] = set()
        self._news = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._reading = asyncio.create_task(self._read(reader), name=f"IRC client of {self.nick}")
        self.mask = ""
        self.lines.clear()
        self.write(f"NICK {self.nick}")
        self.write(f"USER {user_name(self.nick)} 0 * :{self.nick}")
        self.write("CAP REQ :message-tags")
        self.write("CAP END")
        await self.until(lambda: any(f" 001 {self.nick} " in line for line in self.lines))
        self.write(f"JOIN {ROOM}")
        await self.until(lambda: bool(self.mask))

    def write(self, line: str) -> None:
        self._writer.write(f"{line}\r\n".encode())

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(condition)

    async def sees(self, nick: str) -> None:
        """Wait until somebody is in the room."""
        await self.until(lambda: nick in self._present)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
            self._writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while raw := await reader.readline():
                self._take(raw.decode().rstrip("\r\n"))
                async with self._news:
                    self._news.notify_all()
        self._present.clear()

    def _take(self, line: str) -> None:
        tags = ""
        if line.startswith("@"):
            tags, _, line = line.partition(" ")
        self.lines.append(line)
        source, _, rest = line.partition(" ")
        if source == "PING":
            self.write(f"PONG {rest}")
            return
        nick = source[1:].partition("!")[0]
        command, _, rest = rest.partition(" ")
        if command == "JOIN":
            self._present.add(nick)
            if nick == self.nick:
                self.mask = source[1:]
        elif command == "353":
            self._present |= {name.lstrip("@+") for name in rest.partition(" :")[2].split()}
        elif command in ("PART", "QUIT"):
            self._present.discard(nick)
        elif command in ("PRIVMSG", "NOTICE"):
            target, _, text = rest.partition(" :")
            ids = [tag[6:] for tag in tags[1:].split(";") if tag.startswith("msgid=")]
            chat = "room" if target.lower() == ROOM.lower() else self.nick
            self.heard.append((nick, Post(ids[0] if ids else str(len(self.heard)), text, chat)))


class IrcPlatform:
    can = frozenset({"lost_receipt"})
    name = "irc"

    def __init__(self, server: str, folder: Path) -> None:
        self._server = IrcServer(server, folder / server)
        self._proxy = Proxy(
            self._server.port,
            is_message=lambda data: b"PRIVMSG" in data,
            is_receipt=lambda data: b"PONG" in data or b"PRIVMSG" in data,
        )
        self._people: dict[str, Person] = {}
        self._ident = "~" if server == "ngircd" else ""

    async def start(self) -> None:
        await self._server.start()
        await self._proxy.start()
        for person in self._people.values():
            await person.connect()
        await self.person("ann")
        await self.person("bob")

    async def stop(self) -> None:
        await self._server.stop()
        await self._proxy.stop()
        for person in self._people.values():
            await person.close()

    async def person(self, nick: str) -> Person:
        """A person, who comes into the room if not there yet."""
        if nick not in self._people:
            person = self._people[nick] = Person(nick, self._server.port)
            await person.connect()
            assert person.mask == self.user_id(nick), person.mask
        return self._people[nick]

    @property
    def written(self) -> bytes:
        """What the bot wrote to the server."""
        return self._proxy.seen

    def settings(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self._proxy.port, "tls": False, "nick": BOT, "channels": [ROOM]}

    def user_id(self, person: str) -> str:
        return f"{person}!{self._ident}{user_name(person)}@127.0.0.1"

    def room_id(self) -> str:
        return ROOM.lower()

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        return {"groups": {self.room_id(): rules}}

    async def say(
        self,
        text: str,
        *,
        sender: str = "ann",
        room: bool = False,
        mention: bool = False,
        thread: str | None = None,
        reply_to: str | None = None,
        file: tuple[str, bytes] | None = None,
    ) -> str:
        assert not (thread or reply_to or file), "IRC has no threads, replies and files"
        person = await self.person(sender)
        await person.sees(BOT)
        for line in (f"{BOT}: {text}" if mention else text).split("\n"):
            person.write(f"PRIVMSG {ROOM if room else BOT} :{line}")
        return ""

    async def repeat(self, message_id: str) -> None:
        raise NotImplementedError("a server sends a message once")

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        person = await self.person("ann" if chat == "room" else chat)

        def found() -> list[Post]:
            return [post for nick, post in person.heard if nick.rstrip("_") == BOT and post.chat == chat]

        await person.until(lambda: len(found()) >= count)
        return found()

    async def open_thread(self) -> str:
        raise NotImplementedError("IRC has no threads")

    def limit_once(self, after_s: float) -> None:
        raise NotImplementedError("IRC does not announce its limits")

    def lose_receipt_once(self) -> None:
        self._proxy.lose_receipt_once()
