"""Explanations of verdicts for people, as `hobnob explain` shows them."""

from __future__ import annotations

from typing import Any

from hobnob.config import Settings
from hobnob.config.grants import Grant
from hobnob.errors import SessionNotFound
from hobnob.fixes import command
from hobnob.policy import Caller, Verb, Verdict, grants, is_clamped, may, send_policy
from hobnob.policy.names import unknown_agent
from hobnob.types import Session


def verdicts(settings: Settings, caller: Caller, verb: Verb, target: Session) -> list[Verdict]:
    """All verdicts that `caller` needs before it does `verb` to `target`."""
    access = may(settings, caller, verb, target)
    return [access, send_policy(settings, target)] if verb == "send" else [access]


def missing(
    settings: Settings, session: Session, *, stored: bool, verb: Verb, created: bool = False
) -> Verdict | None:
    """A refusal when the session or its agent does not exist; None when it does, or would be created.

    The main session of an agent is created at its first use; with `created`, any other is too.
    """
    if stored and verb != "send":
        return None  # sessions of an agent that was removed can still be read
    if not session.is_external and settings.agent(session.agent_id) is None:
        unknown = unknown_agent(settings, session.agent_id)
        return Verdict(False, unknown.code, unknown.message)
    if stored or created or session.kind == "main":
        return None
    return Verdict(False, SessionNotFound.code, f"There is no session {session.key}.")


def narrow_grant(settings: Settings, caller: Caller, verb: Verb, target: Session) -> dict[str, Any] | None:
    """The grant that would allow no more than what `may` refused; None if it would not help."""
    wanted = grants.granted_verb(verb)
    known = settings.agent(target.agent_id) is not None
    if not isinstance(caller, Session) or wanted is None or is_clamped(settings, caller) or not known:
        return None
    if len(holders := grants.holders(caller)) > 1 or may(settings, caller, verb, target).allowed:
        return None
    grant: dict[str, Any] = {"from": holders[0], "to": target.agent_id, "verbs": [wanted]}
    # Not model_copy: that would copy what the settings have cached, such as the index of the grants.
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    allowing = Settings.model_construct(
        settings.model_fields_set, **values | {"grants": [*settings.grants, Grant.model_validate(grant)]}
    )
    return grant if may(allowing, caller, verb, target).allowed else None


def report(caller: Caller, verb: Verb, target: Session, found: list[Verdict]) -> dict[str, Any]:
    """The verdicts as one result; the first refusal gives the code."""
    fixes = [fix for verdict in found for fix in verdict.fix]
    decisive = next((v for v in found if not v.allowed), found[0])
    return {
        "from": caller.key if isinstance(caller, Session) else caller.name,
        "action": verb,
        "to": target.agent_id if verb == "spawn" else target.key,
        "allowed": all(v.allowed for v in found),
        "code": decisive.code,
        "why": " ".join(v.why for v in found if v.allowed == decisive.allowed),
        "fix": [{"path": f.path, "value": f.value} for f in fixes],
        "command": command(fixes) or None,
    }
