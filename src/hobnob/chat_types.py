"""Data types of chats: messages that came in, senders who were let in, threads of sub-agents."""

from __future__ import annotations

from typing import Literal

from hobnob.records import Struct, field
from hobnob.types import new_id, now_ms

InboxState = Literal["waiting", "turn", "command", "context", "shown", "pairing", "refused"]
PairingState = Literal["pending", "approved"]
ThreadState = Literal["opening", "open", "closed", "failed"]


class InboxEvent(Struct, frozen=True):
    """A message from a chat with the verdict on it. `body` is the message as JSON, None if it was refused.

    `seq` is the order of arrival. A waiting message becomes a turn at `due_at_ms`, together with others of
    the same sender. `recipient` and `reply_thread_id` are the address of an answer.
    """

    channel: str
    account_id: str
    event_id: str
    chat_id: str
    recipient: str
    sender_id: str
    state: InboxState
    code: str
    seq: int | None = None
    thread_id: str | None = None
    reply_thread_id: str | None = None
    sender_name: str = ""
    is_bot: bool = False
    why: str = ""
    fix: str = ""
    session_key: str | None = None
    turn_id: str | None = None
    body: str | None = None
    due_at_ms: int | None = None
    created_at_ms: int = field(default_factory=now_ms)


class Pairing(Struct, frozen=True):
    """A sender who asked to write to the bot in direct chat, or was let in. `is_owner`: as its owner."""

    channel: str
    account_id: str
    sender_id: str
    recipient: str
    code: str
    expires_at_ms: int
    sender_name: str = ""
    state: PairingState = "pending"
    is_owner: bool = False
    created_at_ms: int = field(default_factory=now_ms)
    approved_at_ms: int | None = None


class BoundThread(Struct, frozen=True):
    """A thread of a chat that belongs to a sub-agent. `thread_id` is None until the thread is open.

    With `mode` session it stays until it is closed, idle for `idle_ms` or `max_age_ms` old; 0 means never.
    """

    session_key: str
    requester_key: str
    channel: str
    account_id: str
    recipient: str
    binding_id: str = field(default_factory=new_id)
    thread_id: str | None = None
    mode: Literal["run", "session"] = "run"
    state: ThreadState = "opening"
    reason: str | None = None
    idle_ms: int = 0
    max_age_ms: int = 0
    created_at_ms: int = field(default_factory=now_ms)
    used_at_ms: int = field(default_factory=now_ms)
