"""The OpenAI chat completions format: parse requests, write responses. No I/O.

Only the last user message becomes a turn: the session has its own history. When the session is new, the
earlier messages are put in front of it.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote, unquote

import orjson
from pydantic import BaseModel, ConfigDict, Field

from hobnob import keys
from hobnob.api import routing
from hobnob.config import Settings
from hobnob.errors import BadInput, HobnobError
from hobnob.records import Struct
from hobnob.sessions.resolve import key_for_agent
from hobnob.types import Turn

OWN = "hobnob"
_FAMILY = (OWN, "openclaw")
_PLAIN_USER = re.compile(r"[a-z0-9][a-z0-9_@+-]{0,127}")
_EFFORT = {"none": "off"}
_BEFORE = "[The conversation so far, as the client sent it, one JSON message per line:]"
_NOW = "[The message to answer:]"


class ExtensibleModel(BaseModel):
    """Clients send more fields than are used here; the others are ignored."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class ChatMessage(ExtensibleModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(ExtensibleModel):
    include_usage: bool = False


class CompletionRequest(ExtensibleModel):
    """The body of `POST /v1/chat/completions`, as far as it is used."""

    model: str = Field(max_length=256)
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=1024)
    n: int | None = None
    tools: list[dict[str, Any]] | None = None
    functions: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class ParsedCompletion(Struct, frozen=True):
    """A parsed request. `fresh`: the session is created for this request only."""

    session_key: str
    fresh: bool
    text: str
    before: str
    system: str | None
    thinking: str | None


def parse(settings: Settings, body: CompletionRequest, headers: Mapping[str, str]) -> ParsedCompletion:
    """Parse a request. Raises BadInput for what is not supported."""
    _check(body)
    key, fresh = _session(settings, body, headers)
    last = max((i for i, m in enumerate(body.messages) if m.role == "user"), default=None)
    if last is None:
        raise BadInput("There is no message of the role user.")
    system_texts = [_text(m) for m in body.messages if m.role in ("system", "developer")]
    earlier = [m for m in body.messages[:last] if m.role in ("user", "assistant")]
    lines = [orjson.dumps({"role": m.role, "content": _text(m)}).decode() for m in earlier if _text(m)]
    effort = body.reasoning_effort
    return ParsedCompletion(
        session_key=key,
        fresh=fresh,
        text=_text(body.messages[last]),
        before="\n".join(lines),
        system="\n\n".join(filter(None, system_texts)) or None,
        thinking=_EFFORT.get(effort, effort) if effort else None,
    )


def with_context(request: ParsedCompletion) -> str:
    """The message after the earlier ones, each as a line of JSON, so that none can imitate another."""
    return f"{_BEFORE}\n{request.before}\n{_NOW}\n{request.text}" if request.before else request.text


def models(settings: Settings) -> dict[str, str]:
    """Agent ids by model id; `hobnob` is the default agent."""
    named = {f"{OWN}/{agent.id}": agent.id for agent in settings.agent_list()}
    return {OWN: settings.default_agent.id} | named


def session_header(turn: Turn) -> dict[str, str]:
    """The header with the session key, URL-quoted: headers are ASCII."""
    return {"X-Hobnob-Session-Key": quote(turn.session_key, safe=":/@+")}


def _check(body: CompletionRequest) -> None:
    if body.n not in (None, 1):
        raise BadInput("n must be 1: a turn has one answer.")
    if body.tools or body.functions:
        raise BadInput(
            "Client tools are not supported: agents have their own.",
            fix="Leave tools out; what an agent may use is set by agents.list[].tools.",
        )
    if body.response_format and body.response_format.get("type", "text") != "text":
        raise BadInput("response_format is not supported.", fix="Ask for the format in the message.")
    if body.messages[-1].role in ("tool", "function"):
        raise BadInput("Tool results are not supported: agents have their own tools.")


def _session(settings: Settings, body: CompletionRequest, headers: Mapping[str, str]) -> tuple[str, bool]:
    agent = _agent(body.model) or _header(headers, "agent-id")
    if reference := _header(headers, "session-key"):
        return key_for_agent(settings, unquote(reference), agent), False
    if body.user:
        return key_for_agent(settings, f"openai-user:{_user(body.user)}", agent), False
    return key_for_agent(settings, f"openai:{uuid.uuid4()}", agent), True


def _agent(model: str) -> str | None:
    """The agent a model id names; None is the default agent."""
    family, _, agent = model.strip().lower().replace(":", "/", 1).partition("/")
    if family not in (*_FAMILY, "agent") or (family == "agent" and not agent):
        raise BadInput(
            f"There is no model {model!r}: here a model is an agent.",
            fix=f"Use {OWN}, or {OWN}/<agentId>. GET /v1/models lists them.",
        )
    return None if agent in ("", "default") else keys.agent_id(agent)


def _user(name: str) -> str:
    """The user as part of a session key: as it is if plain, else hashed, so that no two users share one."""
    return name if _PLAIN_USER.fullmatch(name) else f"sha256-{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def _header(headers: Mapping[str, str], name: str) -> str | None:
    return headers.get(f"x-{OWN}-{name}") or headers.get(f"x-openclaw-{name}") or None


def _text(message: ChatMessage) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    for part in message.content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadInput(f"Content of the type {part.get('type')!r} is not supported: send text parts.")
    return "\n".join(part["text"] for part in message.content)


class CompletionWriter(Struct, frozen=True):
    """Writes a turn as a chat completion or as its chunks."""

    turn: Turn
    model: str
    with_usage: bool = False

    def whole(self, ended: Turn, usage: dict[str, int]) -> dict[str, Any]:
        message = {"role": "assistant", "content": ended.reply or "", "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage}

    def start(self) -> bytes:
        return self._delta({"role": "assistant", "content": ""})

    def piece(self, text: str) -> bytes:
        return self._delta({"content": text})

    def end(self, usage: dict[str, int]) -> bytes:
        last = self._chunk([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}])
        spent = self._chunk([], usage=usage) if self.with_usage else b""
        return last + spent + b"data: [DONE]\n\n"

    def failure(self, problem: HobnobError) -> bytes:
        return b"data: %b\n\n" % bytes(routing.error_response(problem).body)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        whole = self._head("chat.completion.chunk") | {"choices": choices} | more
        return b"data: %b\n\n" % orjson.dumps(whole)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.turn.turn_id}",
            "object": kind,
            "created": self.turn.accepted_at_ms // 1000,
            "model": self.model,
        }


class StreamedText:
    """The text that was streamed to the client so far.

    A turn may have several answers with tool calls in between; they are streamed with a blank line between
    them. What was streamed cannot be taken back.
    """

    def __init__(self) -> None:
        self._current = self._last = ""
        self._separate = False

    def piece(self, text: str) -> str:
        self._current += text
        return self._separated(text)

    def message_ended(self) -> None:
        self._separate |= bool(self._current)
        self._current, self._last = "", self._current

    def restart(self) -> None:
        """The model is asked again."""
        self._separate |= bool(self._current)
        self._current = self._last = ""

    def rest(self, reply: str) -> str:
        """The part of the final reply that was not streamed."""
        known = self._current or self._last
        if reply.startswith(known) and known:
            return reply[len(known) :]
        return self._separated(reply)

    def _separated(self, text: str) -> str:
        separate, self._separate = self._separate, False
        return f"\n\n{text}" if separate and text else text


def usage(turn: Turn) -> dict[str, int]:
    total = turn.input_tokens + turn.output_tokens
    return {
        "prompt_tokens": turn.input_tokens,
        "completion_tokens": turn.output_tokens,
        "total_tokens": total,
    }
