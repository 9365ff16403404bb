"""The built-in agent loop: call the model, run its tool calls, repeat until it calls no more tools.

A turn that an earlier process began is resumed. Its tool calls without a result run again if the tool is
repeatable; otherwise their result says that they were interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from hobnob import crashpoints, json_input, redact, tracing
from hobnob.models import RETRYABLE, Failed, Finished
from hobnob.records import Struct
from hobnob.runtimes import Emit, Ended, Message, ModelAnswered, Reminded, ToolCalled, ToolReturned
from hobnob.runtimes.structured import TypedResult, result_of
from hobnob.tools import Context, Result, Toolbox, error_result
from hobnob.types import Outcome, now_ms, text_of

INTERRUPTED = (
    "Interrupted: Hobnob was restarted while this tool was running. It may or may not have taken effect. "
    "Check before you call it again."
)
_MALFORMED_CHARS = 500


class LoopInput(Struct, frozen=True):
    """What the loop works on. `resumed`: the history holds steps of this turn. `steer` fetches new input.

    `typed`: the turn is to give a typed result.
    """

    history: list[Message]
    resumed: bool
    call_model: Callable[[list[Message], Emit], Awaitable[Finished | Failed]]
    toolbox: Toolbox
    context: Context
    steer: Callable[[], Awaitable[list[Message]]]
    max_steps: int = 100
    typed: TypedResult | None = None


async def run(loop: LoopInput, emit: Emit) -> Ended:
    """Run one turn to its outcome."""
    messages = list(loop.history)
    # Open calls of an earlier turn, which was stopped, are not run.
    calls = open_calls(messages) if loop.resumed else []
    if loop.resumed and not calls and messages[-1]["role"] == "assistant":
        if not await _remind(loop, emit, messages):
            return _ended(loop, messages)
    interrupted = bool(calls)
    for _ in range(loop.max_steps):
        if calls:
            messages += await _run_calls(calls, loop, emit, interrupted=interrupted)
            interrupted = False
        if (ended := result_of(messages) if loop.typed else None) is not None:
            return ended
        if loop.typed is not None and loop.typed.is_spent(messages):
            return loop.typed.ended(messages)
        if (reply := _reply_of_ending_tool(messages, loop.toolbox)) is not None:
            return Ended("ok", reply=reply)
        messages += await loop.steer()
        crashpoints.point("before-model")
        answer = await loop.call_model(messages, emit)
        crashpoints.point("after-model")
        if isinstance(answer, Failed):
            nothing_done = not loop.resumed and len(messages) == len(loop.history)
            transient = nothing_done and answer.kind in RETRYABLE
            return Ended("failed", error=answer.message, transient=transient)
        calls = _calls(answer.message)
        if not calls and (loop.typed is None or loop.typed.reminder(messages) is None):
            return _ended(loop, messages, answer.message)
        await emit(ModelAnswered(answer.message))
        messages.append(answer.message)
        if not calls:
            await _remind(loop, emit, messages)
    error = f"The turn was stopped after {loop.max_steps} steps (agents.defaults.maxSteps)."
    return Ended("failed", error=error)


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


async def _remind(loop: LoopInput, emit: Emit, messages: list[Message]) -> bool:
    """Ask for the typed result that an answer in text lacks. False if there is no reason to, or no more."""
    reminder = loop.typed.reminder(messages) if loop.typed else None
    if reminder is not None:
        await emit(Reminded(reminder))
        messages.append(reminder)
    return reminder is not None


def _ended(loop: LoopInput, messages: list[Message], answer: Message | None = None) -> Ended:
    """The end with the last answer: one that is not committed yet, else the last message."""
    if loop.typed is not None:
        return loop.typed.ended(messages, answer)
    text = text_of(answer or messages[-1])
    outcome: Outcome = "ok" if text.strip() else "no_output"
    return Ended(outcome, reply=text or None, message=answer)


def _reply_of_ending_tool(messages: list[Message], toolbox: Toolbox) -> str | None:
    """The reply of the turn, if the last results include one of a tool that ends the turn."""
    for message in reversed(messages):
        if message["role"] != "toolResult":
            return None
        if toolbox.ends_turn(message["toolName"]) and not message["isError"]:
            result = orjson.loads(text_of(message))
            return str(result.get("message", ""))
    return None


async def _run_calls(
    calls: list[dict[str, Any]], loop: LoopInput, emit: Emit, *, interrupted: bool
) -> list[Message]:
    """Run the calls, in parallel where the tools allow it. Each result is emitted as it arrives."""
    results: list[Message] = []

    async def run_one(call: dict[str, Any]) -> None:
        message = _result_message(call, await _run_call(call, loop, emit, interrupted=interrupted))
        crashpoints.point("after-tool")
        await emit(ToolReturned(message))
        results.append(message)

    parallel = [call for call in calls if loop.toolbox.may_run_beside(call["name"])]
    async with asyncio.TaskGroup() as group:
        for call in parallel:
            group.create_task(run_one(call), name=f"tool {call['name']}")
    for call in calls:
        if call not in parallel:
            await run_one(call)
    return results


async def _run_call(call: dict[str, Any], loop: LoopInput, emit: Emit, *, interrupted: bool) -> Result:
    name, arguments = call["name"], call.get("arguments") or {}
    if interrupted and not loop.toolbox.may_repeat(name):
        return Result(INTERRUPTED, is_error=True)
    if "malformed" in call:
        return _malformed(name, str(call["malformed"]))
    await emit(ToolCalled(call["id"], name, arguments))
    crashpoints.point("before-tool")
    context = Context(loop.context.session, loop.context.turn, call["id"], loop.context.waiting)
    with tracing.span(f"execute_tool {name}") as span:
        result = await loop.toolbox.call(context, name, arguments)
        if span is not None:
            span.attributes = {
                tracing.OPERATION: "execute_tool",
                tracing.TOOL_NAME: name,
                tracing.TOOL_CALL: call["id"],
            }
            span.error = "tool_error" if result.is_error else None
    return result


def _malformed(name: str, arguments: str) -> Result:
    """The result of a call whose arguments cannot be used. It ends neither the other calls nor the turn."""
    try:
        json_input.loads(arguments)
        problem = "are not a JSON object"
    except json_input.TooComplex as error:
        problem = f"cannot be used: {error}"
    except ValueError as error:
        problem = f"are not a JSON object: {error}"
    received = redact.excerpt(arguments, _MALFORMED_CHARS)
    return error_result(f"The arguments of {name} {problem}. The call was not made.", received=received)


def _result_message(call: dict[str, Any], result: Result) -> Message:
    return {
        "role": "toolResult",
        "toolCallId": call["id"],
        "toolName": call["name"],
        "content": [{"type": "text", "text": result.text}],
        "isError": result.is_error,
        "timestamp": now_ms(),
    }
