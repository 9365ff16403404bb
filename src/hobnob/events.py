"""What a commit changed: told to watchers of the store, and through the hub to whoever listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hobnob.types import Approval, Delivery, Entry, Exchange, Session, Turn

Reason = Literal["create", "patch", "reset", "archive", "restore"]


@dataclass(frozen=True, slots=True)
class EntryAppended:
    """An entry was added to a transcript."""

    session_key: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class TurnChanged:
    """A turn was accepted, claimed, released or ended, or is to be."""

    turn: Turn

    @property
    def session_key(self) -> str:
        return self.turn.session_key


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """A session was made, or settings of it were changed."""

    session: Session
    reason: Reason

    @property
    def session_key(self) -> str:
        return self.session.key


@dataclass(frozen=True, slots=True)
class SessionDeleted:
    """A session and its transcripts are gone."""

    session_key: str


@dataclass(frozen=True, slots=True)
class ExchangeChanged:
    """An exchange began, went on or ended. It is of two sessions: whoever hears of it must see both."""

    exchange: Exchange

    @property
    def session_key(self) -> str:
        return self.exchange.target_key

    @property
    def other_key(self) -> str | None:
        return self.exchange.requester_key


@dataclass(frozen=True, slots=True)
class DeliveryChanged:
    """A message was put on its way, or an attempt to send it is over."""

    delivery: Delivery

    @property
    def session_key(self) -> str:
        return self.delivery.session_key


@dataclass(frozen=True, slots=True)
class ApprovalChanged:
    """A command waits for a person's yes, or somebody answered, or nobody did in time."""

    approval: Approval

    @property
    def session_key(self) -> str:
        return self.approval.session_key


Change = (
    EntryAppended
    | TurnChanged
    | SessionChanged
    | SessionDeleted
    | ExchangeChanged
    | DeliveryChanged
    | ApprovalChanged
)
