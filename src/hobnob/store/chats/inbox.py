"""Verbs on the inbox: messages from chats, the verdict on each, and the position of each channel account."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from hobnob.chat_types import InboxEvent, InboxState
from hobnob.events import InboxChanged
from hobnob.records import Struct
from hobnob.store.engine.tx import Tx
from hobnob.types import now_ms

_MAX_WAITING = 1_000


class Chat(Struct, frozen=True):
    """A chat as one account of a channel sees it."""

    channel: str
    account_id: str
    chat_id: str

    @classmethod
    def of(cls, event: InboxEvent) -> Chat:
        return cls(event.channel, event.account_id, event.chat_id)

    def _where(self) -> dict[str, str]:
        return {"channel": self.channel, "account_id": self.account_id, "chat_id": self.chat_id}


def add(tx: Tx, event: InboxEvent) -> None:
    """Store a message and the verdict on it. Its event id must be new."""
    tx.put("inbox_insert", event)
    tx.changes.append(InboxChanged(event))


def find(tx: Tx, channel: str, account_id: str, event_id: str) -> InboxEvent | None:
    return tx.get(InboxEvent, "inbox_get", channel=channel, account_id=account_id, event_id=event_id)


def recent(tx: Tx, *, before: int | None = None, limit: int = 50) -> list[InboxEvent]:
    """The newest messages of all channels, newest first."""
    return tx.all(InboxEvent, "inbox_recent", before=before or 2**62, limit=limit)


def by_event_id(tx: Tx, event_id: str) -> list[InboxEvent]:
    """The messages with this id, on whatever channel."""
    return tx.all(InboxEvent, "inbox_by_event", event_id=event_id, limit=10)


def waiting(tx: Tx) -> list[InboxEvent]:
    """Messages that still have to become turns, in the order of arrival."""
    return tx.all(InboxEvent, "inbox_waiting", limit=_MAX_WAITING)


def waiting_in(tx: Tx, chat: Chat) -> list[InboxEvent]:
    return tx.all(InboxEvent, "inbox_waiting_in_chat", limit=_MAX_WAITING, **chat._where())


def postpone(tx: Tx, chat: Chat, due_at_ms: int) -> None:
    """Let the waiting messages of a chat wait until then."""
    tx.run("inbox_postpone", due_at_ms=due_at_ms, **chat._where())


def still_waiting(tx: Tx, events: Sequence[InboxEvent]) -> list[InboxEvent]:
    """Those that nobody has taken up meanwhile: the account may have moved to another gateway."""
    left = {row[0] for row in tx.rows("inbox_still_waiting", seqs=_seqs(events))}
    return [event for event in events if event.seq in left]


def settle(
    tx: Tx,
    events: Sequence[InboxEvent],
    state: InboxState,
    *,
    code: str,
    why: str = "",
    fix: str = "",
    session_key: str | None = None,
    turn_id: str | None = None,
) -> None:
    """Record what became of waiting messages. The text of a refused one is not kept."""
    tx.run(
        "inbox_settle",
        seqs=_seqs(events),
        state=state,
        code=code,
        why=why,
        fix_text=fix,
        session_key=session_key,
        turn_id=turn_id,
        keep_body=state != "refused",
    )


def _seqs(events: Sequence[InboxEvent]) -> str:
    return orjson.dumps([event.seq for event in events]).decode()


def context(tx: Tx, chat: Chat, thread_id: str | None, limit: int) -> list[InboxEvent]:
    """Messages of a chat that were not addressed to the bot since it last answered, oldest first."""
    thread = thread_id or ""
    return tx.all(InboxEvent, "inbox_context", thread_id=thread, limit=limit, **chat._where())[::-1]


def shown(tx: Tx, chat: Chat, thread_id: str | None, up_to: int) -> None:
    """Record that the agent was shown the context of a chat; the texts are not kept any longer."""
    tx.run("inbox_shown", thread_id=thread_id or "", seq=up_to, **chat._where())


def count_of_bot(tx: Tx, chat: Chat, sender_id: str, since_ms: int) -> int:
    """How many messages of a bot in a chat were admitted since a time."""
    count: int = tx.value("inbox_bot_events", sender_id=sender_id, since_ms=since_ms, **chat._where())
    return count


def chats(tx: Tx, channel: str, account_id: str, *, limit: int = 500) -> list[tuple[str | None, ...]]:
    """Rows (chat, thread, recipient, reply thread, newest event) of the chats messages came from."""
    return tx.rows("inbox_chats", channel=channel, account_id=account_id, limit=limit)


def cursor(tx: Tx, channel: str, account_id: str) -> str | None:
    """The position of a channel account."""
    found: str | None = tx.value("cursor_get", channel=channel, account_id=account_id)
    return found


def set_cursor(tx: Tx, channel: str, account_id: str, cursor: str) -> None:
    tx.run("cursor_put", channel=channel, account_id=account_id, cursor=cursor, now_ms=now_ms())


def forget_cursor(tx: Tx, channel: str, account_id: str) -> None:
    tx.run("cursor_delete", channel=channel, account_id=account_id)
