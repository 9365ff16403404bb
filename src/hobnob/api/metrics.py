"""What the gateway counts, in the text format of Prometheus. No label holds anything of a conversation."""

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
    """Counts what is committed, from the start of the process on."""

    def __init__(self) -> None:
        self.turns: Counter[Labels] = Counter()
        self.turn_seconds: defaultdict[Labels, float] = defaultdict(float)
        self.deliveries: Counter[Labels] = Counter()
        self.tokens: Counter[Labels] = Counter()
        self.cost_usd = 0.0

    def changed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case TurnChanged(turn) if turn.status == "ended":
                    self._ended(turn)
                case DeliveryChanged(delivery):
                    self.deliveries[(("channel", delivery.channel), ("state", delivery.state))] += 1
                case EntryAppended(_, entry) if entry.role == "assistant":
                    self._spent(entry)

    def _ended(self, turn: Turn) -> None:
        outcome = turn.outcome or "merged"  # into a turn that was running: that one has the outcome
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


def family(name: str, kind: str, said: str, values: Mapping[Labels, float]) -> str:
    """One metric with all its values. A metric without any is still named, so that it can be looked for."""
    lines = [f"# HELP hobnob_{name} {said}", f"# TYPE hobnob_{name} {kind}"]
    for labels, value in sorted(values.items()):
        shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        lines.append(
            f"hobnob_{name}{{{shown}}} {_number(value)}" if shown else f"hobnob_{name} {_number(value)}"
        )
    return "\n".join(lines) + "\n"


def single(name: str, kind: str, said: str, value: float) -> str:
    return family(name, kind, said, {(): value})


def labelled(rows: Iterable[tuple[object, ...]], *names: str) -> dict[Labels, float]:
    """Rows of a query, the last column of which is the value."""
    return {tuple(zip(names, map(str, words), strict=True)): float(str(value)) for *words, value in rows}


def resident_bytes() -> int:
    """The memory this process has, 0 where that cannot be told."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
