"""The channel `email`: mails are read by IMAP and sent by SMTP.

The position in the mailbox is stored together with the mails, and a mail is marked as seen only after that. A
mail of the bot has the key of its part in its Message-ID, and a copy goes to the bot's own mailbox: if the
answer of the SMTP server was lost, the copy proves that the mail was sent.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson

from hobnob.channels import (
    Account,
    Capabilities,
    Channel,
    Disconnected,
    Identity,
    Inbox,
    LoginNeeded,
    NotNow,
    Outgoing,
    Undeliverable,
    Unreadable,
)
from hobnob.channels.email import incoming, outgoing
from hobnob.channels.email.imap import Fetched, Imap, Mailbox, Refused
from hobnob.channels.email.incoming import ADDRESS, Mail
from hobnob.channels.email.smtp import Sender
from hobnob.channels.email.threads import Threads, thread_name
from hobnob.channels.email.verification import server_name
from hobnob.config.channels.email import EmailAccount
from hobnob.inbound import Inbound, Media
from hobnob.records import Struct, asdict, replace
from hobnob.types import now_ms

_IDLE_S = 9 * 60.0
_MAIL_BYTES = 40 * 1024 * 1024  # of a mail that is read with its files
_HEAD_BYTES = 256 * 1024  # of a larger one
_PARSE_S = 20.0
_FIND_S = 10.0
_FETCH_TRIES = 3
_MOST_KEYS = 1_000
_MOST_AGAIN = 1_000  # mails that are looked at when a server numbers its mails anew
_CHUNK = 256 * 1024
_log = logging.getLogger(__name__)


class Position(Struct, frozen=True):
    """How far a mailbox was read. `since` is a day: while set, only mails from then on count."""

    validity: int
    uid: int
    day: str
    since: str = ""

    @classmethod
    def read(cls, text: str | None) -> Position | None:
        try:
            return cls(**orjson.loads(text)) if text else None
        except (ValueError, TypeError):
            _log.warning("email: the stored position cannot be read; new mails only")
            return None

    def __str__(self) -> str:
        return orjson.dumps(asdict(self)).decode()


class Email(Channel):
    capabilities = Capabilities(
        chat_types=("direct", "group"),
        text_limit=50_000,
        media_in=True,
        media_out=True,
        finds_sent=True,
    )

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._threads = Threads(account.folder)
        self._sender = Sender()
        self._not_sent: dict[str, None] = {}
        self._sent_box: str | None = None
        self._trying = (0, 0)
        self._first_new_uid = 0

    @property
    def _settings(self) -> EmailAccount:
        settings: EmailAccount = self.account.settings
        return settings

    @property
    def _own(self) -> str:
        return (self._settings.address or self._settings.user or "").lower()

    @property
    def _login(self) -> tuple[str, str]:
        settings = self._settings
        user = settings.user or settings.address
        if not user or settings.password is None or not settings.imap.host or not settings.smtp.host:
            raise LoginNeeded("The settings address, password, imap.host and smtp.host are needed.")
        if not ADDRESS.fullmatch(self._own):
            raise LoginNeeded("The setting address is not a mail address.")
        return user, settings.password.get_secret_value()

    async def _imap(self) -> Imap:
        return await Imap.open(self._settings.imap, *self._login)

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        async with await self._imap() as imap:
            try:
                mailbox = await imap.select(self._settings.imap.mailbox)
                self._sent_box = self._settings.sent_mailbox or await imap.sent_mailbox()
                self._first_new_uid = mailbox.next_uid
                position = await self._begin(inbox, mailbox)
                ready(Identity(self._own, self._settings.name or self._own, self._hint()))
                while True:
                    position = await self._catch_up(imap, inbox, position)
                    await imap.news(_IDLE_S)
            except Refused as error:
                raise Disconnected(f"The mail server refused a command: {error}") from error

    async def _begin(self, inbox: Inbox, mailbox: Mailbox) -> Position:
        """The stored position. Without one, only new mails count; in a mailbox numbered anew, recent ones."""
        stored = Position.read(await inbox.cursor())
        if stored is None:
            stored = Position(mailbox.validity, mailbox.next_uid - 1, _day(datetime.now(UTC)))
            await inbox.accept([], str(stored))
        elif stored.validity != mailbox.validity:
            _log.warning("email: the server numbers its mails anew; those since %s are looked at", stored.day)
            stored = Position(mailbox.validity, 0, stored.day, since=stored.since or _day_before(stored.day))
        return stored

    async def _catch_up(self, imap: Imap, inbox: Inbox, position: Position) -> Position:
        """Take the mails after the position. The same mail under a new number is recognised by the inbox."""
        criteria = f"UID {position.uid + 1}:*" + (f" SINCE {position.since}" if position.since else "")
        found = [uid for uid in await imap.search(criteria) if uid > position.uid]
        for uid in found[-_MOST_AGAIN:] if position.since else found:
            position = await self._take(imap, inbox, uid, position)
        if position.since:
            # Mails that are older may have higher numbers than those that were looked at.
            position = replace(position, uid=max(position.uid, self._first_new_uid - 1), since="")
            await inbox.accept([], str(position))
        return position

    async def _take(self, imap: Imap, inbox: Inbox, uid: int, position: Position) -> Position:
        position = replace(position, uid=uid)
        if (fetched := await self._fetched(imap, uid)) is None:
            await inbox.accept([], str(position))
            return position
        position = replace(position, day=fetched.day or position.day)
        try:
            mail = await self._read(fetched)
        except Unreadable as error:
            _log.warning("email: mail %d (%d bytes) skipped, it cannot be read: %s", uid, fetched.size, error)
            await inbox.accept([], str(position))
            return position
        if mail.sender[0] == self._own or _is_own(mail, self._own):
            await inbox.accept([], str(position))
            await self._file_copy(imap, inbox, uid, mail)
            return position
        event = await self._event(mail, f"{position.validity}:{uid}:{mail.message_id}", fetched)
        await inbox.accept([event] if event else [], str(position))
        try:
            await imap.mark_seen(uid)
        except Refused as error:
            _log.info("email: mail %d is not marked as seen: %s", uid, error)
        return position

    async def _fetched(self, imap: Imap, uid: int) -> Fetched | None:
        """A mail; None if it was deleted meanwhile, or if the server cannot give it."""
        last, tries = self._trying
        self._trying = (uid, tries + 1 if uid == last else 1)
        if self._trying[1] > _FETCH_TRIES:
            _log.error("email: mail %d skipped: the connection ended each time it was fetched", uid)
            return None
        try:
            return await imap.fetch(uid, _MAIL_BYTES)
        except Refused as error:
            _log.error("email: mail %d skipped: the server does not give it: %s", uid, error)
            return None

    async def _event(self, mail: Mail, ref: str, fetched: Fetched) -> Inbound | None:
        if mail.is_bounce:
            _log.warning("email: mail %d is a report on a mail that was not delivered, ignored", fetched.uid)
            return None
        settings, chat = self._settings, incoming.answer_address(mail)
        message_id = mail.message_id or incoming.event_id(mail)
        thread_id = await asyncio.to_thread(
            self._threads.add, chat, message_id, mail.references, mail.subject
        )
        event = incoming.inbound(
            mail,
            own=self._own,
            trusted=settings.trusted_results(),
            believe_all=settings.dangerously_allow_unverified_senders,
            thread_id=thread_id,
            ref=ref,
            at_ms=now_ms(),
        )
        if fetched.size > len(fetched.content):
            note = f"[The mail has {fetched.size:,} bytes; only its beginning was read.]"
            event = replace(event, text=f"{event.text}\n\n{note}".strip(), media=())
        return event

    async def _read(self, fetched: Fetched) -> Mail:
        """The mail, parsed in a process of its own. What is too large is read without its files."""
        content = fetched.content
        if fetched.size > len(content):
            content = content[:_HEAD_BYTES]
        with tempfile.TemporaryDirectory(dir=self.account.folder) as folder:
            file = Path(folder) / "mail"
            await asyncio.to_thread(file.write_bytes, content)
            return Mail.of(await self.account.guest("mails", {"mail": str(file)}, _PARSE_S))

    async def _file_copy(self, imap: Imap, inbox: Inbox, uid: int, mail: Mail) -> None:
        """A mail of our own: a copy that proves it was sent. It is put where sent mails are."""
        key = outgoing.key_of(mail.message_id)
        if key is None:
            return
        if mail.sender[0] == self._own:
            await inbox.confirm(key, mail.message_id)
        try:
            await imap.mark_seen(uid)
            if self._sent_box is not None and "MOVE" in imap.capabilities:
                await imap.move(uid, self._sent_box)
        except Refused as error:
            _log.info("email: the copy of a sent mail stays in the inbox: %s", error)

    async def send(self, part: Outgoing) -> str:
        to = part.address.to.lower()
        if not ADDRESS.fullmatch(to):
            raise Undeliverable(f"{part.address.to!r} is not a mail address.")
        login, own, settings = self._login, self._own, self._settings
        thread_id = part.address.thread_id
        thread = await asyncio.to_thread(self._threads.get, to, thread_id) if thread_id else None
        title = outgoing.subject(part, thread)
        content = await asyncio.to_thread(part.file.path.read_bytes) if part.file else None
        mail = await asyncio.to_thread(
            outgoing.mail, part, content, address=own, name=settings.name or "", title=title, thread=thread
        )
        message_id = outgoing.message_id(part.key, own)
        # Before it is sent: an answer to it may arrive at once.
        await asyncio.to_thread(
            self._threads.sent, to, message_id, thread_id or thread_name(message_id), title
        )
        try:
            await self._sender.send(settings.smtp, login, own, list(dict.fromkeys([to, own])), mail)
        except (NotNow, Undeliverable, LoginNeeded):
            self._not_sent[part.key] = None
            while len(self._not_sent) > _MOST_KEYS:
                del self._not_sent[next(iter(self._not_sent))]
            raise
        except BaseException:
            self._not_sent.pop(part.key, None)
            raise
        return message_id

    async def find(self, part: Outgoing) -> str | None:
        """Look for the copy of a mail that may have been sent. It may take a moment to arrive."""
        if part.key in self._not_sent:
            return None
        message_id = outgoing.message_id(part.key, self._own)
        loop = asyncio.get_running_loop()
        try:
            async with await self._imap() as imap:
                until = loop.time() + _FIND_S
                while True:
                    if await self._is_there(imap, message_id):
                        return message_id
                    if loop.time() > until:
                        return None
                    await asyncio.sleep(1.0)
        except Disconnected as error:
            raise NotNow(f"the mailbox cannot be searched: {error}", 5.0, scope="account") from error

    async def _is_there(self, imap: Imap, message_id: str) -> bool:
        sent = self._settings.sent_mailbox or await imap.sent_mailbox()
        for mailbox in filter(None, (self._settings.imap.mailbox, sent)):
            try:
                await imap.select(mailbox, writable=False)
                if await imap.find(message_id):
                    return True
            except Refused:  # there is no such mailbox
                continue
        return False

    async def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        validity, _, rest = media.ref.partition(":")
        number, _, rest = rest.partition(":")
        message_id, _, part = rest.rpartition(":")
        try:
            fetched = await self._fetch_again(int(validity), int(number), message_id)
        except (Disconnected, LoginNeeded, Refused) as error:
            raise Undeliverable(f"The mail cannot be read again: {error}") from error
        with tempfile.TemporaryDirectory(dir=self.account.folder) as folder:
            mail, target = Path(folder) / "mail", Path(folder) / "file"
            await asyncio.to_thread(mail.write_bytes, fetched.content)
            job = {"mail": str(mail), "part": int(part), "to": str(target)}
            try:
                size = (await self.account.guest("mails", job, _PARSE_S))["size"]
            except Unreadable as error:
                raise Undeliverable(f"The file cannot be read: {error}") from error
            if size > limit:
                raise Undeliverable(f"The file is larger than {limit:,} bytes.")
            with await asyncio.to_thread(target.open, "rb") as file:
                while chunk := await asyncio.to_thread(file.read, _CHUNK):
                    yield chunk

    async def _fetch_again(self, validity: int, uid: int, message_id: str) -> Fetched:
        async with await self._imap() as imap:
            mailbox = await imap.select(self._settings.imap.mailbox, writable=False)
            if mailbox.validity != validity:
                found = await imap.find(message_id) if message_id else []
                uid = found[-1] if found else 0
            fetched = await imap.fetch(uid, _MAIL_BYTES) if uid else None
        if fetched is None:
            raise Undeliverable("The mail is not in the mailbox any more.")
        return fetched

    async def probe(self) -> Identity:
        login = self._login
        async with await self._imap() as imap:
            try:
                mailbox = await imap.select(self._settings.imap.mailbox, writable=False)
                newest = await imap.fetch(mailbox.next_uid - 1, _HEAD_BYTES) if mailbox.next_uid > 1 else None
            except Refused as error:
                raise LoginNeeded(
                    f"The mailbox {self._settings.imap.mailbox} cannot be read: {error}"
                ) from error
        await self._sender.probe(self._settings.smtp, login, self._own)
        return Identity(self._own, self._own, self._hint(newest))

    def _hint(self, newest: Fetched | None = None) -> str:
        """What keeps the bot from believing senders."""
        settings = self._settings
        if settings.trusted_results() or settings.dangerously_allow_unverified_senders:
            return ""
        names = _result_servers(newest.content) if newest else []
        seen = f"; the newest mail has results of {', '.join(names)}" if names else ""
        return f"no sender is believed until authservId is set{seen}"


def _is_own(mail: Mail, own: str) -> bool:
    """Whether it is a mail of ours that a list sent back under its own name."""
    return outgoing.key_of(mail.message_id) is not None and mail.message_id.endswith(
        f"@{own.rpartition('@')[2]}"
    )


def _result_servers(content: bytes) -> list[str]:
    """The servers that wrote results on the sender into the head of a mail."""
    head = content.replace(b"\r\n", b"\n").partition(b"\n\n")[0].decode("utf-8", "replace")
    lines = [line for line in head.split("\n") if line.lower().startswith("authentication-results:")]
    names = [server_name(line.partition(":")[2]) for line in lines[:3]]
    return [name[:100] for name in names if name]


def _day(moment: datetime) -> str:
    return f"{moment.day}-{_MONTHS[moment.month - 1]}-{moment.year}"


def _day_before(day: str) -> str:
    number, month, year = day.split("-")
    moment = datetime(int(year), _MONTHS.index(month.title()) + 1, int(number), tzinfo=UTC)
    return _day(moment - timedelta(days=1))


_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


def channel(account: Account) -> Channel:
    return Email(account)
