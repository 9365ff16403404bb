"""Which messages of a conversation fit into the context window of a model."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hobnob.runtimes import context
from hobnob.runtimes.transcripts import as_read


def said(role: str, text: str = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}], **more}


conversations = st.lists(
    st.builds(said, st.sampled_from(["user", "assistant", "toolResult"]), st.text(max_size=40)), max_size=30
)


@given(conversations, st.integers(0, 400))
def test_what_is_kept_is_the_end_of_the_conversation(messages: Any, limit: int) -> None:
    kept = context.fit(messages, limit)
    assert kept == messages[len(messages) - len(kept) :]


@given(conversations, st.integers(0, 400))
def test_the_last_input_always_stays_and_what_is_kept_starts_with_input(messages: Any, limit: int) -> None:
    kept = context.fit(messages, limit)
    inputs = [i for i, m in enumerate(messages) if m["role"] == "user"]
    if inputs:
        assert kept[0]["role"] == "user"
        assert len(messages) - len(kept) <= inputs[-1]


@given(conversations, st.integers(100, 400))
def test_what_is_kept_fits_unless_it_is_the_last_input_alone(messages: Any, limit: int) -> None:
    kept = context.fit(messages, limit)
    inputs = [m for m in kept if m["role"] == "user"]
    assert sum(map(context.tokens, kept)) <= limit or len(inputs) <= 1


def test_a_long_tool_result_is_shortened_with_a_note_and_only_for_the_model() -> None:
    whole = said("toolResult", "a" * 900 + "b" * 100)
    short = context.cut(whole, 100)
    text = short["content"][0]["text"]
    assert text.startswith("a" * 75)
    assert text.endswith("b" * 25)
    assert "900 of 1,000 characters left out" in text
    assert len(whole["content"][0]["text"]) == 1000


def test_other_messages_are_not_shortened() -> None:
    long = said("user", "a" * 2 * context.RESULT_CHARS)
    assert as_read(long) == long
