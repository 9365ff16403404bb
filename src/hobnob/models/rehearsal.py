"""The rehearsal model: built in, offline, deterministic.

It understands a few plain commands, so that every tool can be tried without a key, and plays scripts, so
that users can test their configuration. The position in a script is the number of answers in the
conversation, so a script continues after a restart.
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

from hobnob import briefings, exchanges, json_input, keys
from hobnob.config.models import RehearsalStep
from hobnob.config.tree import Settings
from hobnob.models import Event, Failed, Finished, ModelInfo, Request, TextDelta
from hobnob.types import now_ms, text_of

INFO = ModelInfo(
    name="rehearsal/rehearsal", provider="rehearsal", id="rehearsal", context_window=200_000, reasoning=False
)

_NUMBER = r"-?\d+(?:\.\d+)?"
_ARITHMETIC = re.compile(
    rf"(?:what is|how much is)?\s*({_NUMBER}(?:\s*[-+*/]\s*{_NUMBER})+)\s*[=?]*", re.IGNORECASE
)
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_RESULT_CHARS = 600
_SUMMARISED, _SUMMARISED_CHARS = 10, 80  # inputs in a summary, and characters of each
_CALCULATED_CHARS = 1_000


class Rehearsal:
    def __init__(self, settings: Settings) -> None:
        viewer = settings.viewer()
        scripts = settings.models.rehearsal.scripts
        self._scripts = {
            key if key == "*" or key.endswith(":*") else str(keys.parse(key, viewer)): steps
            for key, steps in scripts.items()
        }
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
        for word in re.findall(r"\s*\S+|\s+$", text):
            yield TextDelta(word)
        yield Finished(_message(request, text, calls))

    def _step(self, request: Request) -> RehearsalStep | None:
        """The current script step: one per answer in the conversation, not counting errors with `times`."""
        key = request.session_key or ""
        # An empty script turns `*` off for its session.
        # `*` is for conversations.
        internal = briefings.SUMMARISE in request.system or briefings.FLUSH in request.system
        others = None if internal else self._scripts.get(_agents_key(key), self._scripts.get("*"))
        script = self._scripts.get(key, others)
        if not script:
            return None
        messages = request.messages
        if internal:  # the conversation before is what it is about
            last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=0)
            messages = messages[last:]
        answers_left = sum(1 for m in messages if m["role"] == "assistant")
        for number, step in enumerate(script):
            if step.error is not None and step.times is not None:
                if answers_left > 0 or self._failed[key, number] >= step.times:
                    continue  # it has failed `times` times
                self._failed[key, number] += 1
                return step
            if answers_left == 0:
                return step
            answers_left -= 1
        return None


def _agents_key(key: str) -> str:
    """The name of the script for all sessions of an agent that have none of their own."""
    return f"agent:{keys.agent_of(key)}:*" if key else "*"


def improvise(request: Request) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """An answer without a script: to a control step, to tool results, or to the last input."""
    if briefings.SUMMARISE in request.system:
        return _summary(text_of(request.messages[-1])), []
    if briefings.FLUSH in request.system:
        return exchanges.NO_REPLY, []
    if "REPLY_SKIP" in request.system:
        return "REPLY_SKIP", []
    last = request.messages[-1] if request.messages else {"role": "user", "content": ""}
    if "ANNOUNCE_SKIP" in request.system:
        earlier = [text_of(m) for m in request.messages if m["role"] == "assistant" and text_of(m)]
        return (earlier[-1] if earlier else "ANNOUNCE_SKIP"), []
    if last["role"] == "toolResult":
        return _quote_results(request.messages), []
    text = briefings.unmarked(text_of(last)).strip()
    call = command(text)
    if call is not None:
        name, arguments = call
        if name in {tool.name for tool in request.tools}:
            return "", [(name, arguments)]
        return f"I would call {name} now, but this session does not have that tool.", []
    return _reply(text, request.messages), []


def command(text: str) -> tuple[str, dict[str, Any]] | None:
    """Parse a plain sentence into a tool call: name and arguments."""
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
            return found[1], json_input.loads(found[2] or "{}")
        except ValueError:
            return None
    return None


def _reply(text: str, messages: list[dict[str, Any]]) -> str:
    if found := re.match(r"say:?\s+(.+)", text, re.IGNORECASE | re.DOTALL):
        return found[1]
    if found := re.match(r"remember:?\s+(.+)", text, re.IGNORECASE | re.DOTALL):
        return f"I will remember: {found[1]}"
    if re.match(r"what do you remember", text, re.IGNORECASE):
        inputs = [text_of(m).strip() for m in messages if m["role"] == "user"]
        facts = [f[1] for each in inputs if (f := re.match(r"remember:?\s+(.+)", each, re.I | re.S))]
        return "You told me: " + "; ".join(facts) if facts else "You have not told me anything to remember."
    if len(text) <= _CALCULATED_CHARS and (found := _ARITHMETIC.fullmatch(text)):
        return f"{found[1]} = {_calculate(found[1])}"
    return f"[rehearsal] You said: {text}" if text else "[rehearsal] You said nothing."


def _summary(text: str) -> str:
    """The beginning of each of the last inputs: enough to see that a summary took their place."""
    inputs = [line.removeprefix("User: ") for line in text.splitlines() if line.startswith("User: ")]
    shown = "; ".join(each[:_SUMMARISED_CHARS] for each in inputs[-_SUMMARISED:])
    return f"[rehearsal] Summary of {len(inputs)} inputs: {shown}"


def _quote_results(messages: list[dict[str, Any]]) -> str:
    """The results of the tools that the last answer called."""
    last = max(i for i, m in enumerate(messages) if m["role"] != "toolResult")
    lines = []
    for result in messages[last + 1 :]:
        if result["role"] == "toolResult":
            text = _main_text(text_of(result))
            lines.append(f"{result['toolName']}: {text[:_RESULT_CHARS]}")
    return "\n".join(lines)


def _main_text(text: str) -> str:
    """The main text field of a JSON result, else the result itself."""
    try:
        result = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    if not isinstance(result, dict):
        return text
    for key in ("reply", "error", "output", "content", "diff", "text", "status"):
        if isinstance(result.get(key), str) and result[key].strip():
            return str(result[key])
    return orjson.dumps(result).decode()


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
    words_in = len(request.system.split()) + sum(len(text_of(m).split()) for m in request.messages)
    words_out = len(text.split()) + 5 * len(calls)
    usage = {"input": words_in, "output": words_out, "cacheRead": 0, "cacheWrite": 0}
    usage["totalTokens"] = words_in + words_out
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
