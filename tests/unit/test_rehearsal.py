"""The rehearsal model."""

from typing import Any

import pytest

from hobnob.config import Settings
from hobnob.models import Failed, Finished, Request, TextDelta, ToolSpec
from hobnob.models.rehearsal import Rehearsal, command
from hobnob.types import text_of

TOOLS = [ToolSpec(n, "", {}) for n in ("sessions_list", "sessions_send", "sessions_spawn")]


async def answer(*messages: dict[str, Any], model: Rehearsal | None = None, **more: Any) -> Any:
    request = Request(
        model="rehearsal", system=more.pop("system", ""), messages=list(messages), tools=TOOLS, **more
    )
    model = model or Rehearsal(Settings())
    events = [event async for event in model.stream(request)]
    last = events[-1]
    if isinstance(last, Finished):
        assert "".join(e.text for e in events[:-1] if isinstance(e, TextDelta)) == text_of(last.message)
    return last


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        ("what is 2 + 3 * 4?", "2 + 3 * 4 = 14"),
        ("-1.5 - 2", "-1.5 - 2 = -3.5"),
        ("1 / 0", "1 / 0 = undefined"),
        ("say  hello   there ", "hello   there"),
        ("remember the milk", "I will remember: the milk"),
        ("what do you remember?", "You have not told me anything to remember."),
        ("good morning", "[rehearsal] You said: good morning"),
        ("history of main", "I would call sessions_history now, but this session does not have that tool."),
    ],
)
async def test_it_answers_plain_sentences(said: str, answered: str) -> None:
    assert text_of((await answer(user(said))).message) == answered


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("list sessions", ("sessions_list", {})),
        ("list agents", ("agents_list", {})),
        ("history of agent:x:main", ("sessions_history", {"sessionKey": "agent:x:main"})),
        ("search for cold milk", ("sessions_search", {"query": "cold milk"})),
        ("ask helper: how are you?", ("sessions_send", {"agentId": "helper", "message": "how are you?"})),
        ("ask main: hi", ("sessions_send", {"sessionKey": "main", "message": "hi"})),
        ("ask agent:x:main: hi", ("sessions_send", {"sessionKey": "agent:x:main", "message": "hi"})),
        ("tell x: hi", ("sessions_send", {"agentId": "x", "message": "hi", "timeoutSeconds": 0})),
        ("spawn: count", ("sessions_spawn", {"task": "count"})),
        ("spawn x: count", ("sessions_spawn", {"task": "count", "agentId": "x"})),
        ('call read {"path": "a"}', ("read", {"path": "a"})),
        ("call read {broken", None),
        ("hello", None),
    ],
)
def test_it_understands_commands(said: str, call: Any) -> None:
    assert command(said) == call


async def test_it_retells_what_tools_answered() -> None:
    call = (await answer(user("list sessions"))).message
    result = {"role": "toolResult", "toolCallId": "c", "toolName": "sessions_list"}
    told = await answer(
        user("list sessions"), call, {**result, "content": [{"type": "text", "text": '{"reply": "two"}'}]}
    )
    assert text_of(told.message) == "sessions_list: two"


async def test_it_stays_silent_where_agents_may() -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "the result"}]}
    reply = await answer(user("x"), said, user("y"), system="answer exactly REPLY_SKIP to stop")
    announce = await answer(user("x"), said, user("y"), system="or ANNOUNCE_SKIP")
    assert text_of(reply.message) == "REPLY_SKIP"
    assert text_of(announce.message) == "the result"


async def test_a_script_is_played_answer_by_answer_and_then_it_is_itself_again() -> None:
    scripts = {"main": ["One.", {"error": "busy", "times": 1}, "Two."]}
    model = Rehearsal(Settings.model_validate({"models": {"rehearsal": {"scripts": scripts}}}))
    key = "agent:main:main"
    first = await answer(user("a"), model=model, session_key=key)
    history = [user("a"), first.message, user("say hi")]
    failed = await answer(*history, model=model, session_key=key)
    second = await answer(*history, model=model, session_key=key)
    third = await answer(*history, second.message, user("say hi"), model=model, session_key=key)
    assert text_of(first.message) == "One."
    assert isinstance(failed, Failed)
    assert (text_of(second.message), text_of(third.message)) == ("Two.", "hi")
    other = await answer(user("say hi"), model=model, session_key="agent:main:hook:1")
    assert text_of(other.message) == "hi"
