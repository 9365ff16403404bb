"""The wire format `openai-completions`: chat completions, which most providers and local servers speak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from hobnob.models import Event, Request, ToolSpec, failures, history
from hobnob.models.answer import Answer, StopReason
from hobnob.models.failures import CallFailed
from hobnob.models.history import StoredMessage
from hobnob.models.http import ProviderRequest

API = "openai-completions"
_STOP_REASONS: dict[str, StopReason] = {
    "length": "length",
    "tool_calls": "toolUse",
    "function_call": "toolUse",
}
_IMAGE_PLACEHOLDER = "(an image, which cannot be shown here)"


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: it is the key of encoded messages
class _Dialect:
    """How a service deviates from the format. Some reject requests with unknown fields."""

    limit_field: str = "max_tokens"
    stream_options: bool = True
    cache_key: bool = False
    nested_effort: bool = False  # {"reasoning": {"effort": …}} instead of reasoning_effort
    all_efforts: bool = False  # else only low, medium and high
    short_call_ids: bool = False  # exactly nine letters and digits
    returns_thinking: bool = False  # answers with tool calls must be sent back with their thinking


_DIALECTS = {
    "api.openai.com": _Dialect(limit_field="max_completion_tokens", cache_key=True, all_efforts=True),
    "openrouter.ai": _Dialect(nested_effort=True, all_efforts=True),
    "api.mistral.ai": _Dialect(stream_options=False, short_call_ids=True),
    "api.deepseek.com": _Dialect(returns_thinking=True),
}

_DEFAULT_DIALECT = _Dialect()


def build_request(request: Request, base_url: str, key: str) -> ProviderRequest:
    dialect = _DIALECTS.get(urlsplit(base_url).hostname or "", _DEFAULT_DIALECT)
    body: dict[str, Any] = {"model": request.model, "messages": _messages(request, dialect), "stream": True}
    if dialect.stream_options:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [tool.encoded(API, _tool) for tool in request.tools]
    if request.max_tokens:
        body[dialect.limit_field] = request.max_tokens
    if request.thinking != "off":
        effort: str = request.thinking
        if not dialect.all_efforts:
            effort = {"minimal": "low", "xhigh": "high"}.get(effort, effort)
        body |= {"reasoning": {"effort": effort}} if dialect.nested_effort else {"reasoning_effort": effort}
    if dialect.cache_key and request.session_id:
        body["prompt_cache_key"] = request.session_id
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return ProviderRequest(f"{base_url}/chat/completions", body, headers)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _messages(request: Request, dialect: _Dialect) -> list[Any]:
    wire: list[Any] = [{"role": "system", "content": request.system}] if request.system else []
    for message, parts in history.ordered(request.messages):
        if not isinstance(message, StoredMessage):
            wire += _message(message, parts, dialect)
            continue
        encoded = message.wire.get(dialect)
        if encoded is None:
            encoded = [orjson.Fragment(orjson.dumps(one)) for one in _message(message, parts, dialect)]
            message.wire[dialect] = encoded
        wire += encoded
    return wire


def _message(message: dict[str, Any], parts: list[dict[str, Any]], dialect: _Dialect) -> list[dict[str, Any]]:
    match message["role"]:
        case "user":
            return [{"role": "user", "content": _user(parts)}]
        case "toolResult":
            text = history.joined_text(parts, _IMAGE_PLACEHOLDER)
            call_id = _call_id(message["toolCallId"], dialect)
            return [{"role": "tool", "tool_call_id": call_id, "content": text}]
    return _assistant(parts, dialect)


def _user(parts: list[dict[str, Any]]) -> Any:
    if all(part["type"] == "text" for part in parts):
        return history.joined_text(parts)
    return [
        {"type": "image_url", "image_url": {"url": f"data:{part['mimeType']};base64,{part['data']}"}}
        if part["type"] == "image"
        else {"type": "text", "text": part["text"]}
        for part in parts
    ]


def _assistant(parts: list[dict[str, Any]], dialect: _Dialect) -> list[dict[str, Any]]:
    text = history.joined_text(parts) or None
    calls = [
        {
            "id": _call_id(part["id"], dialect),
            "type": "function",
            "function": {"name": part["name"], "arguments": orjson.dumps(part["arguments"]).decode()},
        }
        for part in parts
        if part["type"] == "toolCall"
    ]
    if calls:
        thoughts = "".join(part["thinking"] for part in parts if part["type"] == "thinking")
        more = {"reasoning_content": thoughts} if dialect.returns_thinking else {}
        return [{"role": "assistant", "content": text, "tool_calls": calls, **more}]
    return [{"role": "assistant", "content": text}] if text else []


def _call_id(text: str, dialect: _Dialect) -> str:
    return history.short_call_id(text) if dialect.short_call_ids else history.call_id(text)


class Reader:
    """Reads the chunks of one answer."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.done = False  # set by the caller: the end marker [DONE] is not a chunk
        self._last_call: object = None

    def read(self, chunk: dict[str, Any]) -> list[Event]:
        if error := chunk.get("error"):
            raise failures.from_stream(error)
        if usage := chunk.get("usage"):
            self._count(usage)
        if not (choices := chunk.get("choices")):
            return []
        choice = choices[0]
        events = self._delta(choice["delta"]) if choice.get("delta") else []
        if reason := choice.get("finish_reason"):
            self._finish(reason)
        return events

    def _delta(self, delta: dict[str, Any]) -> list[Event]:
        events: list[Event] = []
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            events.append(self.answer.add_thinking(thought))
        if content := delta.get("content"):
            if isinstance(content, str):
                events.append(self.answer.add_text(content))
            else:
                events += [event for piece in content for event in self._piece(piece)]
        for piece in delta.get("tool_calls") or ():
            self._call(piece)
        return events

    def _piece(self, piece: dict[str, Any]) -> list[Event]:
        """Mistral sends content as a list, with thinking as a nested list."""
        if piece.get("type") == "thinking":
            return [self.answer.add_thinking(t["text"]) for t in piece["thinking"] if t.get("text")]
        return [self.answer.add_text(piece["text"])] if piece.get("text") else []

    def _call(self, piece: dict[str, Any]) -> None:
        function = piece.get("function") or {}
        index = piece.get("index")
        if index is None:  # some services omit it: the id identifies the call, without one it is the last
            index = piece.get("id") or self._last_call
        self._last_call = index
        self.answer.add_call(index, piece.get("id"), function.get("name"))
        if arguments := function.get("arguments"):
            self.answer.add_argument_object(index, arguments)

    def _finish(self, reason: str) -> None:
        if reason == "content_filter":
            raise CallFailed("refused", "blocked the answer (content_filter)")
        if reason == "error":
            raise CallFailed("overloaded", "ended the answer with an error")
        self.answer.stop = _STOP_REASONS.get(reason, "stop")

    def _count(self, usage: dict[str, Any]) -> None:
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
        self.answer.set_usage(
            uncached_input=(usage.get("prompt_tokens") or 0) - cached,
            output=usage.get("completion_tokens") or 0,
            cache_read=cached,
        )
