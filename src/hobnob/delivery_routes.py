"""Delivery routes: the channel and recipient of a session's chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from hobnob.records import Struct, asdict
from hobnob.types import Delivery, Session

WEBCHAT = "webchat"


class DeliveryRoute(Struct, frozen=True):
    channel: str
    to: str
    account_id: str | None = None
    thread_id: str | None = None

    def json(self) -> str:
        return orjson.dumps([self.channel, self.to, self.account_id, self.thread_id]).decode()

    def delivery(self, session_key: str, text: str, **more: Any) -> Delivery:
        """A new delivery on this route."""
        return Delivery(
            session_key=session_key,
            channel=self.channel,
            recipient=self.to,
            account_id=self.account_id,
            thread_id=self.thread_id,
            text=text,
            **more,
        )

    @classmethod
    def from_json(cls, text: str) -> DeliveryRoute:
        return cls(*orjson.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyAddress:
    """Where the answer of a turn goes. It is stored in the options of the turn.

    `message_id` is the message it answers. `owed`: the sender expects an answer, so a failure is told.
    `to_owner`: the sender is an owner and is told why. `joined`: several messages became one turn.
    """

    route: DeliveryRoute
    message_id: str | None = None
    owed: bool = True
    to_owner: bool = False
    joined: bool = False
    chat_type: str = "direct"

    def json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__slots__}
        return found | {"route": asdict(self.route)}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ReplyAddress:
        return cls(**raw | {"route": DeliveryRoute(**raw["route"])})


def delivery_route(session: Session) -> DeliveryRoute | None:
    """The route to the people of a session: where they last wrote.

    A session key names no address: its ids are folded, so that a platform would not recognise them.
    """
    if session.last_channel and session.last_to:
        return DeliveryRoute(
            session.last_channel, session.last_to, session.last_account_id, session.last_thread_id
        )
    return None
