"""The OpenAI responses format: parse requests, write responses. No I/O.

A request is turned into one of chat completions, so that both have the same rules. The field
`previous_response_id` names the run of an earlier response: its session goes on.
"""

from __future__ import annotations

from typing import Any, Literal

import orjson
from pydantic import Field

from hobnob.api.formats.completions import ChatMessage, CompletionRequest, ExtensibleModel
from hobnob.errors import BadInput, HobnobError
from hobnob.types import Turn

_PREFIX, _MESSAGE_PREFIX = "resp_", "msg_"
_TEXT_PARTS = ("input_text", "output_text", "text")


class InputItem(ExtensibleModel):
    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: str | list[dict[str, Any]] = ""


class Reasoning(ExtensibleModel):
    effort: str | None = None


class ResponsesRequest(ExtensibleModel):
    """The body of `POST /v1/responses`, as far as it is used."""

    model: str = Field(max_length=256)
    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=256)
    conversation: str | dict[str, Any] | None = None
    stream: bool = False
    background: bool | None = None
    user: str | None = Field(None, max_length=1024)
    reasoning: Reasoning | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None


def as_completion(body: ResponsesRequest) -> CompletionRequest:
    """The same request in the format of chat completions. Raises BadInput for what is not supported."""
    if body.background:
        raise BadInput("background is not supported.", fix="Use `agent` and `agent.wait` over RPC.")
    if body.conversation is not None:
        raise BadInput("conversation is not supported.", fix="Use previous_response_id, or user.")
    items = [InputItem(content=body.input)] if isinstance(body.input, str) else body.input
    messages = [ChatMessage(role=item.role, content=_text(item)) for item in items]
    if body.instructions:
        messages.insert(0, ChatMessage(role="system", content=body.instructions))
    if not messages:
        raise BadInput("The input is empty.")
    text_format = (body.text or {}).get("format")
    return CompletionRequest(
        model=body.model,
        messages=messages,
        stream=body.stream,
        user=body.user,
        tools=body.tools,
        response_format=text_format if isinstance(text_format, dict) else None,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
    )


def run_id(response_id: str) -> str:
    """The run of a response id."""
    return response_id.strip().removeprefix(_PREFIX)


def _text(item: InputItem) -> str:
    if item.type != "message":
        raise BadInput(f"Input of the type {item.type!r} is not supported: send messages.")
    if isinstance(item.content, str):
        return item.content
    for part in item.content:
        if part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise BadInput(f"Content of the type {part.get('type')!r} is not supported: send text.")
    return "\n".join(part["text"] for part in item.content)


class ResponseWriter:
    """Writes a turn as a response or as its stream of events."""

    def __init__(self, turn: Turn, body: ResponsesRequest) -> None:
        self._turn_id = turn.turn_id
        self._created = turn.accepted_at_ms // 1000
        self._body = body
        self._number = 0
        self._text = ""

    def whole(self, ended: Turn, usage: dict[str, int]) -> dict[str, Any]:
        return self._response("completed", [self._message(ended.reply or "")], usage)

    def start(self) -> bytes:
        begun = self._response("in_progress", [])
        item = {"id": self._message_id, "type": "message", "status": "in_progress", "role": "assistant"}
        return (
            self._event("response.created", response=begun)
            + self._event("response.in_progress", response=begun)
            + self._event("response.output_item.added", output_index=0, item=item | {"content": []})
            + self._part_event("response.content_part.added", part=_part(""))
        )

    def piece(self, text: str) -> bytes:
        self._text += text
        return self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def end(self, usage: dict[str, int]) -> bytes:
        text = self._text
        message = self._message(text)
        return (
            self._part_event("response.output_text.done", text=text, logprobs=[])
            + self._part_event("response.content_part.done", part=_part(text))
            + self._event("response.output_item.done", output_index=0, item=message)
            + self._event("response.completed", response=self._response("completed", [message], usage))
        )

    def failure(self, problem: HobnobError) -> bytes:
        error = {"code": "server_error", "message": problem.message}
        return self._event("response.failed", response=self._response("failed", []) | {"error": error})

    @property
    def _message_id(self) -> str:
        return f"{_MESSAGE_PREFIX}{self._turn_id}"

    def _message(self, text: str) -> dict[str, Any]:
        return {
            "id": self._message_id,
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [_part(text)],
        }

    def _response(
        self, status: str, output: list[dict[str, Any]], usage: dict[str, int] | None = None
    ) -> dict[str, Any]:
        body = self._body
        return {
            "id": f"{_PREFIX}{self._turn_id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": None,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": True,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": _usage(usage) if usage else None,
            "user": body.user,
        }

    def _part_event(self, kind: str, **more: Any) -> bytes:
        return self._event(kind, item_id=self._message_id, output_index=0, content_index=0, **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number} | more
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: dict[str, int]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
