"""`AgentRuntime`: runs the turns of configured agents with their models, tools, prompt and history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast, get_args

import orjson

from hobnob import briefings, policy
from hobnob.config import Config, Settings
from hobnob.config.agents import Agent
from hobnob.config.fields import Thinking
from hobnob.models import Failed, Finished, Request
from hobnob.models.catalog import Catalog
from hobnob.models.choice import model_names
from hobnob.models.history import StoredMessage
from hobnob.runtimes import Emit, Ended, Message, TurnContext, builtin, context, prompt
from hobnob.runtimes.model_calls import ModelChoice, call_model
from hobnob.store import Store, entries
from hobnob.tools import Context, Toolbox
from hobnob.types import Session, Turn

_PAGE = 200
Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _History:
    """The newest messages of a session. `resumed`: they include steps of the turn itself."""

    messages: list[Message]
    not_loaded: int
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
        budget = context.budget(min(c.info.context_window or context.DEFAULT_WINDOW for c in choices))
        history = await self._history(running, budget)
        # An announce turn only produces text, so it gets no tools.
        toolbox = Toolbox() if turn.step == "announce" else await self._toolbox(session)
        toolbox = toolbox.limited(options.get("tools")).limited(options.get("tools_allow"))
        request = Request(
            model="",  # set for each choice by `call_model`
            system=self._system_prompt(agent, session, toolbox, options),
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
            call_model=partial(_call_within_budget, choices, request, budget, history.not_loaded),
            toolbox=toolbox,
            context=Context(session, turn, waiting=running.waiting),
            steer=running.steer,
            max_steps=self._settings.agents.defaults.max_steps,
        )
        return await builtin.run(loop, running.emit)

    def _model_choices(self, agent: Agent, session: Session, options: Options) -> list[ModelChoice]:
        names = model_names(self._settings, agent, session, options.get("model"))
        return [ModelChoice(self._catalog.info(name), partial(self._catalog.model, name)) for name in names]

    async def _history(self, running: TurnContext, budget: int) -> _History:
        known, turn = running.transcript, running.turn
        while not known.is_whole and known.tokens <= budget:
            known.prepend(
                await self._store.read(entries.history, turn.session_id, before=known.first_seq, limit=_PAGE)
            )
        known.trim(budget)
        resumed = any(m.turn_id == turn.turn_id and m["role"] != "user" for m in known.messages)
        return _History([*known.messages], known.first_seq - 1, resumed)

    def _system_prompt(self, agent: Agent, session: Session, toolbox: Toolbox, options: Options) -> str:
        workspace = self._config.workspace(agent.id)
        extra = options.get("extra_system") or ""
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


async def _call_within_budget(
    choices: Sequence[ModelChoice],
    request: Request,
    budget: int,
    not_loaded: int,
    messages: list[Message],
    emit: Emit,
) -> Finished | Failed:
    """Call the model with the newest messages that fit the budget; the system prompt counts the others."""
    fitting = context.fit(context.cut_results(messages, context.RESULT_CHARS), budget)
    omitted = not_loaded + len(messages) - len(fitting)
    fitting = [
        briefings.marked(m) if "provenance" in m and not isinstance(m, StoredMessage) else m for m in fitting
    ]
    system = f"{request.system}\n\n{context.omission_note(omitted)}" if omitted else request.system
    return await call_model(choices, replace(request, system=system, messages=fitting), emit)
