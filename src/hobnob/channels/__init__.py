"""The channel interface: what a chat channel implements."""

from __future__ import annotations

from typing import Protocol

from hobnob.types import Delivery


class Undeliverable(Exception):
    """The channel did not accept a message. `again`: it may accept it later."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


class Channel(Protocol):
    """A chat channel. `repeatable`: sending a delivery again, recognised by its id, has no second effect."""

    name: str
    repeatable: bool

    async def send(self, delivery: Delivery) -> str | None:
        """Send a message. Returns the channel's id for it. Raises Undeliverable."""
        ...
