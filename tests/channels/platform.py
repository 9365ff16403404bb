"""A chat platform under test: a real server, or a fake that behaves as the platform's documents say.

The contract suite runs once for each implementation of `Platform`. People are called by short names such as
`ann`; the platform gives each an id. There is one group, `room`, that the bot is a member of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Post:
    """A message of the bot, as the platform has it."""

    id: str
    text: str
    chat: str
    """`room`, or the name of the person whose direct chat with the bot it is in."""
    thread: str | None = None
    reply_to: str | None = None
    file: bytes | None = None


class Platform(Protocol):
    name: str
    can: frozenset[str]
    """What the platform has: `thread`, `open_thread`, `media_in`, `media_out`, `edit`, `typing`, `reaction`,
    `replay` (messages of a time when the gateway was down arrive later, also those that it had received and
    not stored), `backlog` (only those that it had not received), `limit`, `limit_of_account` (not of a chat),
    `lost_receipt`."""

    async def start(self) -> None:
        """Start the server, or start it again with everything it had."""
        ...

    async def stop(self) -> None:
        """The server is gone: connections end and new ones are refused."""
        ...

    def settings(self) -> dict[str, Any]:
        """The block `channels.<name>` with which the bot connects to it; no access rules."""
        ...

    def user_id(self, person: str) -> str:
        """The id of a person, as in `allowFrom`."""
        ...

    def room_id(self) -> str:
        """The id of the group, as in `groups`."""
        ...

    def group_rules(self, rules: dict[str, Any]) -> dict[str, Any]:
        """The part of the settings that lists the group with these rules."""
        ...

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
        """A person writes to the bot directly, or in the room. Returns the id of the message."""
        ...

    async def repeat(self, message_id: str) -> None:
        """Deliver the event of a message once more."""
        ...

    async def posts(self, count: int, *, chat: str) -> list[Post]:
        """Wait until the bot has posted at least `count` messages in a chat; all of them, oldest first."""
        ...

    async def open_thread(self) -> str:
        """A person opens a thread in the room. Returns its id."""
        ...

    def limit_once(self, after_s: float) -> None:
        """Answer the next message of the bot with a rate limit."""
        ...

    def lose_receipt_once(self) -> None:
        """Take the next message of the bot, then end the connection without an answer."""
        ...
