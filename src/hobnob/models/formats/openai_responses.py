"""The wire format `openai-responses`: thinking is visible and can be sent back.

`store` is false, so OpenAI keeps no state: every request carries the whole conversation.
"""

from __future__ import annotations

from typing import Any

import orjson

from hobnob.models import Event, Request, ToolSpec, failures, history
from hobnob.models.answer import Answer
from hobnob.models.failures import CallFailed
from hobnob.models.http import ProviderRequest

API = "openai-responses"
_TEXT = ("response.output_text.delta", "response.refusal.delta")
_THINKING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")


def build_request(request: Request, base_url: str, key: str) -> ProviderRequest:
    body: dict[str, Any] = {
        "model": request.model,
        "input": _input(request),
        "stream": True,
        "store": False,
    }
    if request.system:
        body["instructions"] = request.system
    if request.tools:
        body["tools"] = [tool.encoded(API, _tool) for tool in request.tools]
    if request.max_tokens:
        body["max_output_tokens"] = request.max_tokens
    if request.thinking != "off":
        body["reasoning"] = {"effort": request.thinking, "summary": "auto"}
        body["include"] = ["reasoning.encrypted_content"]
    if request.session_id:
        body["prompt_cache_key"] = request.session_id
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return ProviderRequest(f"{base_url}/responses", body, headers)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }


def _input(request: Request) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    for message, parts in history.ordered(request.messages):
        match message["role"]:
            case "user":
                wire.append({"role": "user", "content": [_input_item(part) for part in parts]})
            case "toolResult":
                wire.append(_result(message, parts))
            case _:
                same_model = history.written_by(message, API, request.model)
                wire += _assistant(parts, same_model)
    return wire


def _input_item(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "image":
        return {"type": "input_image", "image_url": f"data:{part['mimeType']};base64,{part['data']}"}
    return {"type": "input_text", "text": part["text"]}


def _result(message: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    has_images = any(part["type"] == "image" for part in parts)
    output = [_input_item(part) for part in parts] if has_images else history.joined_text(parts)
    return {
        "type": "function_call_output",
        "call_id": history.call_id(message["toolCallId"]),
        "output": output,
    }


def _assistant(parts: list[dict[str, Any]], same_model: bool) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for part in parts:
        if part["type"] == "text":
            content = [{"type": "output_text", "text": part["text"]}]
            items.append({"type": "message", "role": "assistant", "content": content})
        elif part["type"] == "toolCall":
            items.append(
                {
                    "type": "function_call",
                    "call_id": history.call_id(part["id"]),
                    "name": part["name"],
                    "arguments": orjson.dumps(part["arguments"]).decode(),
                }
            )
        elif part["type"] == "thinking" and same_model and part.get("thinkingSignature"):
            items.append(_reasoning(part))
    # The API rejects a reasoning item that nothing follows.
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def _reasoning(part: dict[str, Any]) -> dict[str, Any]:
    """The signature holds the id and the encrypted content of the item, as received."""
    summary = [{"type": "summary_text", "text": part["thinking"]}] if part["thinking"] else []
    return {"type": "reasoning", **orjson.loads(part["thinkingSignature"]), "summary": summary}


class Reader:
    """Reads the events of one answer."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.done = False

    def read(self, chunk: dict[str, Any]) -> list[Event]:
        kind = chunk["type"]
        if kind in _TEXT:
            return [self.answer.add_text(chunk["delta"])]
        if kind in _THINKING:
            return [self.answer.add_thinking(chunk["delta"])]
        match kind:
            case "response.function_call_arguments.delta":
                self.answer.add_arguments(chunk["output_index"], chunk["delta"])
            case "response.output_item.added":
                self._begin(chunk["output_index"], chunk["item"])
            case "response.output_item.done":
                self._end(chunk["output_index"], chunk["item"])
            case "response.reasoning_summary_part.added" if chunk.get("summary_index"):
                return [self.answer.add_thinking("\n\n")]
            case "response.completed" | "response.incomplete":
                self._finish(chunk["response"])
            case "response.failed":
                raise failures.from_stream(chunk["response"].get("error"))
            case "error":
                fields = {name: chunk.get(name) for name in ("code", "message")}
                raise failures.from_stream(chunk.get("error") or fields)
        return []

    def _begin(self, index: int, item: dict[str, Any]) -> None:
        if item["type"] == "function_call":
            self.answer.add_call(index, item.get("call_id"), item.get("name"))
        elif item["type"] == "reasoning":
            self.answer.begin_thinking()

    def _end(self, index: int, item: dict[str, Any]) -> None:
        if item["type"] == "function_call":
            self.answer.add_call(index, item.get("call_id"), item.get("name"))
            if item.get("arguments"):
                self.answer.replace_arguments(index, item["arguments"])
        elif item["type"] == "reasoning" and item.get("encrypted_content"):
            signature = {"id": item["id"], "encrypted_content": item["encrypted_content"]}
            self.answer.sign_thinking(orjson.dumps(signature).decode())

    def _finish(self, response: dict[str, Any]) -> None:
        reason = (response.get("incomplete_details") or {}).get("reason")
        if reason == "content_filter":
            raise CallFailed("refused", "blocked the answer (content_filter)")
        self.answer.stop = "length" if reason else "stop"
        self.done = True
        if usage := response.get("usage"):
            cached = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
            uncached = (usage.get("input_tokens") or 0) - cached
            self.answer.set_usage(
                uncached_input=uncached, output=usage.get("output_tokens") or 0, cache_read=cached
            )
