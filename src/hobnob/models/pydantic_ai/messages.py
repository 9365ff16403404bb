"""Converts transcripts to pydantic-ai messages, and its responses to answers."""

from __future__ import annotations

import base64
from typing import Any

import orjson
from pydantic_ai import messages as pai

from hobnob.models import Request, history
from hobnob.models.answer import Answer, StopReason
from hobnob.models.pydantic_ai import API

_DATA = "providerData"  # field of a part: the data that pydantic-ai needs back with it
_STOP_REASONS: dict[pai.FinishReason | None, StopReason] = {"length": "length", "tool_call": "toolUse"}


def answer_of(response: pai.ModelResponse) -> Answer:
    """Convert a complete response."""
    answer = Answer()
    for number, part in enumerate(response.parts):
        match part:
            case pai.TextPart():
                answer.add_text(part.content)
            case pai.ThinkingPart():
                answer.begin_thinking()
                answer.add_thinking(part.content)
                if part.signature or _provider_data(part):
                    answer.sign_thinking(part.signature or "", **_provider_data(part))
            case pai.ToolCallPart(args=args):
                answer.add_call(number, part.tool_call_id, part.tool_name, **_provider_data(part))
                answer.add_argument_object(number, args or {})
    answer.stop = _STOP_REASONS.get(response.finish_reason, "stop")
    usage = response.usage
    if usage.has_values():
        cache_read, cache_write = usage.cache_read_tokens, usage.cache_write_tokens
        answer.set_usage(
            uncached_input=usage.input_tokens - cache_read - cache_write,
            output=usage.output_tokens,
            cache_read=cache_read,
            cache_write=cache_write,
        )
    return answer


def _provider_data(part: pai.ThinkingPart | pai.ToolCallPart) -> dict[str, Any]:
    data = {"id": part.id, "details": part.provider_details}
    kept = {name: value for name, value in data.items() if value}
    try:
        return {_DATA: orjson.loads(orjson.dumps(kept))} if kept else {}
    except TypeError:
        return {}  # not JSON, so it cannot be stored in a transcript


def messages_of(request: Request, provider_name: str) -> list[pai.ModelMessage]:
    """Convert the transcript; `provider_name` is pydantic-ai's name for the provider (`Model.system`)."""
    wire: list[pai.ModelMessage] = []
    for message, parts in history.ordered(request.messages):
        if message["role"] == "assistant":
            same_model = history.written_by(message, API, request.model)
            answer = [converted for p in parts if (converted := _answer_part(p, same_model, provider_name))]
            if not wire:
                wire.append(pai.ModelRequest([pai.UserPromptPart("(The conversation begins.)")]))
            if answer and isinstance(wire[-1], pai.ModelResponse):
                wire[-1].parts = [*wire[-1].parts, *answer]
            elif answer:
                wire.append(pai.ModelResponse(answer))
            continue
        part = _result_part(message, parts) if message["role"] == "toolResult" else _user_part(parts)
        # All results of one answer and the user text after them are one request.
        if wire and isinstance(wire[-1], pai.ModelRequest):
            wire[-1].parts = [*wire[-1].parts, part]
        else:
            wire.append(pai.ModelRequest([part]))
    return wire


def _answer_part(part: dict[str, Any], same_model: bool, provider_name: str) -> pai.ModelResponsePart | None:
    """Convert a part of an answer. Thinking and provider data only go back to the model that wrote them."""
    data = part.get(_DATA, {}) if same_model else {}
    extra: dict[str, Any] = {
        "id": data.get("id"),
        "provider_details": data.get("details"),
        "provider_name": provider_name,
    }
    match part["type"]:
        case "text":
            return pai.TextPart(part["text"])
        case "thinking" if same_model:
            return pai.ThinkingPart(part["thinking"], signature=part.get("thinkingSignature"), **extra)
        case "toolCall":
            call_id = history.call_id(part["id"])
            return pai.ToolCallPart(part["name"], part["arguments"], call_id, **(extra if data else {}))
    return None


def _user_part(parts: list[dict[str, Any]]) -> pai.UserPromptPart:
    content = _content(parts)
    return pai.UserPromptPart(content[0] if len(content) == 1 and isinstance(content[0], str) else content)


def _result_part(message: dict[str, Any], parts: list[dict[str, Any]]) -> pai.ToolReturnPart:
    content: Any = _content(parts)
    if all(isinstance(piece, str) for piece in content):
        content = "\n".join(content)
    return pai.ToolReturnPart(
        message["toolName"],
        content,
        history.call_id(message["toolCallId"]),
        outcome="failed" if message.get("isError") else "success",
    )


def _content(parts: list[dict[str, Any]]) -> list[str | pai.BinaryContent]:
    content: list[str | pai.BinaryContent] = []
    for part in parts:
        if part["type"] == "text":
            content.append(part["text"])
        elif part["type"] == "image":
            content.append(pai.BinaryContent(base64.b64decode(part["data"]), media_type=part["mimeType"]))
    return content
