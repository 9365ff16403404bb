"""Old tool results in requests: shortened, cleared, or left alone."""

from typing import Any

import pytest

from hobnob.config.agents import ContextPruning
from hobnob.runtimes import pruning
from hobnob.types import text_of

NOW = 10_000_000
ON = ContextPruning(mode="cache-ttl")


def conversation(rounds: int, chars: int, tool: str = "read") -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    for n in range(rounds):
        call = {"type": "toolCall", "id": f"c{n}", "name": tool, "arguments": {}}
        messages.append({"role": "assistant", "content": [call], "timestamp": 1})
        text = f"{n}:" + "x" * chars
        messages.append(
            {
                "role": "toolResult",
                "toolCallId": f"c{n}",
                "toolName": tool,
                "content": [{"type": "text", "text": text}],
            }
        )
    return messages


def results(messages: list[dict[str, Any]]) -> list[int]:
    return [len(text_of(m)) for m in messages if m["role"] == "toolResult"]


@pytest.mark.promise("life.pruning")
def test_old_results_keep_their_ends_and_the_last_ones_are_untouched() -> None:
    before = conversation(6, 10_000)
    after = pruning.prune(before, ON, 50_000, NOW)
    assert [size < 3_100 for size in results(after)] == [True, True, True, False, False, False]
    assert results(before) == [10_002] * 6  # the conversation itself is not changed


@pytest.mark.promise("life.pruning")
def test_very_many_old_results_are_cleared() -> None:
    after = pruning.prune(conversation(40, 3_900), ON, 50_000, NOW)
    placeholder = len(ON.hard_clear.placeholder)
    assert results(after)[:37] == [placeholder] * 37 and results(after)[37:] == [3_902 + (1)] * 3


@pytest.mark.promise("life.pruning")
@pytest.mark.parametrize(
    ("settings", "window", "now"),
    [
        (ContextPruning(), 50_000, NOW),  # off
        (ON, 50_000, 1000),  # the cache is still valid
        (ON, 10_000_000, NOW),  # far from full
        (ContextPruning.model_validate({"mode": "cache-ttl", "tools": {"deny": ["re*"]}}), 50_000, NOW),
        (ContextPruning.model_validate({"mode": "cache-ttl", "tools": {"allow": ["exec"]}}), 50_000, NOW),
    ],
)
def test_otherwise_nothing_changes(settings: ContextPruning, window: int, now: int) -> None:
    before = conversation(6, 10_000)
    assert pruning.prune(before, settings, window, now) == before
