"""Metrics in the Prometheus text format. Labels never contain conversation content."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from hobnob.events import Change, DeliveryChanged, EntryAppended, TurnChanged
from hobnob.types import Entry, Turn

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[tuple[str, str], ...]
_TOKENS = {"input": "input", "output": "output", "cacheRead": "cache_read", "cacheWrite": "cache_write"}


class Metrics:
    """Counters of committed changes since the process started."""

    def __init__(self) -> None:
        self.turns: Counter[Labels] = Counter()
        self.turn_seconds: defaultdict[Labels, float] = defaultdict(float)
        self.deliveries: Counter[Labels] = Counter()
        self.tokens: Counter[Labels] = Counter()
        self.cost_usd = 0.0

    def on_changes(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case TurnChanged(turn) if turn.status == "ended":
                    self._ended(turn)
                case DeliveryChanged(delivery):
                    self.deliveries[(("channel", delivery.channel), ("state", delivery.state))] += 1
                case EntryAppended(_, entry) if entry.role == "assistant":
                    self._spent(entry)

    def _ended(self, turn: Turn) -> None:
        outcome = turn.outcome or "merged"  # the turn it was merged into has the outcome
        self.turns[(("outcome", outcome), ("step", turn.step))] += 1
        if turn.started_at_ms is not None and turn.ended_at_ms is not None:
            self.turn_seconds[(("step", turn.step),)] += (turn.ended_at_ms - turn.started_at_ms) / 1000

    def _spent(self, entry: Entry) -> None:
        message = entry.message
        usage = message.get("usage")
        if not isinstance(usage, dict):
            return
        model = ("model", f"{message.get('provider')}/{message.get('model')}")
        for name, kind in _TOKENS.items():
            self.tokens[(model, ("kind", kind))] += int(usage.get(name) or 0)
        self.cost_usd += float((usage.get("cost") or {}).get("total") or 0)


def family(name: str, kind: str, help_text: str, values: Mapping[Labels, float]) -> str:
    """One metric with all its values; its head is written even without values."""
    lines = [f"# HELP hobnob_{name} {help_text}", f"# TYPE hobnob_{name} {kind}"]
    for labels, value in sorted(values.items()):
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        lines.append(
            f"hobnob_{name}{{{shown}}} {_number(value)}" if shown else f"hobnob_{name} {_number(value)}"
        )
    return "\n".join(lines) + "\n"


def single(name: str, kind: str, help_text: str, value: float) -> str:
    return family(name, kind, help_text, {(): value})


def labelled(rows: Iterable[tuple[object, ...]], *names: str) -> dict[Labels, float]:
    """Query rows as labelled values; the last column is the value."""
    return {tuple(zip(names, map(str, words), strict=True)): float(str(value)) for *words, value in rows}


def resident_bytes() -> int:
    """Resident memory of this process, 0 where it is unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
