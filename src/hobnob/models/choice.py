"""Which models an agent asks, in order."""

from __future__ import annotations

from hobnob.config import Settings
from hobnob.config.agents import Agent
from hobnob.models.rehearsal import INFO as REHEARSAL
from hobnob.types import Session


def model_names(
    settings: Settings, agent: Agent, session: Session | None, asked: str | None = None
) -> list[str]:
    """By turn, by session, by agent, by default, else the built-in one."""
    chosen = asked or (session.model_override if session else None)
    if chosen:
        return [chosen]
    for model in (agent.model, settings.agents.defaults.model):
        if model is not None and model.primary:
            return [model.primary, *model.fallbacks]
    return [REHEARSAL.name]
