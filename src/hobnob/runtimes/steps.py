"""Store verbs that commit the steps of a turn. Each checks that the claim of the turn still holds."""

from __future__ import annotations

from typing import Any

from hobnob import metering
from hobnob.runtimes import Message
from hobnob.store import Tx, entries, turns
from hobnob.store.costs import usage as usage_rows
from hobnob.types import Turn, Usage


def append_step(tx: Tx, turn: Turn, message: Message) -> None:
    """Append an answer or a tool result."""
    _progress(tx, turn)
    append(tx, turn, message)


def save_compaction(tx: Tx, turn: Turn, state: entries.Compaction, spent: tuple[Message, ...]) -> None:
    """Save how far a compaction is, with the usage of the answers it took."""
    _progress(tx, turn)
    entries.set_compaction(tx, turn.session_id, state)
    for message in spent:
        if usage := message.get("usage"):
            _add_usage(tx, turn, message, usage)


def append_summary(tx: Tx, turn: Turn, message: Message) -> None:
    """Append the entry of a compaction. Its usage was recorded while it was made."""
    _progress(tx, turn)
    entries.append(tx, turn.session_id, message, turn_id=turn.turn_id)
    entries.set_compaction(tx, turn.session_id, None)


def append(tx: Tx, turn: Turn, message: Message) -> None:
    """Append a message of the turn and record its usage, without checking the claim."""
    entries.append(tx, turn.session_id, message, turn_id=turn.turn_id)
    usage = message.get("usage")
    if usage:
        _add_usage(tx, turn, message, usage)


def _add_usage(tx: Tx, turn: Turn, message: Message, usage: dict[str, Any]) -> None:
    metering.book(tx, turn, usage)
    spent = Usage(
        day=usage_rows.today(),
        agent_id=turn.agent_id,
        session_key=turn.session_key,
        model=f"{message.get('provider')}/{message.get('model')}",
        calls=1,
        input_tokens=usage.get("input", 0),
        output_tokens=usage.get("output", 0),
        cache_read_tokens=usage.get("cacheRead", 0),
        cache_write_tokens=usage.get("cacheWrite", 0),
        cost_usd=(usage.get("cost") or {}).get("total", 0.0),
    )
    usage_rows.add(tx, spent, context_tokens=usage.get("totalTokens"))
    turns.add_usage(
        tx,
        turn.turn_id,
        input_tokens=spent.input_tokens + spent.cache_read_tokens + spent.cache_write_tokens,
        output_tokens=spent.output_tokens,
        cost_usd=spent.cost_usd,
    )


def _progress(tx: Tx, turn: Turn) -> None:
    """Check the claim; what killed the process earlier is behind the turn now."""
    turns.check_claim(tx, turn)
    if turn.crashes:
        turns.progressed(tx, turn)
