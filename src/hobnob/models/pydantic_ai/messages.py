"""Transcripts in pydantic-ai's words, and its responses in ours."""

from __future__ import annotations

import base64
from typing import Any

import orjson
from pydantic_ai import messages as say

from hobnob.models import Request, history
from hobnob.models.answer import Answer, StopReason
from hobnob.models.pydantic_ai import API

_DATA = "providerData"  # of a part: what pydantic-ai wants to see again next to it
_STOPS: dict[say.FinishReason | None, StopReason] = {"length": "length", "tool_call": "toolUse"}


def answer_of(response: say.ModelResponse) -> Answer:
    """What a whole response says, in the transcript's words."""
    answer = Answer()
    for number, part in enumerate(response.parts):
        match part:
            case say.TextPart():
                answer.text(part.content)
            case say.ThinkingPart():
                answer.new_thinking()
                answer.thinking(part.content)
                if part.signature or _data(part):
                    answer.sign_thinking(part.signature or "", **_data(part))
            case say.ToolCallPart(args=args):
                answer.call(number, part.tool_call_id, part.tool_name, **_data(part))
                answer.arguments(number, args if isinstance(args, str) else orjson.dumps(args or {}).decode())
    answer.stop = _STOPS.get(response.finish_reason, "stop")
    usage = response.usage
    if usage.has_values():
        cached = usage.cache_read_tokens, usage.cache_write_tokens
        answer.count(
            read=usage.input_tokens - sum(cached),
            written=usage.output_tokens,
            cache_read=cached[0],
            cache_write=cached[1],
        )
    return answer


def _data(part: say.ThinkingPart | say.ToolCallPart) -> dict[str, Any]:
    data = {"id": part.id, "details": part.provider_details}
    kept = {name: value for name, value in data.items() if value}
    try:
        return {_DATA: orjson.loads(orjson.dumps(kept))} if kept else {}
    except TypeError:
        return {}  # not everything providers say can be kept in a transcript


def messages_of(request: Request, system: str) -> list[say.ModelMessage]:
    """The transcript for a model; `system` is pydantic-ai's name of its provider."""
    told: list[say.ModelMessage] = []
    for message, parts in history.in_order(request.messages):
        if message["role"] == "assistant":
            own = history.written_by(message, API, request.model)
            said = [made for p in parts if (made := _said(p, own, system))]
            if not told:
                told.append(say.ModelRequest([say.UserPromptPart("(The conversation begins.)")]))
            if said and isinstance(told[-1], say.ModelResponse):
                told[-1].parts = [*told[-1].parts, *said]
            elif said:
                told.append(say.ModelResponse(said))
            continue
        heard = _result(message, parts) if message["role"] == "toolResult" else _heard(parts)
        # All results of one answer, and what the user says after them, are one request.
        if told and isinstance(told[-1], say.ModelRequest):
            told[-1].parts = [*told[-1].parts, heard]
        else:
            told.append(say.ModelRequest([heard]))
    return told


def _said(part: dict[str, Any], own: bool, system: str) -> say.ModelResponsePart | None:
    """A part of an answer. What only means something to its writer, nobody else gets to see."""
    data = part.get(_DATA, {}) if own else {}
    extra: dict[str, Any] = {
        "id": data.get("id"),
        "provider_details": data.get("details"),
        "provider_name": system,
    }
    match part["type"]:
        case "text":
            return say.TextPart(part["text"])
        case "thinking" if own:
            return say.ThinkingPart(part["thinking"], signature=part.get("thinkingSignature"), **extra)
        case "toolCall":
            call_id = history.call_id(part["id"])
            return say.ToolCallPart(part["name"], part["arguments"], call_id, **(extra if data else {}))
    return None


def _heard(parts: list[dict[str, Any]]) -> say.UserPromptPart:
    content = _content(parts)
    return say.UserPromptPart(content[0] if len(content) == 1 and isinstance(content[0], str) else content)


def _result(message: dict[str, Any], parts: list[dict[str, Any]]) -> say.ToolReturnPart:
    content: Any = _content(parts)
    if all(isinstance(piece, str) for piece in content):
        content = "\n".join(content)
    return say.ToolReturnPart(
        message["toolName"],
        content,
        history.call_id(message["toolCallId"]),
        outcome="failed" if message.get("isError") else "success",
    )


def _content(parts: list[dict[str, Any]]) -> list[str | say.BinaryContent]:
    content: list[str | say.BinaryContent] = []
    for part in parts:
        if part["type"] == "text":
            content.append(part["text"])
        elif part["type"] == "image":
            content.append(say.BinaryContent(base64.b64decode(part["data"]), media_type=part["mimeType"]))
    return content
