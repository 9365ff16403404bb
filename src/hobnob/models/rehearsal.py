"""The rehearsal model: ships with Hobnob, needs no key, and always answers the same.

It understands a few plain commands, so that a first run shows every tool at work, and plays scripts, so that
people can test their own set-ups. Where a script stands is counted from the conversation itself: after a
restart it goes on where it was.
"""

from __future__ import annotations

import ast
import asyncio
import operator
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson

from hobnob import briefings, keys
from hobnob.config.models import RehearsalStep
from hobnob.config.tree import Settings
from hobnob.models import Event, Failed, Finished, ModelInfo, Request, TextDelta
from hobnob.types import now_ms, text_of

INFO = ModelInfo(
    name="rehearsal/rehearsal", provider="rehearsal", id="rehearsal", context_window=200_000, reasoning=False
)

_NUMBER = r"-?\d+(?:\.\d+)?"
_SUM = re.compile(rf"(?:what is|how much is)?\s*({_NUMBER}(?:\s*[-+*/]\s*{_NUMBER})+)\s*[=?]*", re.IGNORECASE)
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_RESULT_CHARS = 600


class Rehearsal:
    def __init__(self, settings: Settings) -> None:
        viewer = settings.viewer()
        scripts = settings.models.rehearsal.scripts
        self._scripts = {k if k == "*" else str(keys.parse(k, viewer)): steps for k, steps in scripts.items()}
        self._failed: Counter[tuple[str, int]] = Counter()

    async def stream(self, request: Request) -> AsyncGenerator[Event]:
        step = self._step(request)
        if step is None:
            text, calls = improvise(request)
        else:
            if step.delay_ms:
                await asyncio.sleep(step.delay_ms / 1000)
            if step.error is not None:
                yield Failed("overloaded" if step.times else "refused", step.error, retry_after_s=0)
                return
            text, calls = step.text or "", [(c.name, c.arguments) for c in step.tool_calls]
        for word in re.findall(r"\s*\S+\s*$|\s*\S+", text):
            yield TextDelta(word)
        yield Finished(_message(request, text, calls))

    def _step(self, request: Request) -> RehearsalStep | None:
        """The step of the script that is due: one for each answer so far, less the errors that are over."""
        key = request.session_key or ""
        script = self._scripts.get(key, self._scripts.get("*"))  # an empty one: no script for this session
        if not script:
            return None
        due = sum(1 for m in request.messages if m["role"] == "assistant")
        for number, step in enumerate(script):
            if step.error is not None and step.times is not None:
                if due > 0 or self._failed[key, number] >= step.times:
                    continue  # over: it failed often enough
                self._failed[key, number] += 1
                return step
            if due == 0:
                return step
            due -= 1
        return None


def improvise(request: Request) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """An answer without a script: to a control step, to tool results, or to what was said last."""
    if "REPLY_SKIP" in request.system:
        return "REPLY_SKIP", []
    last = request.messages[-1] if request.messages else {"role": "user", "content": ""}
    if "ANNOUNCE_SKIP" in request.system:
        earlier = [text_of(m) for m in request.messages if m["role"] == "assistant" and text_of(m)]
        return (earlier[-1] if earlier else "ANNOUNCE_SKIP"), []
    if last["role"] == "toolResult":
        return _retell(request.messages), []
    said = briefings.unmarked(text_of(last)).strip()
    wanted = command(said)
    if wanted is not None:
        name, arguments = wanted
        if name in {tool.name for tool in request.tools}:
            return "", [(name, arguments)]
        return f"I would call {name} now, but this session does not have that tool.", []
    return _plain(said, request.messages), []


def command(text: str) -> tuple[str, dict[str, Any]] | None:
    """The tool call a plain sentence asks for."""
    lower = text.lower()
    if lower.startswith("list sessions"):
        return "sessions_list", {}
    if lower.startswith("list agents"):
        return "agents_list", {}
    if found := re.match(r"history of\s+(\S+)", text, re.IGNORECASE):
        return "sessions_history", {"sessionKey": found[1]}
    if found := re.match(r"search for\s+(.+)", text, re.IGNORECASE | re.DOTALL):
        return "sessions_search", {"query": found[1].strip()}
    if found := re.match(r"(ask|tell)\s+(\S+?):\s+(.+)", text, re.IGNORECASE | re.DOTALL):
        target = "sessionKey" if ":" in found[2] or found[2].lower() == "main" else "agentId"
        wait = {"timeoutSeconds": 0} if found[1].lower() == "tell" else {}
        return "sessions_send", {target: found[2], "message": found[3].strip(), **wait}
    if found := re.match(r"spawn(?:\s+([\w-]+))?:\s+(.+)", text, re.IGNORECASE | re.DOTALL):
        agent = {"agentId": found[1]} if found[1] else {}
        return "sessions_spawn", {"task": found[2].strip(), **agent}
    if found := re.match(r"call\s+(\w+)(?:\s+(\{.*\}))?$", text, re.IGNORECASE | re.DOTALL):
        try:
            return found[1], orjson.loads(found[2] or "{}")
        except orjson.JSONDecodeError:
            return None
    return None


def _plain(said: str, messages: list[dict[str, Any]]) -> str:
    if found := re.match(r"say:?\s+(.+)", said, re.IGNORECASE | re.DOTALL):
        return found[1]
    if found := re.match(r"remember:?\s+(.+)", said, re.IGNORECASE | re.DOTALL):
        return f"I will remember: {found[1]}"
    if re.match(r"what do you remember", said, re.IGNORECASE):
        kept = [text_of(m) for m in messages if m["role"] == "user"]
        facts = [f[1] for text in kept if (f := re.match(r"remember:?\s+(.+)", text.strip(), re.I | re.S))]
        return "You told me: " + "; ".join(facts) if facts else "You have not told me anything to remember."
    if found := _SUM.fullmatch(said):
        return f"{found[1]} = {_calculate(found[1])}"
    return f"[rehearsal] You said: {said}" if said else "[rehearsal] You said nothing."


def _retell(messages: list[dict[str, Any]]) -> str:
    """What the tools of the last answer gave back."""
    last = max(i for i, m in enumerate(messages) if m["role"] != "toolResult")
    told = []
    for result in messages[last + 1 :]:
        if result["role"] == "toolResult":
            text = _reply_in(text_of(result))
            told.append(f"{result['toolName']}: {text[:_RESULT_CHARS]}")
    return "\n".join(told)


def _reply_in(text: str) -> str:
    """The answer inside a tool's JSON, when there is one worth quoting."""
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if not isinstance(answer, dict):
        return text
    for key in ("reply", "error", "output", "content", "diff", "text", "status"):
        if isinstance(answer.get(key), str) and answer[key].strip():
            return str(answer[key])
    return orjson.dumps(answer).decode()


def _calculate(text: str) -> str:
    def value(node: ast.expr) -> float:
        match node:
            case ast.BinOp(left, op, right):
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.UnaryOp(ast.USub(), operand):
                return -value(operand)
            case ast.Constant(int() | float() as number):
                return number
        raise ValueError(text)

    try:
        return f"{value(ast.parse(text, mode='eval').body):.12g}"
    except (ArithmeticError, SyntaxError, RecursionError, MemoryError, ValueError):
        return "undefined"


def _message(request: Request, text: str, calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    answers = sum(1 for m in request.messages if m["role"] == "assistant")
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [
        {"type": "toolCall", "id": f"call_{answers}_{i}", "name": name, "arguments": arguments}
        for i, (name, arguments) in enumerate(calls)
    ]
    read = len(request.system.split()) + sum(len(text_of(m).split()) for m in request.messages)
    written = len(text.split()) + 5 * len(calls)
    usage = {"input": read, "output": written, "cacheRead": 0, "cacheWrite": 0, "totalTokens": read + written}
    return {
        "role": "assistant",
        "content": content,
        "api": "rehearsal",
        "provider": INFO.provider,
        "model": INFO.id,
        "usage": usage,
        "stopReason": "toolUse" if calls else "stop",
        "timestamp": now_ms(),
    }
