"""Grants: narrow rights between agents, in addition to visibility. Pure functions; `policy.may` asks them.

A right never grows along a spawn: a sub-agent has a grant only if every session above it has one, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from hobnob import keys
from hobnob.config import Settings
from hobnob.config.fields import GrantVerb
from hobnob.types import LINEAGE_SEP, Session

# Approving commands is for people: no grant gives it.
_VERBS: dict[str, GrantVerb] = {
    "list": "list",
    "status": "list",
    "history": "history",
    "search": "history",
    "send": "send",
    "spawn": "spawn",
    "abort": "control",
    "change": "control",
    "control": "control",
}


def holders(session: Session) -> Sequence[str]:
    """The agents whose rights limit those of a session: its own, and those of the sessions above it.

    A harness has no rights of its own; those of its spawner count.
    """
    if not session.lineage:
        return (session.agent_id,)
    above = [keys.agent_of(key) for key in session.lineage.rstrip(LINEAGE_SEP).split(LINEAGE_SEP)]
    return tuple(dict.fromkeys(above if session.is_external else [session.agent_id, *above]))


def granted_verb(verb: str) -> GrantVerb | None:
    """The verb a grant must name to allow `verb`."""
    return _VERBS.get(verb)


def find(settings: Settings, caller: Session, verb: str, target: Session) -> int | None:
    """The number of the grant by which `caller` may do `verb` to `target`."""
    wanted = _VERBS.get(verb)
    if not settings.grants or wanted is None:
        return None
    index, first = settings.grant_index, None
    for agent in holders(caller):
        number = index.find(agent, target.agent_id, wanted, target.key)
        if number is None:
            return None
        first = number if first is None else first
    return first


def for_spawn(settings: Settings, agent: str, target: str) -> int | None:
    """The number of the grant by which sessions of `agent` may spawn the agent `target`."""
    return settings.grant_index.find(agent, target, "spawn") if settings.grants else None


def targets(settings: Settings, caller: Session, verb: GrantVerb) -> dict[str, Sequence[str] | None]:
    """The agents whose sessions grants may open to a caller, each with the keys if only those count.

    It says where to look; `policy.may` decides.
    """
    if not settings.grants:
        return {}
    return settings.grant_index.targets(holders(caller)[0], verb)
