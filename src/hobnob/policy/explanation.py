"""Why somebody may or may not do something, for people: the verdicts, the rule, and what would change it."""

from __future__ import annotations

from typing import Any

from hobnob.config import Settings
from hobnob.policy import Caller, Verb, Verdict, may, send_policy
from hobnob.types import Session


def verdicts(settings: Settings, who: Caller, verb: Verb, to: Session) -> list[Verdict]:
    """Everything that is asked before `who` does `verb` to `to`."""
    found = [may(settings, who, verb, to)]
    return [*found, send_policy(settings, to)] if verb == "send" else found


def report(who: Caller, verb: Verb, to: Session, found: list[Verdict]) -> dict[str, Any]:
    """The verdicts as one answer."""
    refusal = next((v for v in found if not v.allowed), found[0])
    return {
        "from": who.key if isinstance(who, Session) else who.name,
        "action": verb,
        "to": to.agent_id if verb == "spawn" else to.key,
        "allowed": all(v.allowed for v in found),
        "code": refusal.code,
        "why": " ".join(v.why for v in found if v.allowed == refusal.allowed),
        "fix": [{"path": f.path, "value": f.value} for v in found for f in v.fix],
    }
