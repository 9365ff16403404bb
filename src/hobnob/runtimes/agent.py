"""`AgentRuntime`: runs the turns of configured agents with their models, tools, prompt and history."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, cast, get_args

import orjson

from hobnob import briefings, policy
from hobnob.config import Config, Settings
from hobnob.config.agents import Agent, AgentDefaults
from hobnob.config.fields import Thinking
from hobnob.models import Failed, Finished, Request
from hobnob.models.catalog import Catalog
from hobnob.models.choice import model_names
from hobnob.models.history import StoredMessage
from hobnob.policy import authority
from hobnob.records import Struct, replace
from hobnob.runtimes import Emit, Ended, Message, TurnContext, builtin, context, prompt, pruning
from hobnob.runtimes.compaction import Compactor
from hobnob.runtimes.memory_flush import MemoryFlush
from hobnob.runtimes.meter import Meter
from hobnob.runtimes.model_calls import ModelChoice, call_model
from hobnob.runtimes.structured import BRIEFING, TypedResult
from hobnob.runtimes.transcripts import as_read
from hobnob.store import Store, entries
from hobnob.tools import Context, Toolbox
from hobnob.types import Session, Turn, now_ms

_PAGE = 100
Options = dict[str, Any]


class _History(Struct, frozen=True):
    """The newest messages of a session as a model reads them. `resumed`: with steps of the turn itself."""

    messages: list[Message]
    resumed: bool


class AgentRuntime:
    """Runs turns in the built-in loop. `on_cancel` ends the programs of a turn that is cancelled."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        store: Store,
        toolbox: Callable[[Session], Awaitable[Toolbox]],
        on_cancel: Callable[[Turn], Awaitable[None]],
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._store = store
        self._toolbox = toolbox
        self._on_cancel = on_cancel

    @property
    def _settings(self) -> Settings:
        return self._config.settings

    async def __call__(self, running: TurnContext) -> Ended:
        try:
            return await self._run(running)
        except asyncio.CancelledError:
            await asyncio.shield(self._on_cancel(running.turn))
            raise

    async def _run(self, running: TurnContext) -> Ended:
        session, turn = running.session, running.turn
        agent = self._settings.agent(session.agent_id)
        if agent is None:
            return Ended("failed", error=f"There is no agent {session.agent_id!r} any more (agents.list).")
        options: Options = orjson.loads(turn.options)
        choices = self._model_choices(agent, session, options)
        window = self._window(choices)
        budget = context.budget(window)
        await self._load_history(running, budget)
        meter = Meter(self._store, self._settings, running)
        # An announce turn only produces text, so it gets no tools.
        toolbox = Toolbox() if turn.step == "announce" else await self._toolbox(session)
        held = toolbox
        for limit in authority.limits(self._settings, options, session):
            toolbox = toolbox.limited(limit)
        options |= _told_of_limit(options, held, toolbox)
        compaction = self._defaults.compaction
        system = partial(self._system_prompt, agent, session)
        flush = MemoryFlush(running, self._store, compaction, choices, meter, toolbox, system)
        compactor = self._compactor(running, choices, meter, flush)
        if turn.step == "compact":
            return await self._compact_now(running, compactor, budget, options)
        if compaction.enabled:
            soft = min(compaction.memory_flush.soft_threshold_tokens, budget // 4)
            if running.transcript.tokens > budget - soft:
                await flush(budget)
            if running.transcript.tokens > budget:
                await compactor.compact(budget)
        history = self._history(running, budget)
        typed = TypedResult(options["output_schema"]) if options.get("output_schema") else None
        if typed is not None:
            toolbox = toolbox.extended(typed.tool)
        extra = options.get("extra_system") or ""
        if typed is not None:
            extra = f"{extra}\n{BRIEFING}".strip()
        request = Request(
            model="",  # set for each choice by `call_model`
            system=system(toolbox, extra),
            messages=[],
            tools=toolbox.specs,
            thinking=self._thinking(session, options),
            session_id=turn.session_id,
            session_key=session.key,
        )
        if mismatch := self._receipt_mismatch(session, options, choices[0], request.thinking, toolbox):
            return Ended("failed", error=f"The turn differs from the receipt of its spawn: {mismatch}.")
        loop = builtin.LoopInput(
            history=history.messages,
            resumed=history.resumed,
            call_model=_ModelCalls(choices, request, window, running, compactor, meter, self._defaults),
            toolbox=toolbox,
            context=Context(session, turn, waiting=running.waiting),
            steer=running.steer,
            max_steps=self._settings.agents.defaults.max_steps,
            typed=typed,
        )
        return await builtin.run(loop, running.emit)

    def _model_choices(self, agent: Agent, session: Session, options: Options) -> list[ModelChoice]:
        names = model_names(self._settings, agent, session, options.get("model"))
        return [ModelChoice(self._catalog.info(name), partial(self._catalog.model, name)) for name in names]

    async def _load_history(self, running: TurnContext, budget: int) -> None:
        """Load as much of the transcript as a model can be sent."""
        known, turn = running.transcript, running.turn
        while not known.is_whole and known.tokens <= budget:
            known.prepend(
                await self._store.read(entries.history, turn.session_id, before=known.first_seq, limit=_PAGE)
            )

    def _history(self, running: TurnContext, budget: int) -> _History:
        known, turn = running.transcript, running.turn
        known.trim(budget)
        own = takewhile(lambda m: m.seq > (turn.input_seq or 0), reversed(known.messages))
        resumed = any(m.turn_id == turn.turn_id and m["role"] != "user" for m in own)
        return _History([*known.for_model()], resumed)

    @property
    def _defaults(self) -> AgentDefaults:
        return self._settings.agents.defaults

    def _window(self, choices: Sequence[ModelChoice]) -> int:
        """The context window that every model of the turn has."""
        limit = self._defaults.context_tokens
        return min(*(c.info.context_window or context.DEFAULT_WINDOW for c in choices), limit or sys.maxsize)

    def _compactor(
        self, running: TurnContext, choices: Sequence[ModelChoice], meter: Meter, flush: MemoryFlush
    ) -> Compactor:
        settings = self._defaults.compaction
        if settings.model:
            info = self._catalog.info(settings.model)
            choices = [ModelChoice(info, partial(self._catalog.model, settings.model))]
        return Compactor(running, self._store, settings, choices, self._window(choices), meter, flush)

    async def _compact_now(
        self, running: TurnContext, compactor: Compactor, budget: int, options: Options
    ) -> Ended:
        """Compact on request, whether or not the conversation still fits."""
        before = running.transcript.tokens
        focus = str(options.get("focus") or "")
        keep_tokens = min(before // 4, budget // 2)
        done = await compactor.compact(budget, keep_tokens=keep_tokens, keep=options.get("keep"), focus=focus)
        after = running.transcript.tokens
        answer = (
            f"The older part of the conversation is summarised: about {before:,} tokens became {after:,}."
            " Nothing was deleted."
            if done
            else "There is nothing to summarise yet."
        )
        content = [{"type": "text", "text": answer}]
        message = {"role": "assistant", "content": content, "stopReason": "stop", "timestamp": now_ms()}
        return Ended("ok", reply=answer, message=message)

    def _system_prompt(self, agent: Agent, session: Session, toolbox: Toolbox, extra: str) -> str:
        workspace = self._config.workspace(agent.id)
        return prompt.assemble(agent, session, toolbox, workspace=workspace, extra=extra)

    def _thinking(self, session: Session, options: Options) -> Thinking:
        level = options.get("thinking") or session.thinking_level
        default = self._settings.agents.defaults.thinking_default
        return cast(Thinking, level) if level in get_args(Thinking) else default

    def _receipt_mismatch(
        self, session: Session, options: Options, choice: ModelChoice, thinking: Thinking, toolbox: Toolbox
    ) -> str:
        """How the turn differs from the receipt of its spawn; empty if it matches or has none."""
        receipt: Options | None = options.get("receipt")
        if not receipt:
            return ""
        actual = {
            "model": choice.info.name,
            "thinking": thinking,
            "tools": toolbox.names,
            "sandbox": policy.is_sandboxed(self._settings, session),
        }
        if session.model_override != receipt.get("override"):
            del actual["model"]  # the model of the session was changed after the spawn
        return "; ".join(
            f"{name} is {actual[name]!r} instead of {value!r}"
            for name, value in receipt.items()
            if name in actual and actual[name] != value
        )


def _told_of_limit(options: Options, held: Toolbox, toolbox: Toolbox) -> Options:
    """The system text of a turn that lacks tools because another agent asked for it."""
    if authority.OPTION not in options or not (missing := sorted({*held.names} - {*toolbox.names})):
        return {}
    note = briefings.reduced(options[authority.OPTION]["sender"], missing)
    return {"extra_system": "\n".join(filter(None, (options.get("extra_system"), note)))}


class _ModelCalls:
    """Calls the model with what fits of the conversation; compacts it when the provider finds it too long."""

    def __init__(
        self,
        choices: Sequence[ModelChoice],
        request: Request,
        window: int,
        running: TurnContext,
        compactor: Compactor,
        meter: Meter,
        defaults: AgentDefaults,
    ) -> None:
        self._choices = choices
        self._request = request
        self._window = window
        self._budget = context.budget(window)
        self._known = running.transcript
        self._compactor = compactor
        self._meter = meter
        self._defaults = defaults

    async def __call__(self, messages: list[Message], emit: Emit) -> Finished | Failed:
        answer = await self._attempt(messages, emit)
        if not isinstance(answer, Failed) or answer.kind != "too_long":
            return answer
        # The estimate was too low. From now on the turn is sent about half as much.
        self._budget //= 2
        if self._defaults.compaction.enabled:
            await self._compactor.compact(self._budget)
        return await self._attempt(messages, emit)

    async def _attempt(self, messages: list[Message], emit: Emit) -> Finished | Failed:
        """Send the newest messages that fit the budget; the system prompt counts the others."""
        messages = self._after_summary(messages)
        # Those of the transcript are kept as models read them; the steps of this turn are not.
        sent = [m if isinstance(m, StoredMessage) else as_read(m) for m in messages]
        sent = pruning.prune(sent, self._defaults.context_pruning, self._window, now_ms())
        fitting = context.fit(sent, self._budget)
        omitted = self._known.not_loaded + len(messages) - len(fitting)
        request, system = self._request, self._request.system
        if omitted:
            system = f"{system}\n\n{context.omission_note(omitted)}"
        fitted = replace(request, system=system, messages=fitting)
        return await call_model(self._choices, fitted, emit, meter=self._meter)

    def _after_summary(self, messages: list[Message]) -> list[Message]:
        """The messages of the turn with the current summary instead of what it covers."""
        known = self._known
        if known.summary is None or (messages and messages[0] is known.summary):
            return messages
        rest = [m for m in messages if not isinstance(m, StoredMessage) or m.seq >= known.first_kept]
        return [known.summary, *rest]
