"""Typed results: the tool by which a turn gives a result that fits a JSON schema, and its one correction.

A call that does not fit is answered with what is wrong; an answer in text only is answered with a reminder.
Either is the one correction. After that the turn ends with its text and the reason. How far a turn has got is
read from its messages, so that a resumed turn goes on counting.
"""

from __future__ import annotations

from typing import Any

import orjson

from hobnob import output_schemas
from hobnob.errors import ToolRefused
from hobnob.runtimes import Ended, Message
from hobnob.tools import Context, Tool, tool
from hobnob.types import now_ms, text_of

NAME = output_schemas.TOOL
REMINDER = (
    f"Your result is missing: it is taken from a call of {NAME} only, not from text."
    f" Call {NAME} now, with the whole result."
)
BRIEFING = f"When you are done, call {NAME} with your result. Its parameters are the form that is expected."
_NOT_CALLED = f"{NAME} was not called."
_ERROR_CHARS = 1_000


class TypedResult:
    """The typed result of one turn."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.tool = _make_tool(schema)

    def reminder(self, messages: list[Message]) -> Message | None:
        """The message for a turn that answered without its result; None when it was corrected before."""
        if _corrections(messages):
            return None
        source = {"kind": "gateway", "step": "correction"}  # the text is the server's own
        return {"role": "user", "content": REMINDER, "provenance": source, "timestamp": now_ms()}

    def is_spent(self, messages: list[Message]) -> bool:
        """Whether the last call was wrong although the turn had been corrected."""
        return _corrections(messages) > 1

    def ended(self, messages: list[Message], message: Message | None = None) -> Ended:
        """The outcome of a turn that gave no result: its text, and why. `message` is not committed yet."""
        own = _of_turn([*messages, message] if message else messages)
        texts = [text_of(m) for m in own if m["role"] == "assistant"]
        text = next((text for text in reversed(texts) if text.strip()), "")
        wrong = [problem for m in own if (problem := _problem([m])) is not None]
        return Ended(
            "ok" if text.strip() else "no_output",
            reply=text or None,
            message=message,
            schema_error=wrong[-1] if wrong else _NOT_CALLED,
        )


def result_of(messages: list[Message]) -> Ended | None:
    """The outcome of a turn whose last results include a result that fits."""
    for message in reversed(messages):
        if message["role"] != "toolResult":
            return None
        if message["toolName"] == NAME and not message["isError"]:
            value = orjson.dumps(orjson.loads(text_of(message))["structured"]).decode()
            text = next((text_of(m) for m in reversed(messages) if m["role"] == "assistant"), "")
            return Ended("ok", reply=text if text.strip() else value, structured=value)
    return None


def _make_tool(schema: dict[str, Any]) -> Tool:
    async def function(context: Context, arguments: dict[str, Any]) -> dict[str, Any]:
        """Give the result of your task. It ends your turn. Call it once, when you are done."""
        if wrong := output_schemas.problems(schema, arguments):
            raise ToolRefused(f"The result does not fit its schema. {' '.join(wrong)}")
        return {"status": "ok", "structured": arguments}

    return tool(name=NAME, group="own", repeatable=True, ends_turn=True, schema=schema)(function)


def _of_turn(messages: list[Message]) -> list[Message]:
    """The messages after the input of the turn."""
    first = max(
        (i for i, m in enumerate(messages) if m["role"] == "user" and not _is_reminder(m)), default=-1
    )
    return messages[first + 1 :]


def _corrections(messages: list[Message]) -> int:
    """How often the turn was told what is wrong. Several wrong calls of one answer count once."""
    count, before = 0, False
    for message in _of_turn(messages):
        wrong = _problem([message]) is not None
        count += _is_reminder(message) or (wrong and not before)
        before = message["role"] == "toolResult" and (wrong or before)
    return count


def _is_reminder(message: Message) -> bool:
    return message["role"] == "user" and text_of(message).strip() == REMINDER


def _problem(messages: list[Message]) -> str | None:
    """What was wrong with a call, if the message is its refusal."""
    for message in messages:
        if message["role"] == "toolResult" and message["toolName"] == NAME and message["isError"]:
            try:
                return str(orjson.loads(text_of(message))["error"])[:_ERROR_CHARS]
            except (ValueError, KeyError, TypeError):
                return text_of(message)[:_ERROR_CHARS]
    return None
