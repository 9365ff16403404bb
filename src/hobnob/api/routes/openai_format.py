"""What OpenAI's clients send and expect: the request read, the answer written. No I/O.

Of the messages only the last one of the user becomes a turn: the session has its own history. What the client
hands over of a conversation the session does not know goes along in front of it.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote

import orjson
from pydantic import BaseModel, ConfigDict, Field

from hobnob import keys
from hobnob.api.addressing import address
from hobnob.config import Settings
from hobnob.errors import BadInput
from hobnob.types import Turn

OWN = "hobnob"
_FAMILY = (OWN, "openclaw")
_PLAIN_USER = re.compile(r"[a-z0-9][a-z0-9_@+-]{0,127}")
_EFFORT = {"none": "off"}
_BEFORE = "[The conversation so far, as the client handed it over, one JSON message per line:]"
_NOW = "[The message to answer:]"


class ExtensibleModel(BaseModel):
    """Clients send more than is used here: what is not named is not looked at."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class ChatMessage(ExtensibleModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(ExtensibleModel):
    include_usage: bool = False


class CompletionRequest(ExtensibleModel):
    """The body of `POST /v1/chat/completions`, as far as it matters here."""

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


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """What a request asks for. `fresh`: the session is for this request only."""

    session_key: str
    fresh: bool
    text: str
    before: str
    system: str | None
    thinking: str | None


def parse(settings: Settings, body: CompletionRequest, headers: Mapping[str, str]) -> ParsedCompletion:
    """Raises BadInput for what cannot be done."""
    _check(body)
    key, fresh = _session(settings, body, headers)
    last = max((i for i, m in enumerate(body.messages) if m.role == "user"), default=None)
    if last is None:
        raise BadInput("There is no message of the role user.")
    told = [_text(m) for m in body.messages if m.role in ("system", "developer")]
    earlier = [m for m in body.messages[:last] if m.role in ("user", "assistant")]
    lines = [orjson.dumps({"role": m.role, "content": _text(m)}).decode() for m in earlier if _text(m)]
    effort = body.reasoning_effort
    return ParsedCompletion(
        session_key=key,
        fresh=fresh,
        text=_text(body.messages[last]),
        before="\n".join(lines),
        system="\n\n".join(filter(None, told)) or None,
        thinking=_EFFORT.get(effort, effort) if effort else None,
    )


def with_context(wanted: ParsedCompletion) -> str:
    """The message with what was said before it, each line as JSON, so that none can pass for another."""
    return f"{_BEFORE}\n{wanted.before}\n{_NOW}\n{wanted.text}" if wanted.before else wanted.text


def models(settings: Settings) -> dict[str, str]:
    """The agents by the names they go by as models: `hobnob` is the default one."""
    named = {f"{OWN}/{agent.id}": agent.id for agent in settings.agent_list()}
    return {OWN: settings.default_agent.id} | named


def session_header(turn: Turn) -> dict[str, str]:
    """Where the answer stands. A header holds no letters but plain ones."""
    return {"X-Hobnob-Session-Key": quote(turn.session_key, safe=":/@+")}


def _check(body: CompletionRequest) -> None:
    if body.n not in (None, 1):
        raise BadInput("n is 1 here: a turn has one answer.")
    if body.tools or body.functions:
        raise BadInput(
            "Tools of the client cannot be used: agents have their own.",
            fix="Leave tools out; what an agent may use is set by agents.list[].tools.",
        )
    if body.response_format and body.response_format.get("type", "text") != "text":
        raise BadInput("response_format cannot be promised.", fix="Ask for the format in the message.")
    if body.messages[-1].role in ("tool", "function"):
        raise BadInput("Results of the client's tools cannot be taken: agents have their own tools.")


def _session(settings: Settings, body: CompletionRequest, headers: Mapping[str, str]) -> tuple[str, bool]:
    agent = _agent(body.model) or _header(headers, "agent-id")
    if reference := _header(headers, "session-key"):
        return address(settings, unquote(reference), agent), False
    if body.user:
        return address(settings, f"openai-user:{_user(body.user)}", agent), False
    return address(settings, f"openai:{uuid.uuid4()}", agent), True


def _agent(model: str) -> str | None:
    """The agent a model's name means; None is the default one."""
    family, _, agent = model.strip().lower().replace(":", "/", 1).partition("/")
    if family not in (*_FAMILY, "agent") or (family == "agent" and not agent):
        raise BadInput(
            f"There is no model {model!r}: an agent is asked here, which has a model of its own.",
            fix=f"Use {OWN}, or {OWN}/<agentId>. GET /v1/models lists them.",
        )
    return None if agent in ("", "default") else keys.agent_id(agent)


def _user(name: str) -> str:
    """A word for somebody else's name of a user. Two users never share one, however they are spelled."""
    return name if _PLAIN_USER.fullmatch(name) else f"sha256-{hashlib.sha256(name.encode()).hexdigest()[:40]}"


def _header(headers: Mapping[str, str], name: str) -> str | None:
    return headers.get(f"x-{OWN}-{name}") or headers.get(f"x-openclaw-{name}") or None


def _text(message: ChatMessage) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    for part in message.content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadInput(f"Content of the type {part.get('type')!r} is not taken: send text parts.")
    return "\n".join(part["text"] for part in message.content)


@dataclass(frozen=True, slots=True)
class CompletionWriter:
    """The answer in the words of OpenAI's wire."""

    turn: Turn
    model: str

    def whole(self, usage: dict[str, int]) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.turn.reply or "", "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage}

    def piece(self, text: str, *, first: bool = False) -> bytes:
        delta = {"role": "assistant", "content": text} if first else {"content": text}
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def end(self, usage: dict[str, int] | None) -> bytes:
        last = self._chunk([{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}])
        spent = self._chunk([], usage=usage) if usage else b""
        return last + spent + b"data: [DONE]\n\n"

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
    """What was passed on of an answer while it was written.

    A turn may say several things, with tools in between; a reader of a stream gets all of them, apart. What
    was passed on cannot be taken back.
    """

    def __init__(self) -> None:
        self._current = self._last = ""
        self._apart = False

    def piece(self, text: str) -> str:
        self._current += text
        return self._set_apart(text)

    def message_over(self) -> None:
        self._apart |= bool(self._current)
        self._current, self._last = "", self._current

    def void(self) -> None:
        """The model begins anew."""
        self._apart |= bool(self._current)
        self._current = self._last = ""

    def rest(self, reply: str) -> str:
        """What is missing of the whole answer, once that is known."""
        known = self._current or self._last
        if reply.startswith(known) and known:
            return reply[len(known) :]
        return self._set_apart(reply)

    def _set_apart(self, text: str) -> str:
        apart, self._apart = self._apart, False
        return f"\n\n{text}" if apart and text else text


def usage(turn: Turn) -> dict[str, int]:
    total = turn.input_tokens + turn.output_tokens
    return {
        "prompt_tokens": turn.input_tokens,
        "completion_tokens": turn.output_tokens,
        "total_tokens": total,
    }
