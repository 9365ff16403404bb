"""What is kept of transcripts between two turns, and when it is forgotten."""

from typing import Any

import orjson
import pytest

from hobnob.runtimes import context, transcripts
from hobnob.runtimes.transcripts import TranscriptCache
from hobnob.types import Entry, failure_message


def entry(seq: int, text: str = "hello", session_id: str = "s", **more: Any) -> Entry:
    message = {"role": "user", "content": text} | more
    body = orjson.dumps(message).decode()
    return Entry(
        session_id=session_id, seq=seq, role=message["role"], turn_id=None, body=body, created_at_ms=seq
    )


def entries(first: int, last: int) -> list[Entry]:
    return [entry(seq, f"message {seq}") for seq in range(first, last + 1)]


def test_only_what_is_new_has_to_be_loaded() -> None:
    cache = TranscriptCache()
    assert cache.position("k") is None
    first = cache.update("k", "s", entries(1, 3))
    assert (first.is_whole, cache.position("k")) == (True, ("s", 3))
    again = cache.update("k", "s", entries(4, 5))
    assert [m["content"] for m in again.messages] == [f"message {n}" for n in range(1, 6)]
    assert cache.update("k", "s", []) is again


@pytest.mark.parametrize(
    ("session_id", "loaded", "kept"),
    [("new", (1, 1), (1, 1)), ("s", (10, 12), (10, 12)), ("s", (2, 3), (2, 3))],
    ids=["another transcript", "a gap", "entries that are known"],
)
def test_what_does_not_follow_replaces_what_was_kept(
    session_id: str, loaded: tuple[int, int], kept: tuple[int, int]
) -> None:
    cache = TranscriptCache()
    cache.update("k", "s", entries(1, 3))
    found = cache.update("k", session_id, entries(*loaded))
    assert (found.first_seq, found.last_seq) == kept
    assert len(found.messages) == kept[1] - kept[0] + 1


def test_earlier_messages_are_put_in_front() -> None:
    found = TranscriptCache().update("k", "s", entries(5, 6))
    assert not found.is_whole
    found.prepend(entries(1, 4))
    assert found.is_whole
    assert [m.seq for m in found.messages] == [1, 2, 3, 4, 5, 6]
    assert found.tokens == sum(context.tokens(m) for m in found.messages)


def test_a_transcript_much_longer_than_the_window_is_trimmed_from_the_front() -> None:
    found = TranscriptCache().update("k", "s", entries(1, 100))
    budget = found.tokens // 4
    found.trim(found.tokens)
    assert len(found.messages) == 100
    found.trim(budget)
    assert 0 < found.tokens <= budget
    assert (found.messages[0].seq, found.last_seq) == (found.first_seq, 100)
    assert found.tokens == sum(m.tokens for m in found.messages)


def test_a_message_is_kept_as_a_model_reads_it() -> None:
    source = {"kind": "inter_session", "sourceSessionKey": "k"}
    result = {"role": "toolResult", "toolCallId": "c", "toolName": "t"}
    long = [{"type": "text", "text": "x" * 2 * context.RESULT_CHARS}]
    found = TranscriptCache().update(
        "k",
        "s",
        [
            entry(1, provenance=source),
            entry(2, content=long, **result),
            entry(3, **failure_message("The model is asleep.")),
        ],
    )
    marked, cut = found.messages
    assert marked["content"].startswith("[From the session")
    assert context.tokens(cut) < 2 * context.RESULT_CHARS / 3
    assert found.last_seq == 3


def test_the_transcripts_used_longest_ago_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = TranscriptCache()
    for key in ("a", "b", "c"):
        cache.update(key, "s", [entry(1, "x" * 1000)])
        cache.shrink(key)
    cache.update("a", "s", [])
    monkeypatch.setattr(transcripts, "MAX_CHARS", 2_500)
    cache.shrink("a")
    assert [cache.position(key) is not None for key in ("a", "b", "c")] == [True, False, True]
