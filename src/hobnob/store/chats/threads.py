"""Verbs on bound threads: threads of chats that belong to sub-agents."""

from __future__ import annotations

from hobnob.chat_types import BoundThread, ThreadState
from hobnob.records import replace
from hobnob.store import deliveries
from hobnob.store.engine.tx import Tx
from hobnob.types import now_ms


def bind(tx: Tx, thread: BoundThread) -> BoundThread:
    """Bind a thread, which may still have to be opened, to a session."""
    tx.put("thread_insert", thread)
    return thread


def at(tx: Tx, channel: str, account_id: str, recipient: str, thread_id: str) -> BoundThread | None:
    """The binding of a thread, if it is bound."""
    where = {"channel": channel, "account_id": account_id, "recipient": recipient, "thread_id": thread_id}
    return tx.get(BoundThread, "thread_at", **where)


def of_session(tx: Tx, session_key: str) -> BoundThread | None:
    """The thread that belongs to a session."""
    return tx.get(BoundThread, "thread_of_session", session_key=session_key)


def open_ones(tx: Tx) -> list[BoundThread]:
    """The threads that are bound, oldest first."""
    return tx.all(BoundThread, "threads_open", limit=1_000)


def opened(tx: Tx, thread: BoundThread, thread_id: str) -> BoundThread:
    """The platform opened the thread. What waits for its session is sent there."""
    deliveries.into_thread(tx, thread.session_key, thread_id)
    return _set(tx, thread, "open", thread_id=thread_id)


def close(tx: Tx, thread: BoundThread, reason: str, *, state: ThreadState = "closed") -> BoundThread:
    """Give a thread back: later messages in it are those of its chat."""
    return _set(tx, thread, state, thread_id=thread.thread_id, reason=reason)


def used(tx: Tx, thread: BoundThread) -> None:
    """A message came in: the idle time begins anew."""
    tx.run("thread_used", binding_id=thread.binding_id, now_ms=now_ms())


def forget_closed(tx: Tx, before_ms: int) -> int:
    """Delete bindings that were closed before then."""
    return tx.run("threads_closed", before=before_ms)


def expired(thread: BoundThread, at_ms: int) -> str | None:
    """Why a thread is to be given back at that time; None if it is not. Pure."""
    if thread.idle_ms and at_ms - thread.used_at_ms > thread.idle_ms:
        return "idle"
    if thread.max_age_ms and at_ms - thread.created_at_ms > thread.max_age_ms:
        return "max age"
    return None


def _set(
    tx: Tx, thread: BoundThread, state: ThreadState, *, thread_id: str | None, reason: str | None = None
) -> BoundThread:
    tx.run(
        "thread_set",
        binding_id=thread.binding_id,
        state=state,
        thread_id=thread_id,
        reason=reason,
        now_ms=now_ms(),
    )
    return replace(thread, state=state, thread_id=thread_id, reason=reason)
