"""Delivery routes: the channel and recipient of a session's chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from hobnob.types import Delivery, Session

WEBCHAT = "webchat"


@dataclass(frozen=True, slots=True)
class DeliveryRoute:
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


def delivery_route(session: Session) -> DeliveryRoute | None:
    """The route to the people of a session: where they last wrote, else what its key names."""
    if session.last_channel and session.last_to:
        return DeliveryRoute(
            session.last_channel, session.last_to, session.last_account_id, session.last_thread_id
        )
    if session.channel and session.peer and session.chat_type:
        return DeliveryRoute(session.channel, session.peer, session.account_id, session.thread_id)
    return None
