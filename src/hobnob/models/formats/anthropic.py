"""Anthropic messages."""

from __future__ import annotations

import re
from typing import Any

import orjson

from hobnob.models import Event, Request, failures, history
from hobnob.models.answer import Answer, StopReason
from hobnob.models.failures import CallFailed
from hobnob.models.http import ProviderRequest

API = "anthropic-messages"
_VERSION = "2023-06-01"
# Up to Claude 4.5, and on other people's models, thinking gets a number of tokens; later Claudes are told
# how hard to try, and some think even when nobody asks.
_BUDGETED = re.compile(r"claude-([23]|instant|(opus|sonnet|haiku)-4(-[0-5])?(-\d{8}|-latest|$))|(?!claude)")
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768}
_LEAST_BUDGET = 1024
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "max"}
# Tokens of an answer when nobody says how many: this format demands a number.
_ROOM = 8192
_ROOM_WITH_EFFORT = 32_000
_STOPS: dict[str, StopReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "toolUse",
}
_KEEP = {"cache_control": {"type": "ephemeral"}}


def call(request: Request, base_url: str, key: str) -> ProviderRequest:
    messages = _messages(request)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "stream": True,
        **_thinking(request, messages),
    }
    # Two marks make the whole conversation so far cheap to read again: tools and system, then messages.
    if request.system:
        body["system"] = [{"type": "text", "text": request.system, **_KEEP}]
    if messages and messages[-1]["role"] == "user":
        messages[-1]["content"][-1] |= _KEEP
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in request.tools
        ]
    headers = {"anthropic-version": _VERSION} | ({"x-api-key": key} if key else {})
    return ProviderRequest(f"{base_url.removesuffix('/v1')}/v1/messages", body, headers)


def _thinking(request: Request, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Thinking, and the limit of the answer, which includes it."""
    if _BUDGETED.match(request.model):
        budget = _budget(request, messages)
        limit = {"max_tokens": request.max_tokens or _ROOM + budget}
        return limit | ({"thinking": {"type": "enabled", "budget_tokens": budget}} if budget else {})
    limit = {"max_tokens": request.max_tokens or _ROOM_WITH_EFFORT}
    if request.thinking == "off":
        return limit
    thinking = {"type": "adaptive", "display": "summarized"}
    return {**limit, "thinking": thinking, "output_config": {"effort": _EFFORTS[request.thinking]}}


def _budget(request: Request, messages: list[dict[str, Any]]) -> int:
    budget = _BUDGETS.get(request.thinking, 0)
    if request.max_tokens:
        budget = min(budget, request.max_tokens - _LEAST_BUDGET)
    # With thinking on, an answer that calls tools must begin with signed thinking; another model's has none.
    answer: list[dict[str, Any]] = next(
        (m["content"] for m in reversed(messages) if m["role"] == "assistant"), []
    )
    in_a_loop = bool(messages) and messages[-1]["content"][0]["type"] == "tool_result"
    if in_a_loop and answer[0]["type"] not in ("thinking", "redacted_thinking"):
        return 0
    return budget if budget >= _LEAST_BUDGET else 0


def _messages(request: Request) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    for message, parts in history.in_order(request.messages):
        role = "assistant" if message["role"] == "assistant" else "user"
        signed = history.written_by(message, API, request.model)
        blocks = [block for part in parts if (block := _block(part, signed))]
        if message["role"] == "toolResult":
            blocks = [_result(message, blocks)]
        if not blocks:
            continue
        if not wire and role == "assistant":
            wire.append({"role": "user", "content": [{"type": "text", "text": "(The conversation begins.)"}]})
        # All results of one answer, and what the user says after them, have to be one message.
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


def _block(part: dict[str, Any], signed: bool) -> dict[str, Any] | None:
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
        case "thinking" if signed and (signature := part.get("thinkingSignature")):
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
                raise failures.in_stream(chunk["error"])
        return []

    def _begin(self, index: int, block: dict[str, Any]) -> list[Event]:
        match block["type"]:
            case "tool_use":
                self.answer.call(index, block["id"], block["name"])
                if block.get("input"):
                    self.answer.arguments(index, orjson.dumps(block["input"]).decode())
            case "thinking":
                self.answer.new_thinking()
                return [self.answer.thinking(block["thinking"])] if block.get("thinking") else []
            case "redacted_thinking":
                self.answer.new_thinking()
                self.answer.sign_thinking(block["data"], redacted=True)
            case "text" if block.get("text"):
                return [self.answer.text(block["text"])]
        return []

    def _delta(self, index: int, delta: dict[str, Any]) -> list[Event]:
        match delta["type"]:
            case "text_delta":
                return [self.answer.text(delta["text"])]
            case "thinking_delta":
                return [self.answer.thinking(delta["thinking"])]
            case "signature_delta":
                self.answer.sign_thinking(delta["signature"])
            case "input_json_delta":
                self.answer.arguments(index, delta["partial_json"])
        return []

    def _finish(self, reason: str) -> None:
        if reason == "refusal":
            raise CallFailed("refused", "withheld the answer (refusal)")
        self.answer.stop = _STOPS.get(reason, "stop")

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Later counts are of the whole answer; what they leave out stays as it was."""
        self._usage |= {k: v for k, v in (usage or {}).items() if isinstance(v, int)}
        self.answer.count(
            read=self._usage.get("input_tokens", 0),
            written=self._usage.get("output_tokens", 0),
            cache_read=self._usage.get("cache_read_input_tokens", 0),
            cache_write=self._usage.get("cache_creation_input_tokens", 0),
        )
