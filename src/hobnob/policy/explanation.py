"""Explanations of verdicts for people, as `hobnob explain` shows them."""

from __future__ import annotations

from typing import Any

from hobnob.config import Settings
from hobnob.policy import Caller, Verb, Verdict, may, send_policy
from hobnob.types import Session


def verdicts(settings: Settings, caller: Caller, verb: Verb, target: Session) -> list[Verdict]:
    """All verdicts that `caller` needs before it does `verb` to `target`."""
    access = may(settings, caller, verb, target)
    return [access, send_policy(settings, target)] if verb == "send" else [access]


def report(caller: Caller, verb: Verb, target: Session, found: list[Verdict]) -> dict[str, Any]:
    """The verdicts as one result; the first refusal gives the code."""
    decisive = next((v for v in found if not v.allowed), found[0])
    return {
        "from": caller.key if isinstance(caller, Session) else caller.name,
        "action": verb,
        "to": target.agent_id if verb == "spawn" else target.key,
        "allowed": all(v.allowed for v in found),
        "code": decisive.code,
        "why": " ".join(v.why for v in found if v.allowed == decisive.allowed),
        "fix": [{"path": f.path, "value": f.value} for v in found for f in v.fix],
    }
