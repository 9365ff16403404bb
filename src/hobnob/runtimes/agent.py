"""A turn of a configured agent: its model, its tools, its prompt and its history, given to the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from hobnob.types import Session

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
        choices = [Choice(self._catalog.info(name), self._catalog.model(name)) for name in names]
        window = min(choice.info.context_window or context.DEFAULT_WINDOW for choice in choices)
        history, left_out = await self._store.read(load_history, turn.session_id, context.budget(window))
        toolbox = self._toolbox(session)
        extra = "\n\n".join(
            part
            for part in (options.get("extra_system"), context.marker(left_out) if left_out else None)
            if part
        )
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
            shown = context.cut_results(context.fit(messages, context.budget(window)), context.RESULT_CHARS)
            return await ask(choices, replace(request, messages=shown), emit)

        work = builtin.Work(
            ask=put,
            toolbox=toolbox,
            context=Context(session, turn, waiting=running.waiting),
            steer=running.steer,
            max_steps=self._settings.agents.defaults.max_steps,
        )
        return await builtin.run(history, work, running.emit)

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


def load_history(tx: Tx, session_id: str, budget: int) -> tuple[list[Message], int]:
    """The newest messages up to a budget of tokens, read page by page, and how many are older than that."""
    messages: list[Message] = []
    used, before = 0, None
    while used <= budget:
        page = entries.history(tx, session_id, before=before, limit=_PAGE)
        new = [entry.message for entry in page]
        used += sum(context.tokens(message) for message in new)
        messages = new + messages
        if len(page) < _PAGE:  # that was all there is
            before = 1
            break
        before = page[0].seq
    if used <= budget:
        return messages, 0
    kept = context.fit(messages, budget)
    return kept, (before or 1) - 1 + len(messages) - len(kept)
