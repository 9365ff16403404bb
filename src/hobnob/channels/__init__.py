"""The channel interface: what a chat channel implements, and what it may use.

A channel module has a function `channel(account) -> Channel`. `Channel.run` receives messages until it is
cancelled and hands them to the inbox; it tells the platform that it has a message only after `Inbox.accept`
returned, because only then the message is on disk. The pump calls `Channel.send` with one part of a delivery
at a time. What `send` raises decides what happens next:

    NotNow                    a rate limit, or not connected: tried again later, not counted as an attempt
    Undeliverable(again)      the request never left: tried again with back-off, up to a number of attempts
    Undeliverable             the platform refused it for good: failed
    LoginNeeded               the credentials are no longer valid: failed, and the account stops
    any other exception       it may have been sent: proven with `find`, repeated if that has no second
                              effect, else reported as ambiguous
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from hobnob.inbound import Address, Inbound, Media
from hobnob.keys import ChatType
from hobnob.records import Struct

if TYPE_CHECKING:
    import aiohttp

    from hobnob.channels.webhooks import WebhookAnswer, WebhookCall
    from hobnob.config.channels import ChannelAccount

Scope = Literal["chat", "account"]


class NotNow(Exception):
    """The channel cannot send now. `scope`: what has to wait `after_s` seconds, the chat or the account."""

    def __init__(self, why: str, after_s: float, *, scope: Scope = "chat") -> None:
        super().__init__(why)
        self.after_s = after_s
        self.scope: Scope = scope


class Undeliverable(Exception):
    """The channel did not accept a message. `again`: it may accept it later."""

    def __init__(self, why: str, *, again: bool = False) -> None:
        super().__init__(why)
        self.again = again


class NotNoted(Exception):
    """Whether a part was sent cannot be looked up: what `send` notes about it before is not on this disk."""


class LoginNeeded(Exception):
    """The platform does not accept the credentials. The account stops; reconnecting would not help."""


class Unreadable(Exception):
    """Content from outside could not be read within the limits on time and memory, or is broken."""


class Disconnected(Exception):
    """The connection was lost or could not be made. `run` is started again after a pause."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """What a channel can do.

    `measure` returns the length of a text in the unit of `text_limit`, after conversion to the markup of the
    platform. `threads`: it can open threads. `repeatable_s`: for how long after the first attempt sending a
    part again, recognised by its key, has no second effect. `finds_sent`: it can look up a part.
    """

    chat_types: tuple[ChatType, ...] = ("direct", "group")
    text_limit: int = 4000
    measure: Callable[[str], int] = len
    threads: bool = False
    edits: bool = False
    deletes: bool = False
    reactions: bool = False
    typing_every_s: float | None = None
    media_in: bool = False
    media_out: bool = False
    repeatable_s: float = 0.0
    finds_sent: bool = False


class OutgoingFile(Struct, frozen=True, kw_only=True):
    """A file to send."""

    path: Path
    name: str
    mime_type: str = "application/octet-stream"


class Outgoing(Struct, frozen=True, kw_only=True):
    """One part of a delivery: a text in Markdown, or a file with the text as its caption.

    `key` is the same on every attempt to send the part, and unique.
    """

    key: str
    address: Address
    text: str = ""
    reply_to: str | None = None
    file: OutgoingFile | None = None


class Identity(Struct, frozen=True):
    """Who the account is on its platform."""

    id: str
    name: str = ""
    detail: str = ""


class KnownChat(Struct, frozen=True):
    """A chat that messages came from, with the id of the newest one, for channels that must ask per chat."""

    chat_id: str
    thread_id: str | None
    address: Address
    last_event_id: str


class Inbox(Protocol):
    """Where a channel hands its messages."""

    async def accept(self, events: Sequence[Inbound], cursor: str | None = None) -> int:
        """Store messages, the verdict on each, and the position of the channel, in one transaction.

        Returns when they are on disk, with the number of new ones. The same event id is stored once.
        """
        ...

    async def cursor(self) -> str | None:
        """The position that was stored last."""
        ...

    async def chats(self) -> list[KnownChat]:
        """The chats that messages came from, most recent first."""
        ...

    async def confirm(self, key: str, external_id: str) -> None:
        """Report later proof that a part was sent: settles a delivery that was ambiguous."""
        ...

    async def refute(self, key: str, why: str) -> None:
        """Report that the platform accepted a part and could not deliver it: the delivery is failed."""
        ...


async def _no_guest(module: str, job: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    raise Unreadable("No gateway is running.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a channel gets: its settings, a folder of its own, an HTTP client, and a place for hostile bytes.

    `settings` are the current ones; they change with a reload. The folder is private to the account and
    exists. `http` is shared: do not close it. `guest` runs a job of a module of `workspaces.guest` in a
    process that is ended when it takes too long or too much memory; it raises Unreadable.
    """

    channel: str
    account_id: str
    current: Callable[[], ChannelAccount] = field(repr=False)
    folder: Path
    http: Callable[[], aiohttp.ClientSession] = field(repr=False)
    guest: Callable[[str, dict[str, Any], float], Awaitable[dict[str, Any]]] = field(
        default=_no_guest, repr=False
    )

    @property
    def settings(self) -> Any:
        """The settings of this account, of the type that belongs to the channel."""
        return self.current()


class Channel:
    """A chat channel, for one account. Subclasses implement `run`, `send` and what `capabilities` state."""

    capabilities = Capabilities()
    webhook = False
    """Whether the platform calls `/channels/<channel>/<account>/webhook` of the gateway: see `on_webhook`."""

    def __init__(self, account: Account) -> None:
        self.account = account

    async def run(self, inbox: Inbox, ready: Callable[[Identity], None]) -> None:
        """Receive messages until cancelled. Call `ready` each time the connection is established.

        Raises Disconnected or an OSError to be started again after a pause, and LoginNeeded to be stopped.
        """
        raise LoginNeeded(f"The channel {self.account.channel} receives no messages.")

    async def send(self, part: Outgoing) -> str:
        """Send one part. Returns the platform's id for it."""
        raise Undeliverable(f"The channel {self.account.channel} cannot send.")

    async def find(self, part: Outgoing) -> str | None:
        """The platform's id of a part, if it was sent. Only with `finds_sent`. May raise NotNoted."""
        return None

    async def edit(self, address: Address, message_id: str, text: str) -> None:
        raise Undeliverable(f"The channel {self.account.channel} cannot edit messages.")

    async def delete(self, address: Address, message_id: str) -> None:
        raise Undeliverable(f"The channel {self.account.channel} cannot delete messages.")

    async def react(self, address: Address, message_id: str, emoji: str | None) -> None:
        """Set the bot's reaction to a message; None removes it."""
        raise Undeliverable(f"The channel {self.account.channel} has no reactions.")

    async def typing(self, address: Address) -> None:
        """Show that an answer is being written, for `typing_every_s` seconds."""

    async def can_open_thread(self, address: Address) -> str | None:
        """Why no thread can be opened in this chat; None if one can."""
        return f"The channel {self.account.channel} cannot open threads."

    async def open_thread(self, address: Address, title: str, root_message_id: str | None) -> str:
        """Open a thread in a chat. Returns its id, to be used as `Address.thread_id`."""
        raise Undeliverable(f"The channel {self.account.channel} cannot open threads.")

    def fetch(self, media: Media, limit: int) -> AsyncIterator[bytes]:
        """The content of a file of a message, in pieces, at most `limit` bytes. Raises Undeliverable."""
        raise Undeliverable(f"The channel {self.account.channel} cannot fetch files.")

    async def probe(self) -> Identity:
        """Ask the platform who the account is. Raises LoginNeeded, Disconnected."""
        raise LoginNeeded(f"The channel {self.account.channel} has no test of its connection.")

    async def login(self, show: Callable[[str], None]) -> Identity:
        """Sign in with a phone: `show` is given the text of a QR code, again whenever it changes.

        Raises LoginNeeded, Disconnected.
        """
        raise LoginNeeded(f"The channel {self.account.channel} signs in with what is in the settings.")

    async def logout(self) -> None:
        """Forget the credentials that a login obtained."""

    async def on_webhook(self, call: WebhookCall) -> WebhookAnswer:
        """Answer a call of the platform, after what it contains was accepted by the inbox.

        Anybody can call: check a signature or a secret first. If it raises, the caller is told to try again.
        """
        raise Disconnected(f"The channel {self.account.channel} has no webhook.")
