"""A turn of a configured agent: its model, its tools, its prompt and its history, given to the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

import orjson

from hobnob.config import Settings
from hobnob.config.tree import Agent
from hobnob.config.values import Thinking
from hobnob.models import Failed, Finished, Request
from hobnob.models.catalog import Catalog
from hobnob.models.rehearsal import INFO as REHEARSAL
from hobnob.runtimes import Emit, Ended, Message, RunningTurn, builtin, context, prompt
from hobnob.runtimes.asking import Choice, ask
from hobnob.store import Store, Tx, entries
from hobnob.tools import Context, Toolbox
from hobnob.types import Entry, Session, Turn

_PAGE = 200


class AgentRuntime:
    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        store: Store,
        home: Path,
        toolbox: Callable[[Session], Toolbox] = lambda _: Toolbox(),
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._store = store
        self._home = home
        self._toolbox = toolbox

    async def __call__(self, running: RunningTurn) -> Ended:
        session, turn = running.session, running.turn
        agent = self._settings.agent(session.agent_id)
        if agent is None:
            return Ended("failed", error=f"There is no agent {session.agent_id!r} any more (agents.list).")
        options: dict[str, Any] = orjson.loads(turn.options)
        names = model_names(self._settings, agent, session, options.get("model"))
        choices = [Choice(self._catalog.info(name), partial(self._catalog.model, name)) for name in names]
        window = min(choice.info.context_window or context.DEFAULT_WINDOW for choice in choices)
        budget = context.budget(window)
        history, older, begun = await self._store.read(load_history, turn, budget)
        toolbox = self._toolbox(session)
        extra = options.get("extra_system") or ""
        system = prompt.assemble(agent, session, toolbox, workspace=self._workspace(agent), extra=extra)
        thinking = options.get("thinking") or session.thinking_level
        request = Request(
            model="",
            system=system,
            messages=[],
            tools=toolbox.specs,
            thinking=cast(Thinking, thinking)
            if thinking in get_args(Thinking)
            else self._settings.agents.defaults.thinking_default,
            session_id=turn.session_id,
            session_key=session.key,
        )

        async def put(messages: list[Message], emit: Emit) -> Finished | Failed:
            shown = context.fit(context.cut_results(messages, context.RESULT_CHARS), budget)
            left_out = older + len(messages) - len(shown)
            told = f"{system}\n\n{context.marker(left_out)}" if left_out else system
            return await ask(choices, replace(request, system=told, messages=shown), emit)

        work = builtin.Work(
            ask=put,
            toolbox=toolbox,
            context=Context(session, turn, waiting=running.waiting),
            steer=running.steer,
            max_steps=self._settings.agents.defaults.max_steps,
        )
        return await builtin.run(history, work, running.emit, begun=begun)

    def _workspace(self, agent: Agent) -> Path:
        chosen = agent.workspace or (
            self._settings.agents.defaults.workspace if agent is self._settings.default_agent else None
        )
        return Path(chosen).expanduser() if chosen else self._home / "agents" / agent.id / "workspace"


def model_names(settings: Settings, agent: Agent, session: Session, asked: str | None = None) -> list[str]:
    """The models to ask, in order: by turn, by session, by agent, by default, else the built-in one."""
    chosen = asked or session.model_override
    if chosen:
        return [chosen]
    for model in (agent.model, settings.agents.defaults.model):
        if model is not None and model.primary:
            return [model.primary, *model.fallbacks]
    return [REHEARSAL.name]


def load_history(tx: Tx, turn: Turn, budget: int) -> tuple[list[Message], int, bool]:
    """The newest messages up to a budget of tokens, how many are older, and whether the turn has begun."""
    kept: list[Entry] = []
    used, before = 0, None
    while used <= budget:
        page = entries.history(tx, turn.session_id, before=before, limit=_PAGE)
        shown = context.cut_results([entry.message for entry in page], context.RESULT_CHARS)
        used += sum(context.tokens(message) for message in shown)
        kept = page + kept
        if len(page) < _PAGE:  # that was all there is
            break
        before = page[0].seq
    begun = any(entry.turn_id == turn.turn_id and entry.role != "user" for entry in kept)
    return [entry.message for entry in kept], (kept[0].seq - 1 if kept else 0), begun
