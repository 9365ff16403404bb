"""From what a caller wrote to a session that caller may use: resolve first, then ask the policy, once.

Who may not see a session learns nothing from the refusal: a session that is not there is refused in the same
words as one that is.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from hobnob import keys, policy
from hobnob.config import Settings
from hobnob.errors import BadInput, NotAllowed, SessionArchived, SessionNotFound
from hobnob.keys import SessionKey
from hobnob.policy import Caller, Operator, Verb, Verdict
from hobnob.store import Tx
from hobnob.store import sessions as session_rows
from hobnob.types import Session

_SESSION_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def viewer(settings: Settings, caller: Caller) -> keys.Viewer:
    """From whose point of view a caller's keys are read."""
    if isinstance(caller, Operator):
        return settings.viewer()  # at the gateway, keys are shown in full
    return settings.viewer(caller.agent_id, keys.parse(caller.key))


def find(tx: Tx, settings: Settings, caller: Caller, verb: Verb, reference: str) -> Session:
    """The session of a key or a sessionId. Raises SessionNotFound or NotAllowed."""
    found, key = lookup(tx, settings, caller, reference)
    if is_id(reference):
        return _seen(settings, caller, verb, found, f"a session with the id {reference.strip()}")
    require(policy.may(settings, caller, verb, found or Session.of(key)))
    if found is None:
        raise _not_there(settings, key)
    return found


def _not_there(settings: Settings, key: SessionKey) -> SessionNotFound:
    fix = "sessions_list shows those there are."
    if settings.agent(key.id) is not None:
        fix = f"Did you mean the agent: agentId {key.id!r}, or the key agent:{key.id}:main?"
    return SessionNotFound(f"There is no session {key}.", fix=fix)


def is_id(reference: str) -> bool:
    """Whether a session is named by the id of a transcript."""
    return _SESSION_ID.fullmatch(reference.strip()) is not None


def lookup(tx: Tx, settings: Settings, caller: Caller, reference: str) -> tuple[Session | None, SessionKey]:
    """The session of a key or sessionId, if there is one, and its key. Nothing is asked: the caller must."""
    reference = reference.strip()
    if is_id(reference) and (by_id := session_rows.by_id(tx, reference.lower())):
        return by_id, keys.parse(by_id.key)
    key = keys.parse(reference, viewer(settings, caller))
    return session_rows.find(tx, str(key)), key


def by_label(
    tx: Tx, settings: Settings, caller: Caller, verb: Verb, label: str, agent_id: str | None = None
) -> Session:
    """The session with a label, of an agent when one is named. Raises SessionNotFound or NotAllowed."""
    label = label.strip()
    if not label:
        raise BadInput("The label is empty.")
    found = session_rows.by_label(tx, label)
    if found is not None and agent_id is not None and found.agent_id != keys.agent_id(agent_id):
        found = None
    return _seen(settings, caller, verb, found, f"a session with the label {label!r}")


def find_or_begin_main(tx: Tx, settings: Settings, caller: Caller, reference: str) -> Session:
    """The session a caller may send into. The main session of an agent begins when it is first needed."""
    found, key = lookup(tx, settings, caller, reference)
    if found is None and key.is_main and settings.agent(key.agent) is not None:
        main = Session.of(key)
        require(policy.may(settings, caller, "send", main))
        return session_rows.create(tx, main)
    return not_archived(find(tx, settings, caller, "send", reference))


def not_archived(session: Session) -> Session:
    """The session, unless it is archived."""
    if session.archived_at_ms is not None:
        raise SessionArchived(
            f"The session {session.key} is archived.", fix="Choose another, or ask its owner to restore it."
        )
    return session


def require(verdict: Verdict) -> None:
    if not verdict.allowed:
        raise NotAllowed(verdict.why, rule=verdict.code, fix=_fix_text(verdict))


def _seen(settings: Settings, caller: Caller, verb: Verb, found: Session | None, what: str) -> Session:
    """What was not named by its key: the caller learns of it only when it may see it."""
    if found is not None and policy.may(settings, caller, verb, found).allowed:
        return found
    if isinstance(caller, Session):
        require(policy.unseen(settings, caller))
    raise SessionNotFound(f"There is not {what}.", fix="sessions_list shows those there are.")


def _fix_text(verdict: Verdict) -> str | None:
    def shown(value: Any) -> str:
        return orjson.dumps(value).decode()

    if not verdict.fix:
        return None
    return "Set " + " and ".join(f"{f.path} = {shown(f.value)}" for f in verdict.fix) + "."
