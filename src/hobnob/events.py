"""Events: what a commit changed, and what happens in a turn before it is committed.

The store hands the changes of a commit to its watchers; the hub publishes changes and live events to
subscribers.
"""

from __future__ import annotations

from typing import Any, Literal

from hobnob.chat_types import InboxEvent, Pairing
from hobnob.records import Struct
from hobnob.types import Approval, Delivery, Entry, Exchange, Job, JobRun, Session, Turn

JobAction = Literal["added", "updated", "removed", "started", "finished"]
Reason = Literal["create", "patch", "reset", "archive", "restore"]


class EntryAppended(Struct, frozen=True):
    """An entry was appended to a transcript."""

    session_key: str
    entry: Entry


class TurnChanged(Struct, frozen=True):
    """A turn was accepted, claimed, released or ended, or its abort was requested."""

    turn: Turn

    @property
    def session_key(self) -> str:
        return self.turn.session_key


class SessionChanged(Struct, frozen=True):
    """A session was created, or its settings changed."""

    session: Session
    reason: Reason

    @property
    def session_key(self) -> str:
        return self.session.key


class SessionDeleted(Struct, frozen=True):
    """A session was deleted, with its transcripts. `session_id` is the last of them."""

    session_key: str
    session_id: str


class ExchangeChanged(Struct, frozen=True):
    """An exchange began, advanced or ended. A subscriber needs access to both of its sessions."""

    exchange: Exchange

    @property
    def session_key(self) -> str:
        return self.exchange.target_key

    @property
    def other_key(self) -> str | None:
        return self.exchange.requester_key


class DeliveryChanged(Struct, frozen=True):
    """A delivery was queued, or an attempt to send it finished."""

    delivery: Delivery

    @property
    def session_key(self) -> str:
        return self.delivery.session_key


class ApprovalChanged(Struct, frozen=True):
    """An approval was requested, decided or expired."""

    approval: Approval

    @property
    def session_key(self) -> str:
        return self.approval.session_key


class InboxChanged(Struct, frozen=True):
    """A message came in from a chat."""

    event: InboxEvent

    @property
    def session_key(self) -> str:
        return self.event.session_key or ""


class PairingChanged(Struct, frozen=True):
    """A sender asked to be let in, was let in, or was removed."""

    pairing: Pairing
    session_key: str = ""


class JobChanged(Struct, frozen=True):
    """A scheduled job was added, changed or removed, or a run of it started or finished."""

    job: Job
    action: JobAction
    run: JobRun | None = None

    @property
    def session_key(self) -> str:
        return f"agent:{self.job.agent_id}:cron:{self.job.job_id}"


Change = (
    EntryAppended
    | TurnChanged
    | SessionChanged
    | SessionDeleted
    | ExchangeChanged
    | DeliveryChanged
    | ApprovalChanged
    | InboxChanged
    | PairingChanged
    | JobChanged
)
"""What a commit changed."""


class AnswerDelta(Struct, frozen=True):
    """A piece of streamed answer text. `restart` discards the pieces before it: the model is asked again."""

    session_key: str
    turn_id: str
    text: str
    thinking: bool = False
    restart: bool = False


class ToolStarted(Struct, frozen=True):
    """A tool call started."""

    session_key: str
    turn_id: str
    call_id: str
    name: str
    arguments: dict[str, Any]


class WebchatMessage(Struct, frozen=True):
    """A delivery for the gateway's own chat: web page, command line, WebSocket clients."""

    session_key: str
    delivery: Delivery


LiveEvent = AnswerDelta | ToolStarted | WebchatMessage
"""What is not stored."""

Event = Change | LiveEvent
"""What the hub publishes: every change, and live events that are not stored."""
