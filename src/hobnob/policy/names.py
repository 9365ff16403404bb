"""Names of agents that do not exist: the nearest one that does, or how to add one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from hobnob.config import Settings
from hobnob.errors import UnknownAgent
from hobnob.fixes import Fix, command

LIST_HINT = "`hobnob agents list` shows the agents."


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that was probably meant."""
    return next(iter(difflib.get_close_matches(name.lower(), known, 1)), None)


def no_such(kind: str, name: str, known: Sequence[str], listed: str = "configured") -> str:
    """The clause for a name that does not exist, with the nearest one or all there are."""
    if near := nearest(name, known):
        return f"there is no {kind} {name!r}; did you mean {near!r}?"
    return f"there is no {kind} {name!r} ({listed}: {', '.join(known) or 'none'})"


def fix_for_agent(name: str, known: Sequence[str]) -> tuple[Fix, ...]:
    """The setting that adds the agent. None for a typing error: that would add an agent nobody wants."""
    return () if nearest(name, known) else (Fix(f"agents.list[{name}].id", name),)


def unknown_agent(settings: Settings, name: str) -> UnknownAgent:
    """The error for an agent that is not configured, for a caller who may know all agents."""
    known = [agent.id for agent in settings.agent_list()]
    clause = no_such("agent", name, known)
    sentence = f"T{clause[1:]}" + ("" if clause.endswith("?") else ".")
    return UnknownAgent(sentence, fix=command(fix_for_agent(name, known)) or LIST_HINT)
