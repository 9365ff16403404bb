"""`UpdateHandler`: converts the updates of a harness into steps of a turn, and answers permission requests.

Texts, thoughts and tool calls are committed as they arrive: a call once its arguments are known, its result
once its status is final. The size of each part is limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from hobnob.config.external import PermissionMode
from hobnob.errors import HarnessFailed
from hobnob.records import Struct
from hobnob.runtimes import Delta, Emit, Message, ModelAnswered, ToolCalled, ToolReturned
from hobnob.runtimes.acp import permissions
from hobnob.types import now_ms
from hobnob.workspaces.guest import diffs

TURN_CHARS = 4_000_000  # of all updates in one turn
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
_UPDATE_CHARS = 200  # counted for each update in addition to its text
_FINAL = ("completed", "failed")
_NO_RESULT = "The harness reported no result."


@dataclass(slots=True)
class HarnessToolCall:
    """A tool call of the harness, merged from its updates. Its kind never becomes milder."""

    call_id: str
    title: str = ""
    known_kind: str | None = None
    status: str = "pending"
    input: Any = None
    output: Any = None
    content: list[Any] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    terminal_output: list[str] = field(default_factory=list)
    denial: str = ""
    call_emitted: bool = False
    result_emitted: bool = False

    def merge(self, update: Any) -> None:
        self.title = update.title or self.title
        self.known_kind = permissions.strictest(
            (self.known_kind, update.kind, permissions.evident_kind(update))
        )
        self.status = update.status or self.status
        self.input = update.raw_input or self.input
        self.output = update.raw_output if update.raw_output is not None else self.output
        self.content = update.content if update.content is not None else self.content
        self.paths = [location.path for location in update.locations or ()] or self.paths
        self.terminal_output += _terminal_output(update.field_meta or {})

    @property
    def kind(self) -> str:
        return self.known_kind or "other"

    @property
    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"title": self.title} if self.title else {}
        if self.input:
            arguments |= self.input if isinstance(self.input, dict) else {"input": self.input}
        elif self.paths:
            arguments["paths"] = self.paths
        encoded = orjson.dumps(arguments, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
        if len(encoded) <= ARGUMENT_CHARS:
            return arguments
        return {"title": self.title[:500], "cut": encoded[:ARGUMENT_CHARS]}

    @property
    def part(self) -> dict[str, Any]:
        return {"type": "toolCall", "id": self.call_id, "name": self.kind, "arguments": self.arguments}

    def result(self) -> Message:
        texts = [_content_text(item) for item in self.content] + ["".join(self.terminal_output)]
        texts = [text for text in texts if text]
        if not texts and self.output is not None:
            output = self.output if isinstance(self.output, str) else orjson.dumps(self.output, default=str)
            texts = [output if isinstance(output, str) else output.decode()]
        if self.denial:
            texts.append(self.denial)
        text = _cut("\n".join(texts) if texts or self.status in _FINAL else _NO_RESULT, RESULT_CHARS)
        return {
            "role": "toolResult",
            "toolCallId": self.call_id,
            "toolName": self.kind,
            "content": [{"type": "text", "text": text}],
            "isError": self.status != "completed",
            "timestamp": now_ms(),
        }


class _PermissionRequest(Struct, frozen=True):
    """A queued permission request. `committed` resolves once the tool call is in the transcript."""

    update: Any
    committed: asyncio.Future[HarnessToolCall]


class UpdateHandler:
    """The client side of the protocol. It queues updates, and `run` processes them one at a time.

    `message_fields` returns the fields to add to each message. Updates are ignored until `active` is set.
    """

    def __init__(
        self,
        emit: Emit,
        mode: PermissionMode,
        message_fields: Callable[[], dict[str, Any]],
        *,
        own_tools: bool = False,
    ) -> None:
        """`own_tools`: the harness has our session tools, which need no permission."""
        self._emit = emit
        self._own_tools = own_tools
        self.mode = mode
        self._message_fields = message_fields
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._chars = 0
        self._calls: dict[str, HarnessToolCall] = {}
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._message_id: str | None = None
        self._last_text = ""
        self.active = False
        self.usage: Any = None
        self.usage_before: Any = None

    # -- callbacks of the protocol package

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Queue an update. Without an await, so that updates keep their order."""
        if not self.active:  # a harness that loads a session first replays its old updates
            if update.session_update == "usage_update":
                self.usage_before = update
            return
        if self._chars > TURN_CHARS:  # `run` is about to end the turn
            return
        self._chars += _UPDATE_CHARS + _size(update)
        self._queue.put_nowait(update)

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **_: Any) -> Any:
        """Decide by the kind of the tool and the mode, and select an option by its kind."""
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        request = _PermissionRequest(tool_call, asyncio.get_running_loop().create_future())
        self._chars += _UPDATE_CHARS + _size(tool_call)
        self._queue.put_nowait(request)
        call = await request.committed
        own = self._own_tools and permissions.is_session_tool(call.title, call.kind)
        allowed = permissions.may_use(self.mode, call.kind) or (own and self.mode != "deny-all")
        kinds = ("allow_once",) if self.mode != "approve-all" else ("allow_once", "allow_always")
        chosen = _option(options, kinds) if allowed else None
        if chosen is None:
            counted = f" and this call counts as {call.kind}" if not allowed else ""
            call.denial = f"[Not allowed by Hobnob: acp.permissionMode is {self.mode}{counted}.]"
            chosen = _option(options, ("reject_once", "reject_always"))
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    def on_connect(self, conn: Any) -> None:
        """Required by the protocol package."""

    # -- from updates to steps

    async def run(self) -> None:
        """Process the queue until cancelled."""
        while True:
            item = await self._queue.get()
            if self._chars > TURN_CHARS:
                raise HarnessFailed(f"The harness sent more than {TURN_CHARS:,} characters in one turn.")
            if isinstance(item, _PermissionRequest):
                item.committed.set_result(await self._update_call(item.update, emit_now=True))
            else:
                await self._handle(item)
            self._queue.task_done()

    async def finish(self) -> None:
        """Wait until the queue is processed, then emit the calls and results that are still open."""
        await self._queue.join()
        for call in list(self._calls.values()):
            if not call.call_emitted:
                await self._emit_call(call)
            if not call.result_emitted:
                await self._emit_result(call)

    @property
    def denied_a_tool(self) -> bool:
        return any(call.denial for call in self._calls.values())

    def final_message(self) -> tuple[Message, str]:
        """The last message, not yet committed, and the reply of the turn.

        The reply is the text after the last tool call, else the last text before it.
        """
        text = "".join(self._text)
        return self._message([], "stop"), text.strip() or self._last_text

    async def _handle(self, update: Any) -> None:
        match update.session_update:
            case "agent_message_chunk":
                await self._emit_held_calls()
                if update.message_id != self._message_id and self._text:
                    await self._emit_message([], "stop")  # some harnesses send warnings as extra messages
                self._message_id = update.message_id
                if text := getattr(update.content, "text", ""):
                    self._text.append(text)
                    await self._emit(Delta(text))
            case "agent_thought_chunk":
                await self._emit_held_calls()
                if text := getattr(update.content, "text", ""):
                    self._thoughts.append(text)
                    await self._emit(Delta(text, thinking=True))
            case "tool_call" | "tool_call_update":
                await self._update_call(update)
            case "usage_update":
                self.usage = update

    async def _update_call(self, update: Any, *, emit_now: bool = False) -> HarnessToolCall:
        call = self._calls.setdefault(update.tool_call_id, HarnessToolCall(update.tool_call_id))
        call.merge(update)
        if not call.call_emitted and (emit_now or call.input or call.status != "pending"):
            await self._emit_call(call)
        if call.call_emitted and not call.result_emitted and call.status in _FINAL:
            await self._emit_result(call)
        return call

    async def _emit_held_calls(self) -> None:
        """Emit calls that still lack arguments: the harness has moved on, so none will follow."""
        for call in self._calls.values():
            if not call.call_emitted:
                await self._emit_call(call)

    async def _emit_call(self, call: HarnessToolCall) -> None:
        call.call_emitted = True
        await self._emit_message([call.part], "toolUse")
        await self._emit(ToolCalled(call.call_id, call.kind, call.arguments))

    async def _emit_result(self, call: HarnessToolCall) -> None:
        call.result_emitted = True
        await self._emit(ToolReturned(call.result()))

    async def _emit_message(self, calls: list[dict[str, Any]], stop_reason: str) -> None:
        message = self._message(calls, stop_reason)
        self._last_text = "".join(self._text).strip() or self._last_text
        self._text.clear()
        self._thoughts.clear()
        await self._emit(ModelAnswered(message))

    def _message(self, calls: list[dict[str, Any]], stop_reason: str) -> Message:
        thoughts, text = "".join(self._thoughts), "".join(self._text)
        content: list[dict[str, Any]] = [{"type": "thinking", "thinking": thoughts}] if thoughts else []
        content += [{"type": "text", "text": text}] if text else []
        message = {"role": "assistant", "content": content + calls, "stopReason": stop_reason}
        return message | self._message_fields() | {"timestamp": now_ms()}


def _option(options: list[Any], kinds: tuple[str, ...]) -> str | None:
    """The id of the first option with one of these kinds, in the order of the kinds."""
    ids = (option.option_id for kind in kinds for option in options if option.kind == kind)
    return next(ids, None)


def _terminal_output(meta: dict[str, Any]) -> list[str]:
    """Output of the harness's own terminal, which Codex sends in pieces as metadata."""
    pieces = (meta.get(name) for name in ("terminal_output", "terminal_output_delta"))
    return [p["data"] for p in pieces if isinstance(p, dict) and isinstance(p.get("data"), str)]


def _content_text(content: Any) -> str:
    """One content item of a tool result as text."""
    match content.type:
        case "content":
            block = content.content
            return str(getattr(block, "text", "") or f"[{block.type}]")
        case "diff":
            return _diff(content.path, content.old_text or "", content.new_text)
    return ""


def _diff(path: str, old: str, new: str) -> str:
    lines = diffs.unified(old, new, path, path) if len(old) + len(new) <= DIFF_CHARS else None
    if lines is None:
        return f"[{path}: {len(old):,} characters became {len(new):,}]"
    return "\n".join(lines) or f"[{path}: unchanged]"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n[… {len(text) - limit:,} characters left out …]"


def _size(update: Any) -> int:
    return len(update.model_dump_json(exclude_none=True))
