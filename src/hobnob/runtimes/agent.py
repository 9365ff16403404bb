"""A turn of a configured agent: its model, its tools, its prompt and its history, given to the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast, get_args

import orjson

from hobnob import briefings, policy
from hobnob.config import Config, Settings
from hobnob.config.fields import Thinking
from hobnob.models import Failed, Finished, Request
from hobnob.models.catalog import Catalog
from hobnob.models.choice import model_names
from hobnob.runtimes import Emit, Ended, Message, TurnContext, builtin, context, prompt
from hobnob.runtimes.model_calls import ModelChoice, call_model
from hobnob.store import Store, Tx, entries
from hobnob.tools import Context, Toolbox
from hobnob.types import Entry, Session, Turn

_PAGE = 200


class AgentRuntime:
    """`broken_off` puts away what a turn that is stopped has left running."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        store: Store,
        toolbox: Callable[[Session], Awaitable[Toolbox]],
        broken_off: Callable[[Turn], Awaitable[None]],
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._store = store
        self._toolbox = toolbox
        self._broken_off = broken_off

    @property
    def _settings(self) -> Settings:
        return self._config.settings

    async def __call__(self, running: TurnContext) -> Ended:
        try:
            return await self._run(running)
        except asyncio.CancelledError:
            await asyncio.shield(self._broken_off(running.turn))
            raise

    async def _run(self, running: TurnContext) -> Ended:
        session, turn = running.session, running.turn
        agent = self._settings.agent(session.agent_id)
        if agent is None:
            return Ended("failed", error=f"There is no agent {session.agent_id!r} any more (agents.list).")
        options: dict[str, Any] = orjson.loads(turn.options)
        names = model_names(self._settings, agent, session, options.get("model"))
        choices = [
            ModelChoice(self._catalog.info(name), partial(self._catalog.model, name)) for name in names
        ]
        window = min(choice.info.context_window or context.DEFAULT_WINDOW for choice in choices)
        budget = context.budget(window)
        if running.recent and running.recent[0].seq == 1:
            said = [entry.message for entry in running.recent]
            history, older, begun = as_history(running.recent, said, turn)
        else:
            history, older, begun = await self._store.read(load_history, turn, budget)
        # An announcement is for saying something, not for starting more.
        toolbox = Toolbox() if turn.step == "announce" else await self._toolbox(session)
        extra = options.get("extra_system") or ""
        system = prompt.assemble(
            agent, session, toolbox, workspace=self._config.workspace(agent.id), extra=extra
        )
        asked = options.get("thinking") or session.thinking_level
        default = self._settings.agents.defaults.thinking_default
        thinking = cast(Thinking, asked) if asked in get_args(Thinking) else default
        if receipt := options.get("receipt"):
            sandboxed = policy.is_sandboxed(self._settings, session)
            runs = {"model": names[0], "thinking": thinking, "tools": toolbox.names, "sandbox": sandboxed}
            if session.model_override != receipt.get("override"):
                del runs["model"]  # somebody has chosen another since
            if wrong := _differences(receipt, runs):
                return Ended("failed", error=f"What would run is not what was promised: {wrong}.")
        request = Request(
            model="",
            system=system,
            messages=[],
            tools=toolbox.specs,
            thinking=thinking,
            session_id=turn.session_id,
            session_key=session.key,
        )

        async def put(messages: list[Message], emit: Emit) -> Finished | Failed:
            shown = context.fit(context.cut_results(messages, context.RESULT_CHARS), budget)
            shown = [briefings.marked(message) if "provenance" in message else message for message in shown]
            left_out = older + len(messages) - len(shown)
            told = f"{system}\n\n{context.marker(left_out)}" if left_out else system
            return await call_model(choices, replace(request, system=told, messages=shown), emit)

        work = builtin.Work(
            ask=put,
            toolbox=toolbox,
            context=Context(session, turn, waiting=running.waiting),
            steer=running.steer,
            max_steps=self._settings.agents.defaults.max_steps,
        )
        return await builtin.run(history, work, running.emit, begun=begun)


def _differences(promised: dict[str, Any], runs: dict[str, Any]) -> str:
    """How what runs differs from what a spawn's receipt said."""
    return "; ".join(
        f"{name} is {runs[name]!r} instead of {value!r}"
        for name, value in promised.items()
        if name in runs and runs[name] != value
    )


def load_history(tx: Tx, turn: Turn, budget: int) -> tuple[list[Message], int, bool]:
    """The newest messages up to a budget of tokens, how many are older, and whether the turn has begun."""
    kept: list[Entry] = []
    messages: list[Message] = []
    used, before = 0, entries.LAST
    while used <= budget:
        page = entries.history(tx, turn.session_id, before=before, limit=_PAGE)
        said = [entry.message for entry in page]
        shown = context.cut_results(said, context.RESULT_CHARS)
        used += sum(context.tokens(message) for message in shown)
        kept, messages = page + kept, said + messages
        if len(page) < _PAGE:  # that was all there is
            break
        before = page[0].seq
    return as_history(kept, messages, turn)


def as_history(kept: list[Entry], said: list[Message], turn: Turn) -> tuple[list[Message], int, bool]:
    """What was said in the entries kept, how many are older, and whether the turn has begun."""
    begun = any(entry.turn_id == turn.turn_id and entry.role != "user" for entry in kept)
    return said, (kept[0].seq - 1 if kept else 0), begun
