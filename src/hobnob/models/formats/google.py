"""The wire format `google-generative-ai` of the Gemini models."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from hobnob.models import Event, Request, ToolSpec, failures, history
from hobnob.models.answer import Answer
from hobnob.models.failures import CallFailed
from hobnob.models.http import ProviderRequest

API = "google-generative-ai"
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_576}
_BLOCKED = {
    "SAFETY",
    "RECITATION",
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "IMAGE_SAFETY",
}


def build_request(request: Request, base_url: str, key: str) -> ProviderRequest:
    body: dict[str, Any] = {"contents": _contents(request)}
    if request.system:
        body["systemInstruction"] = {"parts": [{"text": request.system}]}
    if request.tools:
        body["tools"] = [{"functionDeclarations": [tool.encoded(API, _tool) for tool in request.tools]}]
    config: dict[str, Any] = {}
    if request.max_tokens:
        config["maxOutputTokens"] = request.max_tokens
    if request.thinking != "off":
        config["thinkingConfig"] = {"includeThoughts": True, **_thinking(request)}
    if config:
        body["generationConfig"] = config
    model = quote(request.model.removeprefix("models/"), safe="")
    url = f"{base_url}/models/{model}:streamGenerateContent?alt=sse"
    return ProviderRequest(url, body, {"x-goog-api-key": key} if key else {})


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}


def _thinking(request: Request) -> dict[str, Any]:
    """Gemini up to 2.5 takes a thinking budget, later versions a level."""
    if "gemini-2" in request.model:
        return {"thinkingBudget": _BUDGETS[request.thinking]}
    if "flash" in request.model:
        return {"thinkingLevel": "high" if request.thinking == "xhigh" else request.thinking}
    return {"thinkingLevel": "low" if request.thinking in ("minimal", "low") else "high"}


def _contents(request: Request) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    for message, parts in history.ordered(request.messages):
        role = "model" if message["role"] == "assistant" else "user"
        if message["role"] == "toolResult":
            blocks = _result(message, parts)
        else:
            same_model = history.written_by(message, API, request.model)
            blocks = [block for part in parts if (block := _block(part, same_model))]
        if not blocks:
            continue
        if not wire and role == "model":
            wire.append({"role": "user", "parts": [{"text": "(The conversation begins.)"}]})
        if wire and wire[-1]["role"] == role:
            wire[-1]["parts"] += blocks
        else:
            wire.append({"role": role, "parts": blocks})
    return wire


def _result(message: dict[str, Any], parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    field = "error" if message.get("isError") else "output"
    response = {"name": message["toolName"], "response": {field: history.joined_text(parts)}}
    images = [block for part in parts if part["type"] == "image" and (block := _block(part, False))]
    return [{"functionResponse": response}, *images]


def _block(part: dict[str, Any], same_model: bool) -> dict[str, Any] | None:
    match part["type"]:
        case "text":
            return {"text": part["text"]}
        case "image":
            return {"inlineData": {"mimeType": part["mimeType"], "data": part["data"]}}
        case "toolCall":
            block: dict[str, Any] = {"functionCall": {"name": part["name"], "args": part["arguments"]}}
            if same_model and part.get("thoughtSignature"):
                block["thoughtSignature"] = part["thoughtSignature"]
            return block
    # Thoughts are not sent back: the signature of a call holds what the model needs.
    return None


class Reader:
    """Reads the chunks of one answer. No end marker exists: `done` stays False and the stream ends."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.done = False

    def read(self, chunk: dict[str, Any]) -> list[Event]:
        if error := chunk.get("error"):
            raise failures.from_stream(error)
        if usage := chunk.get("usageMetadata"):
            self._count(usage)
        if blocked := (chunk.get("promptFeedback") or {}).get("blockReason"):
            raise CallFailed("refused", f"blocked the prompt ({blocked})")
        if not (candidates := chunk.get("candidates")):
            return []
        parts = (candidates[0].get("content") or {}).get("parts") or []
        events = [event for part in parts for event in self._part(part)]
        if reason := candidates[0].get("finishReason"):
            self._finish(reason)
        return events

    def _part(self, part: dict[str, Any]) -> list[Event]:
        if call := part.get("functionCall"):
            self._call(call, part.get("thoughtSignature"))
        elif text := part.get("text"):
            return [self.answer.add_thinking(text) if part.get("thought") else self.answer.add_text(text)]
        return []

    def _call(self, call: dict[str, Any], signature: str | None) -> None:
        """A call arrives in one piece, usually without an id."""
        key = self.answer.call_count
        fields = {"thoughtSignature": signature} if signature else {}
        self.answer.add_call(key, call.get("id"), call["name"], **fields)
        if (args := call.get("args")) is not None:
            self.answer.add_argument_object(key, args)

    def _finish(self, reason: str) -> None:
        if reason in _BLOCKED:
            raise CallFailed("refused", f"blocked the answer ({reason})")
        if reason in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"):
            raise CallFailed("garbled", f"produced an invalid tool call ({reason})")
        self.answer.stop = "length" if reason == "MAX_TOKENS" else "stop"

    def _count(self, usage: dict[str, Any]) -> None:
        prompt = usage.get("promptTokenCount") or 0
        cached = usage.get("cachedContentTokenCount") or 0
        self.answer.set_usage(
            uncached_input=prompt + (usage.get("toolUsePromptTokenCount") or 0) - cached,
            output=(usage.get("candidatesTokenCount") or 0) + (usage.get("thoughtsTokenCount") or 0),
            cache_read=cached,
        )
