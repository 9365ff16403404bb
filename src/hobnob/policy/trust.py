"""The ledger of trust: who may do what to whom, as a matrix of agents. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from hobnob import keys
from hobnob.config import Settings
from hobnob.config.fields import GrantVerb
from hobnob.policy import authority, is_clamped, may, visibility
from hobnob.types import Session

AGENTS_SHOWN = 30
VERBS: tuple[GrantVerb, ...] = get_args(GrantVerb)
Row = dict[str, Any]


def matrix(settings: Settings, limit_of: Callable[[Session, Session], authority.Stored | None]) -> Row:
    """Every verb between the main sessions of every two agents, with the rule that decides.

    `limit_of` gives the limit of a turn that a message between two sessions starts.
    """
    agents = settings.agent_list()
    mains = [Session.of(keys.main_of(agent.id)) for agent in agents[:AGENTS_SHOWN]]
    return {
        "verbs": list(VERBS),
        "agents": [_agent(settings, main) for main in mains],
        "more": max(len(agents) - AGENTS_SHOWN, 0),
        "pairs": [_pair(settings, one, other, limit_of) for one in mains for other in mains if one != other],
        "grants": settings.grant_index.clauses[:AGENTS_SHOWN],
        "moreGrants": max(len(settings.grants) - AGENTS_SHOWN, 0),
    }


def _agent(settings: Settings, main: Session) -> Row:
    return {
        "id": main.agent_id,
        "visibility": visibility(settings, main),
        "sandboxed": is_clamped(settings, main),
    }


def _pair(
    settings: Settings,
    one: Session,
    other: Session,
    limit_of: Callable[[Session, Session], authority.Stored | None],
) -> Row:
    found = {verb: may(settings, one, verb, other) for verb in VERBS}
    row: Row = {
        "from": one.agent_id,
        "to": other.agent_id,
        "verbs": {verb: {"allowed": each.allowed, "code": each.code} for verb, each in found.items()},
    }
    if found["send"].allowed and (limit := limit_of(one, other)) is not None:
        withheld = limit["withheld"] if limit["mode"] == "both" else []
        row["authority"] = {"mode": limit["mode"], "withheld": withheld}
    return row
