"""What a harness tells over the Agent Client Protocol, turned into the steps of a turn.

Texts, thoughts and tool calls are committed as they happen. A call is told once its arguments are known, and
answered once it is over. What is kept is bounded.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from hobnob.config.acp import PermissionMode
from hobnob.errors import HarnessFailed
from hobnob.runtimes import Delta, Emit, Message, ModelAnswered, ToolCalled, ToolReturned
from hobnob.types import now_ms

TURN_CHARS = 4_000_000  # that a harness may say in one turn
RESULT_CHARS = 30_000
ARGUMENT_CHARS = 16_000
DIFF_CHARS = 20_000
UPDATES = (
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "usage_update",
)
_UPDATE_CHARS = 200  # what an update costs besides its text
_READS = ("read", "search", "think")
_OVER = ("completed", "failed")
_UNTOLD = "The harness did not say how this ended."


@dataclass(slots=True)
class HarnessToolCall:
    """A tool call of the harness, as far as it is known. Later updates fill in and replace."""

    call_id: str
    title: str = ""
    kind: str = "other"
    status: str = "pending"
    input: Any = None
    output: Any = None
    content: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    refused: str = ""
    told: bool = False
    answered: bool = False

    def learn(self, update: Any) -> None:
        self.title = update.title or self.title
        self.kind = update.kind or self.kind
        self.status = update.status or self.status
        self.input = update.raw_input or self.input
        self.output = update.raw_output if update.raw_output is not None else self.output
        self.content = update.content if update.content is not None else self.content
        self.paths = [place.path for place in update.locations or ()] or self.paths
        self.printed += _printed(update.field_meta or {})

    @property
    def arguments(self) -> dict[str, Any]:
        known: dict[str, Any] = {"title": self.title} if self.title else {}
        if self.input:
            known |= self.input if isinstance(self.input, dict) else {"input": self.input}
        elif self.paths:
            known["paths"] = self.paths
        whole = orjson.dumps(known, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
        if len(whole) <= ARGUMENT_CHARS:
            return known
        return {"title": self.title[:500], "cut": whole[:ARGUMENT_CHARS]}

    @property
    def part(self) -> dict[str, Any]:
        return {"type": "toolCall", "id": self.call_id, "name": self.kind, "arguments": self.arguments}

    def result(self) -> Message:
        texts = [text for each in self.content if (text := _shown(each))] + ["".join(self.printed)]
        texts = [text for text in texts if text]
        if not texts and self.output is not None:
            output = self.output if isinstance(self.output, str) else orjson.dumps(self.output, default=str)
            texts = [output if isinstance(output, str) else output.decode()]
        if self.refused:
            texts.append(self.refused)
        over = self.status in _OVER
        text = _cut("\n".join(texts) if over or texts else _UNTOLD, RESULT_CHARS)
        return {
            "role": "toolResult",
            "toolCallId": self.call_id,
            "toolName": self.kind,
            "content": [{"type": "text", "text": text}],
            "isError": self.status != "completed",
            "timestamp": now_ms(),
        }


@dataclass(frozen=True, slots=True)
class _Asked:
    """The harness wants to know whether it may. `known` is set once the call stands in the transcript."""

    call: Any
    known: asyncio.Future[HarnessToolCall]


class UpdateHandler:
    """Hears a harness, as the client side of the protocol wants it: an update at a time, in order.

    `stamp` says who speaks: what each message of the transcript is marked with.
    """

    def __init__(self, emit: Emit, mode: PermissionMode, stamp: Callable[[], dict[str, Any]]) -> None:
        self._emit = emit
        self.mode = mode
        self._stamp = stamp
        self._heard: asyncio.Queue[Any] = asyncio.Queue()
        self._chars = 0
        self._calls: dict[str, HarnessToolCall] = {}
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._message_id: str | None = None
        self._last_text = ""
        self.listening = False
        self.usage: Any = None
        self.usage_before: Any = None

    # -- what the protocol calls

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Take an update. Nothing is awaited here: the next one may already be on its way."""
        if not self.listening:  # a session that is loaded first tells all that was
            if update.session_update == "usage_update":
                self.usage_before = update
            return
        if self._chars > TURN_CHARS:  # the turn is about to be ended for it
            return
        self._chars += _UPDATE_CHARS + _size(update)
        self._heard.put_nowait(update)

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **_: Any) -> Any:
        """Answer whether the harness may use a tool, by what it does, and by the kind of option."""
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        asked = _Asked(tool_call, asyncio.get_running_loop().create_future())
        self._chars += _UPDATE_CHARS + _size(tool_call)
        self._heard.put_nowait(asked)
        call = await asked.known
        allowed = self.mode == "approve-all" or (self.mode == "approve-reads" and call.kind in _READS)
        kinds = ("allow_once",) if self.mode != "approve-all" else ("allow_once", "allow_always")
        chosen = _option(options, kinds) if allowed else None
        if chosen is None:
            call.refused = f"[Hobnob did not allow it: acp.permissionMode is {self.mode}.]"
            chosen = _option(options, ("reject_once", "reject_always"))
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    def on_connect(self, conn: Any) -> None:
        """Nothing is to be done."""

    # -- what becomes of it

    async def run(self) -> None:
        """Turn what is heard into steps, until cancelled."""
        while True:
            update = await self._heard.get()
            if self._chars > TURN_CHARS:
                raise HarnessFailed(f"The harness said more than {TURN_CHARS:,} characters in one turn.")
            if isinstance(update, _Asked):
                update.known.set_result(await self._call(update.call, now=True))
            else:
                await self._take(update)
            self._heard.task_done()

    async def done(self) -> None:
        """Wait until all that was heard is told. Calls that were left open are closed."""
        await self._heard.join()
        for call in list(self._calls.values()):
            if not call.told:
                await self._tell(call)
            if not call.answered:
                await self._answer(call)

    @property
    def was_refused(self) -> bool:
        """Whether a tool was not allowed."""
        return any(call.refused for call in self._calls.values())

    def last(self) -> tuple[Message, str]:
        """The last message, not yet committed, and the reply of the turn: what was said after the last call.

        Where that is nothing, the reply is what was said last before it.
        """
        text = "".join(self._text)
        return self._message([], "stop"), text.strip() or self._last_text

    async def _take(self, update: Any) -> None:
        match update.session_update:
            case "agent_message_chunk":
                await self._tell_held()
                if update.message_id != self._message_id and self._text:
                    await self._keep([], "stop")  # some harnesses put warnings in messages of their own
                self._message_id = update.message_id
                if text := getattr(update.content, "text", ""):
                    self._text.append(text)
                    await self._emit(Delta(text))
            case "agent_thought_chunk":
                await self._tell_held()
                if text := getattr(update.content, "text", ""):
                    self._thoughts.append(text)
                    await self._emit(Delta(text, thinking=True))
            case "tool_call" | "tool_call_update":
                await self._call(update)
            case "usage_update":
                self.usage = update

    async def _call(self, update: Any, *, now: bool = False) -> HarnessToolCall:
        call = self._calls.setdefault(update.tool_call_id, HarnessToolCall(update.tool_call_id))
        call.learn(update)
        if not call.told and (now or call.input or call.status != "pending"):
            await self._tell(call)
        if call.told and not call.answered and call.status in _OVER:
            await self._answer(call)
        return call

    async def _tell_held(self) -> None:
        """Calls whose arguments did not come: the harness has gone on, so they will not."""
        for call in self._calls.values():
            if not call.told:
                await self._tell(call)

    async def _tell(self, call: HarnessToolCall) -> None:
        call.told = True
        await self._keep([call.part], "toolUse")
        await self._emit(ToolCalled(call.call_id, call.kind, call.arguments))

    async def _answer(self, call: HarnessToolCall) -> None:
        call.answered = True
        await self._emit(ToolReturned(call.result()))

    async def _keep(self, calls: list[dict[str, Any]], stop: str) -> None:
        message = self._message(calls, stop)
        self._last_text = "".join(self._text).strip() or self._last_text
        self._text.clear()
        self._thoughts.clear()
        await self._emit(ModelAnswered(message))

    def _message(self, calls: list[dict[str, Any]], stop: str) -> Message:
        thoughts, text = "".join(self._thoughts), "".join(self._text)
        content: list[dict[str, Any]] = [{"type": "thinking", "thinking": thoughts}] if thoughts else []
        content += [{"type": "text", "text": text}] if text else []
        message = {"role": "assistant", "content": content + calls, "stopReason": stop}
        return message | self._stamp() | {"timestamp": now_ms()}


def _option(options: list[Any], kinds: tuple[str, ...]) -> str | None:
    """The id of the first option of one of these kinds, the kinds in order."""
    found = (option.option_id for kind in kinds for option in options if option.kind == kind)
    return next(found, None)


def _printed(meta: dict[str, Any]) -> list[str]:
    """What a terminal of the harness's own has printed: Codex tells it beside the protocol, in pieces."""
    found = (meta.get(name) for name in ("terminal_output", "terminal_output_delta"))
    return [each["data"] for each in found if isinstance(each, dict) and isinstance(each.get("data"), str)]


def _shown(content: Any) -> str:
    """One piece of a tool's result as text."""
    match content.type:
        case "content":
            block = content.content
            return str(getattr(block, "text", "") or f"[{block.type}]")
        case "diff":
            return _diff(content.path, content.old_text or "", content.new_text)
    return ""


def _diff(path: str, old: str, new: str) -> str:
    if len(old) + len(new) > DIFF_CHARS:
        return f"[{path}: {len(old):,} characters became {len(new):,}]"
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, n=2, lineterm="")
    return "\n".join(lines) or f"[{path}: unchanged]"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[… {len(text) - limit:,} characters left out …]"


def _size(update: Any) -> int:
    return len(update.model_dump_json(exclude_none=True))
