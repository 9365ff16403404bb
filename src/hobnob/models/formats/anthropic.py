"""The wire format `anthropic-messages`."""

from __future__ import annotations

import re
from typing import Any

from hobnob.models import Event, Request, ToolSpec, failures, history
from hobnob.models.answer import Answer, StopReason
from hobnob.models.failures import CallFailed
from hobnob.models.http import ProviderRequest

API = "anthropic-messages"
_VERSION = "2023-06-01"
# Claude up to 4.5 and models of other vendors take a thinking budget in tokens. Later Claude models take an
# effort level, and some think without being asked to.
_BUDGET_MODELS = re.compile(
    r"claude-([23]|instant|(opus|sonnet|haiku)-4(-[0-5])?(-\d{8}|-latest|$))|(?!claude)"
)
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768}
_MIN_BUDGET = 1024
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "max"}
# The format requires max_tokens; these apply when none is configured.
_DEFAULT_MAX_TOKENS = 8192
_DEFAULT_MAX_TOKENS_WITH_EFFORT = 32_000
_STOP_REASONS: dict[str, StopReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "toolUse",
}
_CACHE = {"cache_control": {"type": "ephemeral"}}


def build_request(request: Request, base_url: str, key: str) -> ProviderRequest:
    messages = _messages(request)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "stream": True,
        **_thinking(request, messages),
    }
    # Two cache breakpoints cover the whole conversation: tools and system prompt, then messages.
    if request.system:
        body["system"] = [{"type": "text", "text": request.system, **_CACHE}]
    if messages and messages[-1]["role"] == "user":
        messages[-1]["content"][-1] |= _CACHE
    if request.tools:
        body["tools"] = [tool.encoded(API, _tool) for tool in request.tools]
    headers = {"anthropic-version": _VERSION} | ({"x-api-key": key} if key else {})
    return ProviderRequest(f"{base_url.removesuffix('/v1')}/v1/messages", body, headers)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _thinking(request: Request, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The thinking fields and max_tokens, which includes the tokens for thinking."""
    if _BUDGET_MODELS.match(request.model):
        budget = _budget(request, messages)
        limit = {"max_tokens": request.max_tokens or _DEFAULT_MAX_TOKENS + budget}
        return limit | ({"thinking": {"type": "enabled", "budget_tokens": budget}} if budget else {})
    limit = {"max_tokens": request.max_tokens or _DEFAULT_MAX_TOKENS_WITH_EFFORT}
    if request.thinking == "off":
        return limit
    thinking = {"type": "adaptive", "display": "summarized"}
    return {**limit, "thinking": thinking, "output_config": {"effort": _EFFORTS[request.thinking]}}


def _budget(request: Request, messages: list[dict[str, Any]]) -> int:
    budget = _BUDGETS.get(request.thinking, 0)
    if request.max_tokens:
        budget = min(budget, request.max_tokens - _MIN_BUDGET)
    # With thinking on, an answer that calls tools must begin with signed thinking. The answer of another
    # model has none, so thinking stays off until its tool loop ends.
    answer: list[dict[str, Any]] = next(
        (m["content"] for m in reversed(messages) if m["role"] == "assistant"), []
    )
    in_tool_loop = bool(messages) and messages[-1]["content"][0]["type"] == "tool_result"
    if in_tool_loop and answer[0]["type"] not in ("thinking", "redacted_thinking"):
        return 0
    return budget if budget >= _MIN_BUDGET else 0


def _messages(request: Request) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    for message, parts in history.ordered(request.messages):
        role = "assistant" if message["role"] == "assistant" else "user"
        same_model = history.written_by(message, API, request.model)
        blocks = [block for part in parts if (block := _block(part, same_model))]
        if message["role"] == "toolResult":
            blocks = [_result(message, blocks)]
        if not blocks:
            continue
        if not wire and role == "assistant":
            wire.append({"role": "user", "content": [{"type": "text", "text": "(The conversation begins.)"}]})
        # All results of one answer and the user text after them must be one message.
        if wire and wire[-1]["role"] == role:
            wire[-1]["content"] += blocks
        else:
            wire.append({"role": role, "content": blocks})
    return wire


def _result(message: dict[str, Any], blocks: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": history.call_id(message["toolCallId"]),
        "content": blocks,
    }
    return result | ({"is_error": True} if message.get("isError") else {})


def _block(part: dict[str, Any], same_model: bool) -> dict[str, Any] | None:
    match part["type"]:
        case "text":
            return {"type": "text", "text": part["text"]}
        case "image":
            source = {"type": "base64", "media_type": part["mimeType"], "data": part["data"]}
            return {"type": "image", "source": source}
        case "toolCall":
            return {
                "type": "tool_use",
                "id": history.call_id(part["id"]),
                "name": part["name"],
                "input": part["arguments"],
            }
        case "thinking" if same_model and (signature := part.get("thinkingSignature")):
            if part.get("redacted"):
                return {"type": "redacted_thinking", "data": signature}
            return {"type": "thinking", "thinking": part["thinking"], "signature": signature}
    return None


class Reader:
    """Reads the events of one answer."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.done = False
        self._usage: dict[str, Any] = {}

    def read(self, chunk: dict[str, Any]) -> list[Event]:
        match chunk["type"]:
            case "content_block_delta":
                return self._delta(chunk["index"], chunk["delta"])
            case "content_block_start":
                return self._begin(chunk["index"], chunk["content_block"])
            case "message_start":
                self._count(chunk["message"].get("usage"))
            case "message_delta":
                self._count(chunk.get("usage"))
                if reason := chunk["delta"].get("stop_reason"):
                    self._finish(reason)
            case "message_stop":
                self.done = True
            case "error":
                raise failures.from_stream(chunk["error"])
        return []

    def _begin(self, index: int, block: dict[str, Any]) -> list[Event]:
        match block["type"]:
            case "tool_use":
                self.answer.add_call(index, block["id"], block["name"])
                if block.get("input"):
                    self.answer.add_argument_object(index, block["input"])
            case "thinking":
                self.answer.begin_thinking()
                return [self.answer.add_thinking(block["thinking"])] if block.get("thinking") else []
            case "redacted_thinking":
                self.answer.begin_thinking()
                self.answer.sign_thinking(block["data"], redacted=True)
            case "text" if block.get("text"):
                return [self.answer.add_text(block["text"])]
        return []

    def _delta(self, index: int, delta: dict[str, Any]) -> list[Event]:
        match delta["type"]:
            case "text_delta":
                return [self.answer.add_text(delta["text"])]
            case "thinking_delta":
                return [self.answer.add_thinking(delta["thinking"])]
            case "signature_delta":
                self.answer.sign_thinking(delta["signature"])
            case "input_json_delta":
                self.answer.add_arguments(index, delta["partial_json"])
        return []

    def _finish(self, reason: str) -> None:
        if reason == "refusal":
            raise CallFailed("refused", "stopped with a refusal instead of an answer")
        self.answer.stop = _STOP_REASONS.get(reason, "stop")

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Merge the counts: each is cumulative, and a field that is missing keeps its value."""
        self._usage |= {k: v for k, v in (usage or {}).items() if isinstance(v, int)}
        self.answer.set_usage(
            uncached_input=self._usage.get("input_tokens", 0),
            output=self._usage.get("output_tokens", 0),
            cache_read=self._usage.get("cache_read_input_tokens", 0),
            cache_write=self._usage.get("cache_creation_input_tokens", 0),
        )
