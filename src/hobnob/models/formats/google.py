"""Google generative AI: the Gemini models."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import orjson

from hobnob.models import Event, Request, failures, history
from hobnob.models.answer import Answer
from hobnob.models.failures import CallFailed
from hobnob.models.http import ProviderRequest

API = "google-generative-ai"
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_576}
_WITHHELD = {
    "SAFETY",
    "RECITATION",
    "LANGUAGE",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "IMAGE_SAFETY",
}


def call(request: Request, base_url: str, key: str) -> ProviderRequest:
    body: dict[str, Any] = {"contents": _contents(request)}
    if request.system:
        body["systemInstruction"] = {"parts": [{"text": request.system}]}
    if request.tools:
        declared = [
            {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
            for tool in request.tools
        ]
        body["tools"] = [{"functionDeclarations": declared}]
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


def _thinking(request: Request) -> dict[str, Any]:
    """Up to Gemini 2.5 thinking has a budget, after it a level."""
    if "gemini-2" in request.model:
        return {"thinkingBudget": _BUDGETS[request.thinking]}
    if "flash" in request.model:
        return {"thinkingLevel": "high" if request.thinking == "xhigh" else request.thinking}
    return {"thinkingLevel": "low" if request.thinking in ("minimal", "low") else "high"}


def _contents(request: Request) -> list[dict[str, Any]]:
    wire: list[dict[str, Any]] = []
    for message, parts in history.in_order(request.messages):
        role = "model" if message["role"] == "assistant" else "user"
        if message["role"] == "toolResult":
            blocks = _result(message, parts)
        else:
            signed = history.written_by(message, API, request.model)
            blocks = [block for part in parts if (block := _block(part, signed))]
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
    word = "error" if message.get("isError") else "output"
    response = {"name": message["toolName"], "response": {word: history.text_in(parts)}}
    images = [block for part in parts if part["type"] == "image" and (block := _block(part, False))]
    return [{"functionResponse": response}, *images]


def _block(part: dict[str, Any], signed: bool) -> dict[str, Any] | None:
    match part["type"]:
        case "text":
            return {"text": part["text"]}
        case "image":
            return {"inlineData": {"mimeType": part["mimeType"], "data": part["data"]}}
        case "toolCall":
            block: dict[str, Any] = {"functionCall": {"name": part["name"], "args": part["arguments"]}}
            if signed and part.get("thoughtSignature"):
                block["thoughtSignature"] = part["thoughtSignature"]
            return block
    # Thoughts are only for people: what the model needs of them is in the signature of a call.
    return None


class Reader:
    """Reads the chunks of one answer. The stream simply ends, so the last chunk is the one with a reason."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.done = False

    def read(self, chunk: dict[str, Any]) -> list[Event]:
        if error := chunk.get("error"):
            raise failures.in_stream(error)
        if usage := chunk.get("usageMetadata"):
            self._count(usage)
        if blocked := (chunk.get("promptFeedback") or {}).get("blockReason"):
            raise CallFailed("refused", f"did not accept the conversation ({blocked})")
        if not (candidates := chunk.get("candidates")):
            return []
        parts = (candidates[0].get("content") or {}).get("parts") or []
        events = [event for part in parts for event in self._part(part)]
        if reason := candidates[0].get("finishReason"):
            self._finish(reason)
        return events

    def _part(self, part: dict[str, Any]) -> list[Event]:
        if called := part.get("functionCall"):
            self._call(called, part.get("thoughtSignature"))
        elif text := part.get("text"):
            return [self.answer.thinking(text) if part.get("thought") else self.answer.text(text)]
        return []

    def _call(self, called: dict[str, Any], signature: str | None) -> None:
        """A call comes in one piece, mostly without an id."""
        key = self.answer.calls
        more = {"thoughtSignature": signature} if signature else {}
        self.answer.call(key, called.get("id"), called["name"], **more)
        if (args := called.get("args")) is not None:
            self.answer.arguments(key, args if isinstance(args, str) else orjson.dumps(args).decode())

    def _finish(self, reason: str) -> None:
        if reason in _WITHHELD:
            raise CallFailed("refused", f"withheld the answer ({reason})")
        if reason in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"):
            raise CallFailed("garbled", f"could not write its tool call ({reason})")
        self.answer.stop = "length" if reason == "MAX_TOKENS" else "stop"

    def _count(self, usage: dict[str, Any]) -> None:
        cached = usage.get("cachedContentTokenCount") or 0
        self.answer.count(
            read=(usage.get("promptTokenCount") or 0) + (usage.get("toolUsePromptTokenCount") or 0) - cached,
            written=(usage.get("candidatesTokenCount") or 0) + (usage.get("thoughtsTokenCount") or 0),
            cache_read=cached,
        )
