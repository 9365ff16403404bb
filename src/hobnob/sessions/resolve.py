"""Resolve a reference to a session and authorise the caller, once per request.

A reference is a key, a sessionId or a label. A caller who may not see a session gets the same refusal whether
or not the session exists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hobnob import fixes, keys, policy
from hobnob.config import Settings
from hobnob.errors import (
    BadInput,
    LabelAmbiguous,
    NotAllowed,
    SessionArchived,
    SessionNotFound,
    UnknownAgent,
)
from hobnob.fixes import Fix
from hobnob.keys import SessionKey
from hobnob.policy import Caller, Operator, Verb, Verdict
from hobnob.policy.names import unknown_agent
from hobnob.records import Struct
from hobnob.store import Tx
from hobnob.store import sessions as session_rows
from hobnob.types import Session

_SESSION_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NAMED = 10  # keys in the error for an ambiguous label
_LIST_HINT = "sessions_list shows the sessions you can see."


class Target(Struct, frozen=True):
    """What a reference names: a stored session, or the key of one that does not exist yet."""

    key: SessionKey
    session: Session | None
    by_id: bool = False
    transcript_id: str | None = None
    """The transcript a sessionId names: the session's current one or an older one."""

    @property
    def exists(self) -> bool:
        return self.session is not None

    @property
    def session_or_new(self) -> Session:
        return self.session or Session.of(self.key)


def viewer(settings: Settings, caller: Caller) -> keys.Viewer:
    """The point of view from which a caller's keys are read and shown."""
    if isinstance(caller, Operator):
        return settings.viewer()  # the gateway API shows full keys
    return settings.viewer(caller.agent_id, keys.parse(caller.key))


def is_id(reference: str) -> bool:
    """Whether a reference is the id of a transcript."""
    return _SESSION_ID.fullmatch(reference.strip()) is not None


def lookup(tx: Tx, settings: Settings, caller: Caller, reference: str) -> Target:
    """Find the session of a key or sessionId. It checks no access: `authorise` does."""
    reference = reference.strip()
    by_id = is_id(reference)
    if by_id and (found := session_rows.by_id(tx, reference.lower())):
        return Target(keys.parse(found.key), found, by_id, reference.lower())
    key = keys.parse(reference, viewer(settings, caller))
    return Target(key, session_rows.find(tx, str(key)), by_id)


def authorise(
    settings: Settings, caller: Caller, verb: Verb, target: Target, *, create: bool = False
) -> Session:
    """The session of a target, if the caller may do `verb` to it. Raises SessionNotFound or NotAllowed.

    With `create`, a session that does not exist yet is returned as it would be created; a sub-agent's is not.
    """
    session = target.session
    if target.by_id:
        return _visible(
            settings, caller, verb, session, f"session with the id {target.transcript_id or target.key.id}"
        )
    if create and session is None and target.key.is_child:
        raise SessionNotFound(
            f"There is no session {target.key}; sub-agents are created by sessions_spawn only."
        )
    require(policy.may(settings, caller, verb, target.session_or_new))
    if session is None and not create:
        raise _not_found(settings, target.key)
    return target.session_or_new


def find(tx: Tx, settings: Settings, caller: Caller, verb: Verb, reference: str) -> Session:
    """The session of a key or sessionId. Raises SessionNotFound or NotAllowed."""
    return authorise(settings, caller, verb, lookup(tx, settings, caller, reference))


def by_label(
    tx: Tx, settings: Settings, caller: Caller, verb: Verb, label: str, agent_id: str | None = None
) -> Session:
    """The session with a label, optionally of one agent. An archived one only if no other has the label.

    Raises SessionNotFound, NotAllowed or LabelAmbiguous, which names only sessions that the caller may see.
    """
    label, agent = label.strip(), keys.agent_id(agent_id) if agent_id is not None else None
    if not label:
        raise BadInput("The label is empty.")
    found = [s for s in session_rows.with_label(tx, label) if agent in (None, s.agent_id)]
    visible = [s for s in found if policy.may(settings, caller, verb, s).allowed]
    visible = [s for s in visible if s.archived_at_ms is None] or visible
    if len(visible) > 1:
        raise ambiguous(settings, caller, label, [s.key for s in visible])
    return _visible(settings, caller, verb, next(iter(visible), None), f"session with the label {label!r}")


def ambiguous(settings: Settings, caller: Caller, label: str, found: Sequence[str]) -> LabelAmbiguous:
    """The refusal of a label that several sessions have, all of which the caller may see."""
    own = viewer(settings, caller)
    named = ", ".join(keys.display_stored(key, own) for key in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return LabelAmbiguous(
        f"{len(found)} sessions have the label {label!r}: {named}{more}.", fix="Name one by its key."
    )


def find_or_create_main(tx: Tx, settings: Settings, caller: Caller, reference: str) -> Session:
    """The session a caller may send into. An agent's main session is created at its first use."""
    target = lookup(tx, settings, caller, reference)
    main = not target.exists and target.key.is_main and settings.agent(target.key.agent) is not None
    session = authorise(settings, caller, "send", target, create=main)
    return not_archived(session) if target.exists else session_rows.create(tx, session)


def key_for_agent(settings: Settings, reference: str, agent_id: str | None = None) -> str:
    """The full key of a reference as the named agent reads it; a sessionId stays as it is."""
    if is_id(reference):
        return reference
    agent = keys.agent_id(agent_id) if agent_id else settings.default_agent.id
    key = keys.parse(reference, settings.viewer(agent))
    if agent_id and key.agent != agent:
        raise BadInput(f"The session {key} is not one of agent {agent!r}.", fix="Leave the agent out.")
    return str(key)


def not_archived(session: Session) -> Session:
    """The session itself. Raises SessionArchived."""
    if session.archived_at_ms is not None:
        raise SessionArchived(
            f"The session {session.key} is archived.", fix="Choose another, or ask its owner to restore it."
        )
    return session


def check_agent(settings: Settings, session: Session) -> None:
    """Refuse a session whose agent or harness is not configured: nobody could answer."""
    agent_id = session.agent_id
    if session.is_external:
        if not settings.acp.enabled or agent_id not in settings.acp.harnesses:
            known = ", ".join(sorted(settings.acp.harnesses)) or "none"
            raise UnknownAgent(
                f"The harness {agent_id!r} is no longer configured (configured: {known}).",
                fix=fixes.command(
                    [Fix("acp.enabled", True), Fix(f"acp.harnesses.{agent_id}", {"command": [agent_id]})]
                ),
            )
    elif settings.agent(agent_id) is None:
        raise unknown_agent(settings, agent_id)


def require(verdict: Verdict) -> None:
    """Raise NotAllowed when the verdict is no."""
    if not verdict.allowed:
        raise NotAllowed(verdict.why, rule=verdict.code, fix=fixes.command(verdict.fix) or None)


def _visible(settings: Settings, caller: Caller, verb: Verb, found: Session | None, what: str) -> Session:
    """A session that was not named by its key: the caller learns of it only if the policy says yes."""
    if found is not None and policy.may(settings, caller, verb, found).allowed:
        return found
    if isinstance(caller, Session):
        require(policy.may_see_all(settings, caller))
    raise SessionNotFound(f"There is no {what}.", fix=_LIST_HINT)


def _not_found(settings: Settings, key: SessionKey) -> SessionNotFound:
    fix = _LIST_HINT
    if settings.agent(key.id) is not None:
        fix = f"Did you mean the agent: agentId {key.id!r}, or the key agent:{key.id}:main?"
    return SessionNotFound(f"There is no session {key}.", fix=fix)
