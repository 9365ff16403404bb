"""Our own agent loop: history to model, tool calls to tools, until the model has nothing more to call.

A turn that was begun before, as by a process that crashed, is gone on with: tool calls without a result are
run again when the tool allows it and answered as interrupted otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from hobnob import crashpoints
from hobnob.models import Failed, Finished
from hobnob.runtimes import Emit, Ended, Message, ModelAnswered, ToolCalled, ToolReturned
from hobnob.tools import Context, Result, Toolbox
from hobnob.types import Outcome, now_ms, text_of

INTERRUPTED = (
    "Interrupted: Hobnob was restarted while this tool was running. It may or may not have had its effect. "
    "Find out before you call it again."
)


@dataclass(frozen=True, slots=True)
class Work:
    """What the loop may use. `ask` puts the messages to the model, `steer` fetches input that came since."""

    ask: Callable[[list[Message], Emit], Awaitable[Finished | Failed]]
    toolbox: Toolbox
    context: Context
    steer: Callable[[], Awaitable[list[Message]]]
    max_steps: int = 100


async def run(history: list[Message], work: Work, emit: Emit, *, begun: bool = False) -> Ended:
    """One turn, from the history to its outcome. `begun`: the history holds steps of this very turn."""
    messages = list(history)
    # Calls that an earlier turn left open, because it was stopped, are none of ours.
    calls = open_calls(messages) if begun else []
    if begun and not calls and messages[-1]["role"] == "assistant":
        return _ended(messages[-1], committed=True)
    resumed = bool(calls)
    for _ in range(work.max_steps):
        if calls:
            messages += await _answer(calls, work, emit, resumed=resumed)
            resumed = False
        if (said := _closing_words(messages, work.toolbox)) is not None:
            return Ended("ok", reply=said)
        messages += await work.steer()
        crashpoints.point("before-model")
        answer = await work.ask(messages, emit)
        crashpoints.point("after-model")
        if isinstance(answer, Failed):
            return Ended("failed", error=answer.message)
        calls = _calls(answer.message)
        if not calls:
            return _ended(answer.message)
        await emit(ModelAnswered(answer.message))
        messages.append(answer.message)
    why = f"The turn was stopped after {work.max_steps} steps (agents.defaults.maxSteps)."
    return Ended("failed", error=why)


def open_calls(messages: list[Message]) -> list[dict[str, Any]]:
    """The tool calls of the last answer that have no result yet."""
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    if last < 0:
        return []
    answered = {m["toolCallId"] for m in messages[last + 1 :] if m["role"] == "toolResult"}
    return [call for call in _calls(messages[last]) if call["id"] not in answered]


def _calls(message: Message) -> list[dict[str, Any]]:
    content = message.get("content")
    if not isinstance(content, list) or message.get("stopReason") == "aborted":
        return []
    return [part for part in content if part.get("type") == "toolCall"]


def _ended(message: Message, *, committed: bool = False) -> Ended:
    text = text_of(message)
    outcome: Outcome = "ok" if text.strip() else "no_output"
    return Ended(outcome, reply=text or None, message=None if committed else message)


def _closing_words(messages: list[Message], toolbox: Toolbox) -> str | None:
    """What a tool that ends the turn said, when one has just been called."""
    for message in reversed(messages):
        if message["role"] != "toolResult":
            return None
        if toolbox.ends_turn(message["toolName"]) and not message["isError"]:
            answer = orjson.loads(text_of(message))
            return str(answer.get("message", ""))
    return None


async def _answer(calls: list[dict[str, Any]], work: Work, emit: Emit, *, resumed: bool) -> list[Message]:
    """Run the calls, side by side where the tools allow it. Each result is told as it comes."""
    results: list[Message] = []

    async def one(call: dict[str, Any]) -> None:
        message = _message(call, await _call(call, work, emit, resumed=resumed))
        crashpoints.point("after-tool")
        await emit(ToolReturned(message))
        results.append(message)

    beside = [call for call in calls if work.toolbox.may_run_beside(call["name"])]
    async with asyncio.TaskGroup() as group:
        for call in beside:
            group.create_task(one(call), name=f"tool {call['name']}")
    for call in calls:
        if call not in beside:
            await one(call)
    return results


async def _call(call: dict[str, Any], work: Work, emit: Emit, *, resumed: bool) -> Result:
    name, arguments = call["name"], call.get("arguments") or {}
    if resumed and not work.toolbox.may_repeat(name):
        return Result(INTERRUPTED, is_error=True)
    if "malformed" in call:
        said = str(call["malformed"])[:500]
        return Result(f"The arguments of {name} were not a JSON object: {said}", is_error=True)
    await emit(ToolCalled(call["id"], name, arguments))
    crashpoints.point("before-tool")
    context = Context(work.context.session, work.context.turn, call["id"], work.context.waiting)
    return await work.toolbox.call(context, name, arguments)


def _message(call: dict[str, Any], result: Result) -> Message:
    return {
        "role": "toolResult",
        "toolCallId": call["id"],
        "toolName": call["name"],
        "content": [{"type": "text", "text": result.text}],
        "isError": result.is_error,
        "timestamp": now_ms(),
    }
