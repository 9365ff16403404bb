"""Model selection: the primary model of a turn and its fallbacks."""

from __future__ import annotations

from hobnob.config import Settings
from hobnob.config.agents import Agent
from hobnob.models.rehearsal import INFO as REHEARSAL
from hobnob.types import Session


def model_names(
    settings: Settings, agent: Agent, session: Session | None, turn_model: str | None = None
) -> list[str]:
    """The first that is set: model of the turn, session, agent or defaults, else the rehearsal model."""
    chosen = turn_model or (session.model_override if session else None)
    if chosen:
        return [chosen]
    for model in (agent.model, settings.agents.defaults.model):
        if model is not None and model.primary:
            return [model.primary, *model.fallbacks]
    return [REHEARSAL.name]
