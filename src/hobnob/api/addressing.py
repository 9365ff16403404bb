"""Which session a request over HTTP means."""

from __future__ import annotations

from hobnob import keys
from hobnob.config import Settings
from hobnob.errors import BadInput
from hobnob.sessions import resolve


def address(settings: Settings, reference: str, agent_id: str | None = None) -> str:
    """A session's key, read as the named agent would read it; its id as it is."""
    if resolve.is_id(reference):
        return reference
    agent = keys.agent_id(agent_id) if agent_id else settings.default_agent.id
    key = keys.parse(reference, settings.viewer(agent))
    if agent_id and key.agent != agent:
        raise BadInput(f"The session {key} is not one of agent {agent!r}.", fix="Leave the agent out.")
    return str(key)
